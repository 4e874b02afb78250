"""The virtual driver for replay: one machine, modelled workers, one heap of events.

Only the machine decides. What is modelled here is what lies between it and its workers: delays,
lines, and how finely legs speak. Around a handover every token matters: from the step before the
last byte of main's KV leaves (the far site hears of both at once) the relay says each token as it
comes; main does so while there is a relay and a few tokens longer, where the summary looks for the
handoff's gap; and either does while the machine paces, which releases what comes one by one. All
else comes in long runs.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from orchestrator.lifecycle.handover import pace_s
from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.request import NEAR_HANDOFF, Leg
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.replay.lines.model import LineModel, Sharing
from orchestrator.replay.setup import ReplaySetup
from orchestrator.replay.worker import ModelWorker
from orchestrator.state.actions import Action, Emit, Fail, Finish, Send
from orchestrator.state.events import Arrived, Event, Heard, LinkTold, Ticked, WorkerUp
from orchestrator.state.views import SAME_SITE_RTT_S
from orchestrator.virtual.gateway import IdWatch
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import (
    DownMessage,
    Role,
    SendKV,
    Start,
    TokenRun,
    UpMessage,
)

LOAD_S = 1.0  # a worker tells its load so often
ROUND_S = 60.0


@dataclass(slots=True, eq=False)
class Outcome:
    """What came of one request: when it asked, when its tokens were released, how it ended.

    Seconds of virtual time; None: that token never came.
    """

    name: str
    asked_at: float
    first_at: float | None = None
    second_at: float | None = None
    last_at: float | None = None
    tokens: int = 0
    end: Finish | Fail | None = None


class Replay:
    """A deployment in virtual time. Same inputs, same outcomes, to the last bit."""

    def __init__(self, setup: ReplaySetup) -> None:
        core = setup.core
        # Nothing is lost here, so nobody needs to be asked why it is silent.
        patient = max(core.deadlines.resync, 4 * setup.report_s)
        core = replace(core, deadlines=replace(core.deadlines, resync=patient))
        self.schedule = Schedule()
        self.machine = Machine(core, IdWatch)
        self.outcomes: dict[str, Outcome] = {}
        self.events = 0  # told to the machine
        self._setup = setup
        self._asks: deque[tuple[float, Arrived]] = deque()  # to come
        self._open = 0  # requests that have not ended
        self._steps_told: dict[str, float] = {}  # each worker's speed, as last told
        self._tick_at = inf
        self._relayed: set[str] = set()  # open requests that had a relay and may still hand over
        self._moving: dict[str, list[Transfer]] = {}
        self._delays = {(w.site, w.site): SAME_SITE_RTT_S / 2 for w in setup.workers}
        for line in setup.lines:
            a, b = line.between
            self._delays[a, b] = self._delays[b, a] = line.delay_s
        self._lines = self._lay_lines()
        self.workers = {
            spec.name: ModelWorker(
                spec,
                self.schedule,
                say=self._say,
                move=self._move,
                closed=self._closed,
                report_s=setup.report_s,
                every_step=setup.every_step,
            )
            for spec in setup.workers
        }
        self._worker_delay = {
            spec.name: self._delays[core.gateway_site, spec.site] for spec in setup.workers
        }
        self._bring_up()

    def ask(self, at: float, arrived: Arrived) -> None:
        """A client asks at `at`. ValueError if the request needs what is not modelled."""
        if arrived.stop_strings:
            raise ValueError(f"request {arrived.request}: modelled tokens have no stop strings")
        self.outcomes[arrived.request] = Outcome(name=arrived.request, asked_at=at)
        self._open += 1
        self._asks.append((at, arrived))

    def run(self) -> None:
        """Go on until every request has ended and nothing moves any more."""
        self._asks = deque(sorted(self._asks, key=lambda ask: ask[0]))
        self._plan_ask()
        self._beat()
        while self._open:
            self.schedule.run(self.schedule.now + ROUND_S)
        self.schedule.run(self.schedule.now + ROUND_S)

    def _plan_ask(self) -> None:
        """One request at a time waits in the schedule: its heap stays small."""
        if self._asks:
            self.schedule.at(self._asks[0][0], self._ask)

    def _ask(self) -> None:
        arrived = self._asks.popleft()[1]
        self._plan_ask()
        self._tell(arrived)

    # ------------------------------------------------------------ before the first request

    def _lay_lines(self) -> dict[tuple[str, str], Line]:
        rates = {
            pair: line.bytes_per_s
            for line in self._setup.lines
            for pair in (line.between, line.between[::-1])
        }
        return {
            pair: Line(
                self.schedule,
                LineModel(
                    bytes_per_s=rates.get(pair, self._setup.site_bytes_per_s),
                    delay_s=delay_s,
                    share=Sharing.FIFO,
                ),
                leaving=self._leaving,
                landed=self._landed,
            )
            for pair, delay_s in self._delays.items()
        }

    def _bring_up(self) -> None:
        for line in self._setup.lines:
            a, b = line.between
            self._tell(
                LinkTold(
                    site_a=a,
                    site_b=b,
                    rtt_s=2 * line.delay_s,
                    bytes_per_s=line.bytes_per_s,
                )
            )
        for worker in self.workers.values():
            spec = worker.spec
            self._tell(
                WorkerUp(
                    worker=spec.name,
                    site=spec.site,
                    pool=spec.pool,
                    roles=spec.roles,
                    slots=spec.slots,
                    max_context=spec.max_context,
                    kv_total_tokens=worker.free_tokens,
                    kv_bytes_per_token=spec.kv_bytes_per_token,
                )
            )
            self._tell(Heard(worker=spec.name, message=worker.load()))

    # ------------------------------------------------------------ the machine

    def _tell(self, event: Event) -> None:
        now = self.schedule.now
        self.events += 1
        actions = self.machine.handle(event, now)
        if actions:
            self._act(actions, now)
        due = self.machine.next_deadline()
        if due is not None and due < self._tick_at:
            self._tick_at = due
            self.schedule.at(due, self._tick, due)

    def _tick(self, planned: float) -> None:
        """A deadline may have moved since this was planned."""
        if planned != self._tick_at:
            return
        self._tick_at = inf
        due = self.machine.next_deadline()
        if due is None:
            return
        if due <= self.schedule.now:
            self._tell(Ticked())
        else:
            self._tick_at = due
            self.schedule.at(due, self._tick, due)

    def _act(self, actions: Sequence[Action], now: float) -> None:
        lines: dict[str, list[DownMessage]] = {}
        for action in actions:
            if isinstance(action, Send):
                message, worker = action.message, action.worker
                if worker in lines:
                    lines[worker].append(message)
                else:
                    lines[worker] = [message]
                if isinstance(message, Start) and message.role is Role.RELAY:
                    self._relayed.add(message.request)
            elif isinstance(action, Emit):
                self._emitted(action, now)
            else:
                outcome = self.outcomes[action.request]
                outcome.end = action
                self._open -= 1
                self._relayed.discard(action.request)
        for worker, messages in lines.items():
            self.schedule.at(now + self._worker_delay[worker], self.workers[worker].take, messages)

    def _emitted(self, emit: Emit, now: float) -> None:
        outcome = self.outcomes[emit.request]
        outcome.tokens = emit.start + len(emit.ids)
        outcome.last_at = now
        if outcome.first_at is None:
            outcome.first_at = now
        if outcome.second_at is None and outcome.tokens > 1:
            outcome.second_at = now

    # ------------------------------------------------------------ to and from workers

    def _say(self, worker: ModelWorker, messages: list[UpMessage]) -> None:
        name = worker.spec.name
        self.schedule.at(self.schedule.now + self._worker_delay[name], self._heard, name, messages)

    def _heard(self, worker: str, messages: Sequence[UpMessage]) -> None:
        for message in messages:
            self._tell(Heard(worker=worker, message=message))
            if self._relayed and isinstance(message, TokenRun) and message.request in self._relayed:
                self._tune(message)

    def _beat(self) -> None:
        """Every worker whose speed has changed tells its load; nothing else of it is looked at."""
        if not self._open:
            return
        for name, worker in self.workers.items():
            step_s = worker.step_s()
            if self._steps_told.get(name) != step_s:
                self._steps_told[name] = step_s
                self._say(worker, [worker.load()])
        self.schedule.after(LOAD_S, self._beat)

    def _move(self, worker: ModelWorker, leg: ModelLeg, send: SendKV, at: float) -> None:
        """A leg has all the KV that another wants, who was offered it at `at`."""
        target = send.request, send.to_epoch
        to = self.workers[send.to_worker]
        if to is worker:
            self.schedule.after(0.0, to.land, target)
            return
        sites = worker.spec.site, to.spec.site
        per_token = worker.spec.kv_bytes_per_token
        answered_at = at + 2 * self._delays[sites]
        transfer = Transfer(
            source=leg.key,
            target=target,
            to_worker=send.to_worker,
            line=self._lines[sites],
            nbytes=(send.stop - send.start) * per_token,
            last_nbytes=leg.last_chunk * per_token,
            since=max(answered_at, leg.began_at or 0.0),
        )
        self._moving.setdefault(send.request, []).append(transfer)
        transfer.line.send(transfer)

    def _landed(self, transfer: Transfer) -> None:
        if transfer.dropped:
            return
        self._forget(transfer)
        to = self.workers[transfer.to_worker]
        to.land(transfer.target)
        relay = self._relay_before(transfer)
        if relay is not None:
            to.race(transfer.target)

    def _closed(self, key: LegKey) -> None:
        for transfer in tuple(self._moving.get(key[0], ())):
            if key in (transfer.source, transfer.target):
                self._forget(transfer)
                transfer.line.drop(transfer)

    def _forget(self, transfer: Transfer) -> None:
        moving = self._moving[transfer.target[0]]
        moving.remove(transfer)
        if not moving:
            del self._moving[transfer.target[0]]

    # ------------------------------------------------------------ how finely legs speak

    def _leaving(self, transfer: Transfer, at: float) -> None:
        """The last byte of a transfer leaves at `at`."""
        relay = self._relay_before(transfer)
        if relay is not None:
            self.workers[relay.worker].race((transfer.target[0], relay.epoch), at)

    def _relay_before(self, transfer: Transfer) -> Leg | None:
        """The relay that decodes while this transfer brings main's KV."""
        name, epoch = transfer.target
        if name not in self._relayed:
            return None
        req = self.machine.requests[name]
        main = req.main
        return req.relay if main is not None and main.epoch == epoch else None

    def _tune(self, run: TokenRun) -> None:
        """A leg of a request that was relayed has spoken: see the module's docstring."""
        name = run.request
        req = self.machine.requests[name]
        relay, main = req.relay, req.main
        if relay is not None:
            if run.epoch == relay.epoch and pace_s(self.machine.ctx, req) is not None:
                self.workers[relay.worker].race((name, relay.epoch))
            return
        index = req.account.handoff_index
        if main is None or (index is not None and req.released <= index + NEAR_HANDOFF):
            return
        if pace_s(self.machine.ctx, req) is None:
            self.workers[main.worker].calm((name, main.epoch))
            self._relayed.discard(name)
