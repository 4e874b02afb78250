"""A gateway's side of one worker in virtual time: its token stream, and posts to it."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from orchestrator.membership.outbox import POST_TIMEOUT_S, Outbox, Post
from orchestrator.membership.reach import CONNECT_TIMEOUT_S, RENEW_S, RENEW_TIMEOUT_S, News, Reach
from orchestrator.membership.reports import Hello
from orchestrator.virtual.network import Connection, Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.worker import VirtualWorker
from workers.api.messages import DownMessage, Feed, Resync, SendKV, UpMessage

LATE_S = 0.3  # so much later comes the control that a story loses


class Listener(Protocol):
    """The gateway whose channel it is."""

    name: str
    process: Process

    def news(self, worker: str, news: Iterable[News]) -> None: ...
    def heard(self, worker: str, messages: Sequence[UpMessage]) -> None: ...


class VirtualChannel:
    """What `live.channel` is to a real worker, over virtual connections."""

    def __init__(
        self,
        gateway: Listener,
        worker: VirtualWorker,
        network: Network,
        unreachable_s: float,
    ) -> None:
        self.worker = worker
        self._gateway = gateway
        self._process = gateway.process
        self._network = network
        self._unreachable_s = unreachable_s
        self.reach = Reach(worker.spec.name, unreachable_s=unreachable_s, now=self._process.time())
        self.outbox = Outbox()
        self._connection: Connection | None = None
        self._heard_at = 0.0
        self._greeted = False
        self._closed = False
        self._under_way: deque[tuple[float, Post]] = deque()  # (when it times out, post)
        self._due: float | None = None
        self._renewals = 0  # sent so far
        self._renewed_last = 0  # the newest that was answered, or timed out
        self._open()
        self._process.after(RENEW_S, self._renew)

    def send(self, message: DownMessage) -> None:
        """Deliver soon: all messages of one turn travel together."""
        if isinstance(message, SendKV):
            message = replace(message, address=message.to_worker)
        self.outbox.put(message)

    def lost(self) -> None:
        """The worker was lost: what was meant for its process is not worth sending any more.

        What is left, stops that free memory, goes out at once.
        """
        self._under_way.clear()
        self.outbox.lost()
        self._process.after(0.0, self.flush)

    def close(self) -> None:
        """The worker has left the deployment."""
        self._closed = True
        if self._connection is not None:
            self._connection.close(self._process, "the worker has left")

    # ------------------------------------------------------------ the token stream

    def _open(self) -> None:
        if self._closed:
            return
        now = self._process.time()
        self.reach.attempt(now)
        self._heard_at, self._greeted = now, False
        worker, name = self.worker, self._gateway.name
        connection = Connection(
            self._network,
            self._process,
            worker.process,
            near_end=lambda reason: self._ended(connection, reason, silent=False),
            far_end=lambda reason: worker.tokens_ended(name, connection),
        )
        self._connection = connection
        connection.send(self._process, worker.open_tokens, name, connection, self._hear)
        self._process.after(self._unreachable_s, self._watch, connection)

    def _hear(self, connection: Connection, line: Hello | Sequence[UpMessage]) -> None:
        """One line of the stream; the first is the hello."""
        if connection is not self._connection:
            return
        now = self._process.time()
        self._heard_at = now
        if isinstance(line, Hello):
            self._greeted = True
            self._gateway.news(self.worker.spec.name, self.reach.greeted(line))
        elif self._greeted:
            self._gateway.heard(self.worker.spec.name, line)

    def _watch(self, connection: Connection) -> None:
        """A stream on which nothing comes is given up."""
        if connection is not self._connection or not connection.open_at(self._process):
            return
        patience = self._unreachable_s if connection.reached else CONNECT_TIMEOUT_S
        due = self._heard_at + patience
        if self._process.time() < due:
            self._process.alarm(due, self._watch, connection)
            return
        connection.close(self._process, "nothing was heard")
        self._ended(connection, "nothing was heard", silent=connection.reached)

    def _ended(self, connection: Connection, reason: str, *, silent: bool) -> None:
        if connection is not self._connection or self._closed:
            return
        self._connection = None
        now = self._process.time()
        ended = self.reach.ended(reason, now, silent=silent)
        self._gateway.news(self.worker.spec.name, ended.news)
        self._process.after(ended.wait_s, self._open)

    # ------------------------------------------------------------ posts

    def flush(self) -> None:
        """Hand to the wire what is due; called at the end of each of the gateway's turns."""
        if self._closed:
            return
        now = self._process.time()
        for post in self.outbox.due(now):
            self._under_way.append((now + POST_TIMEOUT_S, post))
            self._post(post)
        self._plan(now)

    def _plan(self, now: float) -> None:
        times = [self._under_way[0][0]] if self._under_way else []
        again = self.outbox.next_deadline()
        due = min(times if again is None else [*times, again], default=None)
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._process.alarm(due, self._look, due)

    def _look(self, due: float) -> None:
        """Posts without an answer have failed; failed ones are due again."""
        if self._due != due:
            return
        self._due = None
        now = self._process.time()
        while self._under_way and self._under_way[0][0] <= now:
            self.outbox.failed(self._under_way.popleft()[1], now, refused=False)
        self.flush()

    def _post(self, post: Post) -> None:
        """On its way, with the accidents that may happen to it there or on the way back."""
        network = self._network
        unheard = tuple(
            m
            for m in post.messages
            if network.drop is not None and network.drop(self.worker.spec.name, m)
        )
        if unheard:
            # A story's accident: a feed is lost, control comes with its repetition.
            kept = tuple(m for m in post.messages if m not in unheard)
            late = tuple(m for m in unheard if not isinstance(m, Feed | Resync))
            to = self.reach.incarnation
            network.send(self._process, self.worker.process, self._arrive, post, kept, True, to)
            if late:
                network.schedule.after(
                    LATE_S, network.send, self._process, self.worker.process, self._arrive,
                    post, late, True, to,
                )  # fmt: skip
            return
        lost = network.hits(network.accidents.lost)
        if lost and network.hits(0.5):  # on the way there
            network.send(self.worker.process, self._process, self._answered, post, False)
            return
        for _ in range(1 + network.hits(network.accidents.repeated)):
            network.send(
                self._process, self.worker.process, self._arrive, post, post.messages, not lost,
                self.reach.incarnation,
            )  # fmt: skip

    def _arrive(
        self, post: Post, messages: Sequence[DownMessage], answers: bool, to: str | None
    ) -> None:
        """At the worker's kernel."""
        process = self.worker.process
        if process.alive:
            process.do(self._take, post, messages, answers, to)
        else:
            self._network.send(process, self._process, self._answered, post, False)

    def _take(
        self, post: Post, messages: Sequence[DownMessage], answers: bool, to: str | None
    ) -> None:
        if to in (None, self.worker.hello.incarnation):  # else it was meant for another life
            self.worker.take(messages, self._gateway.name)
        self._network.send(self.worker.process, self._process, self._answered, post, answers)

    def _answered(self, post: Post, delivered: bool) -> None:
        self._process.do(self._settle, post, delivered)

    def _settle(self, post: Post, delivered: bool) -> None:
        for entry in self._under_way:
            if entry[1] is post:
                self._under_way.remove(entry)
                break
        if delivered:
            self.outbox.delivered(post)
        else:
            self.outbox.failed(post, self._process.time(), refused=False)
        self.flush()

    def _renew(self) -> None:
        """Keep the lease on this gateway's legs: again a moment after each answer, or time-out."""
        if self._closed:
            return
        if not self.reach.up:
            self._process.after(RENEW_S, self._renew)
            return
        self._renewals += 1
        target = self.worker.process
        self._network.send(self._process, target, self._renewal_arrived, self._renewals)
        self._process.after(RENEW_TIMEOUT_S, self._renewal_over, self._renewals)

    def _renewal_arrived(self, number: int) -> None:
        if self.worker.process.alive:
            self.worker.process.do(self._renewed, number)
        else:
            self._answer_renewal(number)

    def _renewed(self, number: int) -> None:
        self.worker.take((), self._gateway.name)
        self._answer_renewal(number)

    def _answer_renewal(self, number: int) -> None:
        self._network.send(
            self.worker.process, self._process, self._process.do, self._renewal_over, number
        )

    def _renewal_over(self, number: int) -> None:
        if number == self._renewals and number != self._renewed_last:
            self._renewed_last = number
            self._process.after(RENEW_S, self._renew)
