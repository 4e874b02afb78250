"""A gateway process in virtual time: the machine, the members, the site leases."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.request import StopWatch
from orchestrator.membership.leases import Change, Draining, Left, Present, SiteLeases
from orchestrator.membership.members import Members
from orchestrator.membership.reach import Lost, News
from orchestrator.membership.reports import LeaseRefused, Report
from orchestrator.membership.stores import StoreVersions
from orchestrator.state.actions import Action, Send
from orchestrator.state.events import ClientGone, Event, Heard, LinkTold, Ticked
from orchestrator.virtual.channel import VirtualChannel
from orchestrator.virtual.client import Client
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import ClockError, Process
from orchestrator.virtual.promises import Breach, Promise, defect
from orchestrator.virtual.schedule import Schedule
from orchestrator.virtual.setup import Setup
from orchestrator.virtual.worker import VirtualWorker
from workers.api.messages import Start, UpMessage

LAPSE_S = 0.1  # so long after its time a lease may be seen to have lapsed


class IdWatch:
    """A stop watch over token ids: the stop string "7,8" matches the ids 7, 8 in a row."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [tuple(int(part) for part in stop.split(",")) for stop in stops]
        self._ids: list[int] = []
        self.matched: str | None = None

    def push(self, ids: Sequence[int]) -> int | None:
        for token in ids:
            self._ids.append(token)
            for stop in self._stops:
                if tuple(self._ids[-len(stop) :]) == stop:
                    self.matched = ",".join(map(str, stop))
                    return len(self._ids)
        return None


class Entry(NamedTuple):
    """One event of a gateway's log and what the core answered.

    `at` is when, in real time, `now` the same on the gateway's own clock.
    """

    at: float
    now: float
    event: Event
    actions: list[Action]


class VirtualGateway:
    """One life of a gateway: what `live.driver`, `live.roster` and `live.gateway` do, in one.

    It lives from its construction until its process is killed.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        schedule: Schedule,
        network: Network,
        workers: dict[str, VirtualWorker],
        breach: Callable[[Breach], None],
    ) -> None:
        self.name = name
        core = setup.core
        # Every life is on the same machine, with its clock and its line: named by its place.
        place = name.split("/")[0]
        self.process = Process(
            place, core.gateway_site, schedule, setup.clocks.get(place, ClockError())
        )
        self.process.start()
        self.machine = Machine(replace(core, gateway=name), _watch)
        self.members = Members(frozenset())
        self.leases = SiteLeases(setup.sites, setup.lease_s)
        self.channels: dict[str, VirtualChannel] = {}
        self.clients: dict[str, Client] = {}
        self.log: list[Entry] = []
        self._schedule = schedule
        self._network = network
        self._workers = workers
        self._breach = breach
        self._unreachable_s = core.deadlines.silence
        self._tick_at: float | None = None
        self._lease_at: float | None = None
        self._lease_s = setup.lease_s
        self._renewed: dict[str, float] = {}  # when each site's lease was renewed last
        self._stores = StoreVersions()
        self._to_flush: dict[str, VirtualChannel] = {}
        self._flushing = False
        for site_a, site_b in combinations(setup.sites, 2):
            self.tell(
                LinkTold(
                    site_a=site_a,
                    site_b=site_b,
                    rtt_s=2 * setup.one_way_s,
                    bytes_per_s=setup.bytes_per_s,
                )
            )

    # ------------------------------------------------------------ clients

    def take(self, client: Client) -> None:
        """A client's request has come."""
        self.clients[client.name] = client
        client.gateway = self.name
        self.tell(client.ask.arrived)

    def leave(self, client: Client) -> None:
        """A client closed its connection."""
        if client.end is None:
            del self.clients[client.name]
            self.tell(ClientGone(request=client.name))

    # ------------------------------------------------------------ agents and workers

    def renew(self, report: Report) -> dict[str, str] | None:
        """An agent's report; the versions of its site's stores that are known then, by pool.

        None: it was refused.
        """
        try:
            changes = self.leases.renew(report, self.process.time())
        except LeaseRefused:
            return None
        self._renewed[report.site] = self.process.time()
        self._change(changes)
        for _, news in self._stores.hear(report):
            if news is not None:
                self.tell(news)
        return dict(self._stores.of(report.site))

    def news(self, worker: str, news: Iterable[News]) -> None:
        """What a channel has to tell of a worker's reach."""
        for item in news:
            channel = self.channels.get(worker)
            if isinstance(item, Lost) and channel is not None:
                channel.lost()
            self._tell_all(self.members.learn(worker, item))
            known = worker in self.machine.ctx.world.workers
            if worker in self.members.by_name and known is isinstance(item, Lost):
                self._broke(Promise.KNOWN, f"{worker}: {item}, known to the core: {known}")

    def heard(self, worker: str, messages: Sequence[UpMessage]) -> None:
        """One line of a worker's token stream."""
        self._tell_all(self.members.heard(worker, messages))

    def _change(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, Present):
                self._join(change)
            elif isinstance(change, Left):
                self._tell_all(self.members.remove(change.worker))
                channel = self.channels.pop(change.worker, None)
                if channel is not None:
                    channel.close()
            elif isinstance(change, Draining):
                self._tell_all(self.members.drain(change.worker))
            else:
                self._tell_all(self.members.revive(change.worker))
        self._plan_lapse()

    def _join(self, change: Present) -> None:
        report = change.worker
        if self.members.join(report.name, change.site, report.pool, report.roles):
            self.channels[report.name] = VirtualChannel(
                self, self._workers[report.name], self._network, self._unreachable_s
            )

    def _plan_lapse(self) -> None:
        due = self.leases.next_deadline()
        if due is not None and due != self._lease_at:
            self._lease_at = due
            self.process.alarm(due, self._lapse, due)

    def _lapse(self, due: float) -> None:
        if self._lease_at == due:
            self._lease_at = None
            self._change(self.leases.expire(self.process.time()))

    # ------------------------------------------------------------ the core

    def _tell_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell the machine what happened now, and do what it answers."""
        now = self.process.time()
        try:
            actions = self.machine.handle(event, now)
        except Exception as error:
            self._breach(defect(self.name, self._schedule.now, error))
            actions = self.machine.abandon()
        self.log.append(Entry(self._schedule.now, now, event, actions))
        for action in actions:
            self._act(action)
        self._check(now, event, actions)
        due = self.machine.next_deadline()
        if due is not None and due != self._tick_at:
            self._tick_at = due
            self.process.alarm(due, self._tick, due)

    def _tick(self, due: float) -> None:
        if self._tick_at == due:
            self._tick_at = None
            self.tell(Ticked())

    def _act(self, action: Action) -> None:
        if isinstance(action, Send):
            channel = self.channels.get(action.worker)
            if channel is not None and self.members.deliverable(action.worker, action.message):
                channel.send(action.message)
                self._flush_soon(action.worker, channel)
            return
        client = self.clients.get(action.request)
        if client is not None:
            client.take(action, self._schedule.now)
        else:
            self._broke(Promise.ENDS_ONCE, f"{action.request} had left: {type(action).__name__}")

    def _flush_soon(self, worker: str, channel: VirtualChannel) -> None:
        """All that one turn of the loop has for a worker travels together."""
        self._to_flush[worker] = channel
        if not self._flushing:
            self._flushing = True
            self.process.after(0.0, self._flush)

    def _flush(self) -> None:
        channels, self._to_flush = self._to_flush, {}
        self._flushing = False
        for channel in channels.values():
            channel.flush()

    # ------------------------------------------------------------ promises

    def _check(self, now: float, event: Event, actions: list[Action]) -> None:
        """What must be true after every event."""
        about = event.message if isinstance(event, Heard) else event
        req = self.machine.requests.get(getattr(about, "request", ""))
        if req is not None and req.phase is not req.joint_phase():
            self._broke(Promise.PHASES, f"{req.name}: {req.phase}, it is {req.joint_phase()}")
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Start):
                view = self.machine.ctx.world.workers.get(action.worker)
                if view is None:
                    continue
                member = self.members.by_name.get(view.name)
                if member is not None and member.draining:
                    self._broke(Promise.DRAINED, f"{action.message.role} to {view.name}")
                lapsed = now > self._renewed[view.site] + self._lease_s + LAPSE_S
                if lapsed and self._schedule.now > self.process.thawed_at + LAPSE_S:
                    self._broke(Promise.LEASED, f"{view.name}, renewed {self._renewed[view.site]}")
                if view.tokens_booked > view.up.kv_total_tokens:
                    seen = f"{view.tokens_booked} of {view.up.kv_total_tokens} tokens"
                    self._broke(Promise.NOT_OVERBOOKED, f"{view.name}: {seen}")
        due = self.machine.next_deadline()
        if due is not None and due <= now:
            self._broke(Promise.FUTURE_DEADLINE, f"due at {due}, it is {now}")

    def _broke(self, promise: Promise, seen: str) -> None:
        at = self._schedule.now
        self._breach(Breach(promise=promise, who=self.name, at=at, seen=seen))


def _watch(stops: tuple[str, ...]) -> StopWatch:
    return IdWatch(stops)
