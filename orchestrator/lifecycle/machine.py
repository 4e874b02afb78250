"""The one door of the core: events in, actions out; no clock, socket or randomness inside."""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from orchestrator.lifecycle import deadlines
from orchestrator.lifecycle.accept import recheck, sole_of, take_next
from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.ending import fail, finish, stop_all, tell_failure
from orchestrator.lifecycle.handover import end_relay
from orchestrator.lifecycle.phases import RACE
from orchestrator.lifecycle.recover import find_place, lose_leg, reconcile
from orchestrator.lifecycle.release import release
from orchestrator.lifecycle.request import Request, StopWatch
from orchestrator.lifecycle.spoken import SPOKEN, LegMessage
from orchestrator.lifecycle.waiting import WaitingLine
from orchestrator.policy.prefixes import BlockNames, PrefixBook, short_names
from orchestrator.policy.router import Refusal
from orchestrator.state.actions import Action, Failure
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import (
    Arrived,
    ClientGone,
    Event,
    Heard,
    LinkTold,
    Reconnected,
    RolesTold,
    StoreHolds,
    Ticked,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from orchestrator.state.links import LinkView
from orchestrator.state.views import WorkerView, World
from workers.api.messages import PREFILL, KVFailed, Landed, Load, NextTokens, Stop, TokenRun

# A dead leg that still speaks is stopped again, at most this often.
STOP_AGAIN_S = 1.0
TOMBSTONES = 4096
# So many entries of the heap of deadlines may be out of date, besides one for every request.
STALE_DUES = 64
# A feed repeats this many tokens that the leg has not confirmed: a feed that was lost, or overtaken
# on the way, is made good by the next one instead of a resync.
FEED_OVERLAP = 4


class Machine:
    """All requests of one gateway.

    `handle` never waits. `stop_watch(stop_strings)` makes the matcher for one request's stop
    strings, `names` names what prompts contain. Events about unknown requests, legs or workers are
    dropped and counted.
    """

    def __init__(
        self,
        config: CoreConfig,
        stop_watch: Callable[[tuple[str, ...]], StopWatch],
        names: BlockNames | None = None,
    ) -> None:
        self.ctx = Context(
            config=config,
            world=World(gateway_site=config.gateway_site, site_bytes_per_s=config.site_bytes_per_s),
            prefixes=PrefixBook(names),
        )
        self.requests: dict[str, Request] = {}
        self._stop_watch = stop_watch
        self._waiting = WaitingLine()
        self._due: list[tuple[float, str]] = []
        self._stopped_at: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._at_work: Request | None = None  # the request that is being dealt with

    # ------------------------------------------------------------ the door

    def handle(self, event: Event, now: float) -> list[Action]:
        """Tell the machine what happened at `now` (seconds, monotonic); do what it answers."""
        ctx = self.ctx
        ctx.actions = []
        ctx.world.now = now
        self._at_work = None
        _HANDLERS[type(event)](self, event, now)
        if self._due and self._due[0][0] <= now:
            self._expire(now)
        if ctx.room_made:
            ctx.room_made = False
            if self._waiting.length:
                self._admit(now)
        return ctx.actions

    def abandon(self) -> list[Action]:
        """After `handle` raised, which is a defect: end the request it was at, and only that one.

        Gives the actions that were already decided as well; every other request goes on.
        """
        self.ctx.counts["defects"] += 1
        req = self._at_work
        if req is not None and req.name in self.requests:
            fail(self.ctx, req, Failure.INTERNAL, "the request met a defect of the gateway")
            tell_failure(self.ctx, req)
            self._forget(req)
        return self.ctx.actions

    def next_deadline(self) -> float | None:
        """When `Ticked` must be told at the latest; always later than the last `now`."""
        due = self._due
        while due:
            at, name = due[0]
            req = self.requests.get(name)
            if req is not None and req.due_at == at:
                return at
            heapq.heappop(due)
        return None

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    # ------------------------------------------------------------ steps after every event

    def _settle(self, req: Request, now: float) -> None:
        """What follows every event of a request: duties, feeds, the handover, releases."""
        self._at_work = req
        ctx, name = self.ctx, req.name
        if not req.over:
            reconcile(ctx, req, now)
            if req.parks and recheck(ctx, req, now):
                reconcile(ctx, req, now)
            if req.phase is RACE:
                end_relay(ctx, req, now)
        if not req.over:
            law = len(req.law.ids)
            for leg in req.legs.values():
                if leg.role is not PREFILL and leg.sent < law:
                    ctx.feed(req, leg, max(leg.fed, leg.sent - FEED_OVERLAP), now)
        release(ctx, req, now)
        if req.over:
            end = finish if req.failed is None else tell_failure
            end(ctx, req)
            self._forget(req)
            return
        req.sole = sole_of(req)
        if not req.legs:
            self._waiting.add(req)
        elif self._waiting.length:
            self._waiting.placed(name)
        due = deadlines.next_due(ctx, req)
        if due != req.due_at:
            req.due_at = due
            heapq.heappush(self._due, (due, name))
            if len(self._due) > STALE_DUES + 2 * len(self.requests):
                self._drop_stale_dues()

    def _drop_stale_dues(self) -> None:
        """Of deadlines that moved and requests that ended, which would stay until their time."""
        dues = ((req.due_at, req.name) for req in self.requests.values())
        self._due = [(at, name) for at, name in dues if at is not None]
        heapq.heapify(self._due)

    def _forget(self, req: Request) -> None:
        self.requests.pop(req.name, None)
        if self._waiting.length:
            self._waiting.discard(req.name)

    def _expire(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            due, name = heapq.heappop(self._due)
            req = self.requests.get(name)
            if req is None or req.due_at != due:
                continue
            req.due_at = None
            self._at_work = req
            deadlines.expire(self.ctx, req, now)
            self._settle(req, now)

    def _admit(self, now: float) -> None:
        """Requests that wait are tried in order, until one finds every worker busy."""
        passed = 0
        while (name := self._waiting.behind(passed)) is not None:
            req = self._at_work = self.requests[name]
            refusal = find_place(self.ctx, req, now)
            if refusal is Refusal.BUSY:
                return
            if refusal is Refusal.TOO_LONG and req.account.routed_at is None:
                self._too_long(req)
            self._settle(req, now)
            passed += name in self._waiting

    # ------------------------------------------------------------ handlers

    def _arrived(self, event: Arrived, now: float) -> None:
        if event.request in self.requests:
            self.ctx.counts["repeated_requests"] += 1
            return
        req = Request(
            spec=event,
            mode=event.handoff or self.ctx.config.handoff,
            arrived_at=now,
            watch=self._stop_watch(event.stop_strings) if event.stop_strings else None,
            prefix=self.ctx.prefixes.names.of_prompt(event.prompt_ids, event.cache_salt),
        )
        self.requests[req.name] = self._at_work = req
        refusal = Refusal.BUSY if self._waiting else None
        refusal = refusal or find_place(self.ctx, req, now)
        if refusal is Refusal.TOO_LONG:
            self._too_long(req)
        elif refusal is Refusal.NOBODY:
            fail(self.ctx, req, Failure.UNAVAILABLE, "no live worker can serve the request")
        elif refusal is Refusal.BUSY:
            if len(self._waiting) >= self.ctx.config.queue_limit:
                self._turn_away(req, now)
            req.waiting_since = now
            if self._waiting:
                self.ctx.room_made = True  # perhaps nobody can serve those before it
        self._settle(req, now)

    def _turn_away(self, req: Request, now: float) -> None:
        """The queue is full: `req` goes, or the last of a tenant that has more than its share."""
        gives_way = self.requests.get(self._waiting.in_excess(req.spec.tenant) or "")
        unlucky = req if gives_way is None else gives_way
        fail(self.ctx, unlucky, Failure.OVERLOADED, "every worker is busy and the queue full")
        if unlucky is not req:
            self._settle(unlucky, now)
            self._at_work = req

    def _too_long(self, req: Request) -> None:
        fail(self.ctx, req, Failure.TOO_LONG, "prompt and output fit no worker's memory")

    def _client_gone(self, event: ClientGone, now: float) -> None:
        req = self.requests.get(event.request)
        if req is not None:
            self.ctx.counts["clients_gone"] += 1
            stop_all(self.ctx, req)
            self._forget(req)

    def _heard(self, event: Heard, now: float) -> None:
        message = event.message
        if isinstance(message, Load):
            view = self.ctx.world.workers.get(event.worker)
            if view is not None:
                before = view.room
                view.report(message)
                self.ctx.room_made = self.ctx.room_made or view.room > before
                self._links_seen(view, message, now)
            return
        if isinstance(message, NextTokens):
            self._next_tokens(event.worker, message, now)
        else:
            self._leg_spoke(event.worker, message, now)

    def _next_tokens(self, worker: str, step: NextTokens, now: float) -> None:
        """Row by row, as if each were a run of its own."""
        for name, epoch, index, token, hist, fed in zip(
            step.requests, step.epochs, step.indices, step.ids, step.hists, step.feds, strict=True
        ):
            req = self.requests.get(name)
            if req is not None:
                leg = req.sole
                if leg is not None and leg.epoch == epoch and leg.worker == worker:
                    self._at_work = req
                    if fed <= leg.fed and take_next(self.ctx, req, index, token, hist, now):
                        continue
            run = TokenRun(request=name, epoch=epoch, index=index, ids=(token,), hist=hist, fed=fed)
            self._leg_spoke(worker, run, now)

    def _leg_spoke(self, worker: str, message: LegMessage, now: float) -> None:
        req = self.requests.get(message.request)
        leg = req.legs.get(message.epoch) if req is not None else None
        if req is None or leg is None:
            self._dead_leg_spoke(worker, message, now)
            return
        if worker != leg.worker and not _source_tells(req, worker, message):
            self._dead_leg_spoke(worker, message, now)
            return
        self._at_work = req
        SPOKEN[type(message)](self.ctx, req, leg, message, now)
        self._settle(req, now)

    def _links_seen(self, view: WorkerView, load: Load, now: float) -> None:
        """What a worker sees of its site's links. The round trip is that of the way back too."""
        world = self.ctx.world
        for seen in load.links:
            there, back = world.link(view.site, seen.site), world.link(seen.site, view.site)
            if there is not None and back is not None:
                there.report(view.name, seen, now)
                back.seen_rtt = there.seen_rtt

    def _dead_leg_spoke(self, worker: str, message: LegMessage, now: float) -> None:
        """Rule 1 drops it. A leg that was stopped but still decodes is told again."""
        self.ctx.counts["stale_messages"] += 1
        if not isinstance(message, TokenRun | Landed) or worker not in self.ctx.world.workers:
            return
        key = (message.request, message.epoch)
        last = self._stopped_at.get(key)
        if last is None or now - last >= STOP_AGAIN_S:
            self._stopped_at[key] = now
            self._stopped_at.move_to_end(key)
            if len(self._stopped_at) > TOMBSTONES:
                self._stopped_at.popitem(last=False)
            self.ctx.send(worker, Stop(request=message.request, epoch=message.epoch))

    def _worker_up(self, event: WorkerUp, now: float) -> None:
        if event.worker in self.ctx.world.workers:
            self._drop_worker(event.worker, now)
        self.ctx.world.workers[event.worker] = WorkerView(up=event, draining=event.draining)
        self.ctx.prefixes.belongs(event.worker, event.site, event.pool)
        self.ctx.room_made = True

    def _worker_lost(self, event: WorkerLost, now: float) -> None:
        if event.worker in self.ctx.world.workers:
            self.ctx.counts["workers_lost"] += 1
            self._drop_worker(event.worker, now)

    def _drop_worker(self, worker: str, now: float) -> None:
        self.ctx.world.drop_worker(worker)
        self.ctx.room_made = True  # with its pool gone, any role may serve those who wait
        self.ctx.prefixes.forget(worker)
        for req in list(self.requests.values()):
            lost = [leg for leg in req.legs.values() if leg.worker == worker]
            for leg in lost:
                lose_leg(self.ctx, req, leg, exclude=False)
            if lost:
                self._settle(req, now)

    def _worker_draining(self, event: WorkerDraining, now: float) -> None:
        view = self.ctx.world.workers.get(event.worker)
        if view is not None:
            view.draining = True

    def _worker_returned(self, event: WorkerReturned, now: float) -> None:
        view = self.ctx.world.workers.get(event.worker)
        if view is not None:
            view.draining = False
            self.ctx.room_made = True

    def _roles_told(self, event: RolesTold, now: float) -> None:
        view = self.ctx.world.workers.get(event.worker)
        if view is not None and view.roles != event.roles:
            self.ctx.counts["roles_changed"] += 1
            view.roles = event.roles
            # A role that somebody has now, or that nobody has any more: then any worker may serve.
            self.ctx.room_made = True

    def _reconnected(self, event: Reconnected, now: float) -> None:
        for req in list(self.requests.values()):
            legs = [leg for leg in req.legs.values() if leg.worker == event.worker]
            for leg in legs:
                deadlines.ask_again(self.ctx, req, leg, now)
            if legs:
                self._settle(req, now)

    def _link_told(self, event: LinkTold, now: float) -> None:
        links, rate = self.ctx.world.links, max(1.0, event.bytes_per_s)
        for ends in ((event.site_a, event.site_b), (event.site_b, event.site_a)):
            link = links.setdefault(ends, LinkView(event.rtt_s, rate))
            link.told_rtt_s, link.told_bytes_per_s = event.rtt_s, rate
        self.ctx.room_made = True  # the first word of a link opens a way

    def _store_holds(self, event: StoreHolds, now: float) -> None:
        added, removed = short_names(event.added), short_names(event.removed)
        self.ctx.prefixes.store_holds(event.site, event.pool, event.whole, added, removed)

    def _ticked(self, event: Ticked, now: float) -> None:
        """Deadlines are looked at after every event."""


def _source_tells(req: Request, worker: str, message: LegMessage) -> bool:
    """A leg's own worker speaks for it; of KV that will not come its source's may tell too."""
    source = req.legs.get(message.source) if isinstance(message, KVFailed) else None
    return source is not None and source.worker == worker


_HANDLERS: dict[type[Any], Callable[[Machine, Any, float], None]] = {
    Arrived: Machine._arrived,
    ClientGone: Machine._client_gone,
    Heard: Machine._heard,
    WorkerUp: Machine._worker_up,
    WorkerLost: Machine._worker_lost,
    WorkerDraining: Machine._worker_draining,
    WorkerReturned: Machine._worker_returned,
    RolesTold: Machine._roles_told,
    Reconnected: Machine._reconnected,
    LinkTold: Machine._link_told,
    StoreHolds: Machine._store_holds,
    Ticked: Machine._ticked,
}
