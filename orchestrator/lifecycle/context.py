"""What every step of a request's life works with: the world, the books, the outgoing actions."""

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.lifecycle.request import Leg, Request
from orchestrator.policy.prefixes import PrefixBook
from orchestrator.policy.router import expected_output
from orchestrator.state.actions import Action, Send
from orchestrator.state.config import CoreConfig
from orchestrator.state.links import Transfer
from orchestrator.state.views import Booking, World
from workers.api.messages import (
    MAIN,
    PREFILL,
    RELAY,
    DownMessage,
    Feed,
    Role,
    SendKV,
    Start,
    Stop,
)

_NAMES = {role: role.value for role in Role}  # a plain string of each


@dataclass(slots=True)
class Context:
    """Shared by the files of this folder; owned by the machine."""

    config: CoreConfig
    world: World
    prefixes: PrefixBook
    actions: list[Action] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # things worth counting, by name
    room_made: bool = False  # some worker has room again: the queue is worth a look

    def send(self, worker: str, message: DownMessage) -> None:
        self.actions.append(Send(worker=worker, message=message))

    # ------------------------------------------------------------ legs

    def open_leg(
        self, req: Request, role: Role, worker: str, now: float, *, source: Leg | None, reserve: int
    ) -> Leg:
        """Start a leg; with a source its KV begins to move as well."""
        view = self.world.workers[worker]
        law = len(req.law.ids)
        cover = source.base if source is not None else 0
        leg = Leg(
            key=(req.name, req.next_epoch),
            epoch=req.next_epoch,
            role=role,
            worker=worker,
            site=view.site,
            base=law,
            cover=cover,
            opened_at=now,
            heard=law,
            fed=law,
            sent=law,
            resync_wait=self.config.deadlines.resync,
        )
        req.next_epoch += 1
        req.add(leg)
        req.account.workers[_NAMES[role]] = worker
        spec = req.spec
        booking = Booking(
            role=role,
            tokens=reserve,
            prefill_tokens=req.prompt + law if role is PREFILL else 0,
        )
        view.book(leg.key, booking)
        self.send(
            worker,
            Start(
                request=req.name,
                epoch=leg.epoch,
                gateway=self.config.gateway,
                role=role,
                prompt_ids=spec.prompt_ids,
                law_ids=tuple(req.law.ids),
                cover=cover,
                limit=spec.limit,
                min_tokens=spec.min_tokens,
                stop_ids=spec.stop_ids,
                sampling=spec.sampling,
                reserve=reserve,
                cache_salt=spec.cache_salt,
                tenant=spec.tenant,
            ),
        )
        if source is not None:
            self.connect(req, source, leg, now)
        return leg

    def connect(self, req: Request, source: Leg, target: Leg, now: float) -> None:
        """Have `source` send `target` the KV it lacks."""
        target.source = source.epoch
        target.source_at, target.source_site = now, source.site
        prompt = req.prompt
        stop = prompt + target.cover
        left = self.world.workers[source.worker].leaves(stop, source.gone)
        self.send(
            source.worker,
            SendKV(
                request=req.name,
                epoch=source.epoch,
                to_worker=target.worker,
                to_epoch=target.epoch,
                start=0,
                stop=stop,
                codec=self.config.codec,
                weight=req.spec.weight,
            ),
        )
        link = self.world.link(source.site, target.site)
        crosses = link is not None and source.site != target.site
        if not crosses and left == stop:
            return
        lacking = stop - self.prefixes.hits(req.prefix, (target.worker,)).get(target.worker, 0)
        sent = lacking * left // stop
        target.gone = lacking - sent
        if link is not None and crosses:
            per_token = self.world.workers[target.worker].up.kv_bytes_per_token
            link.enqueue(target.key, Transfer(source.worker, sent * per_token, now))
            target.queued_on += (link,)

    def stop_leg(self, req: Request, leg: Leg) -> None:
        """End a leg, whatever it does; also one whose worker is gone (the driver keeps trying)."""
        self.send(leg.worker, Stop(request=req.name, epoch=leg.epoch))
        self.forget_leg(req, leg)

    def forget_leg(self, req: Request, leg: Leg) -> None:
        """Take a leg out of the request and the books; legs it was the source of lose it."""
        leg.ended_at = self.world.now
        req.remove(leg)
        view = self.world.workers.get(leg.worker)
        if view is not None and view.unbook(leg.key):
            self.room_made = True
        if leg.queued_on:
            self.unqueue(leg)
        for other in req.legs.values():
            if other.source == leg.epoch and not other.landed:
                other.source = None
        if leg.role is RELAY:
            req.account.relay_step_s = leg.clock.step_s or req.account.relay_step_s
            req.relay_finishes = False

    def unqueue(self, leg: Leg) -> None:
        """Nothing of this leg's KV is under way any more."""
        for link in leg.queued_on:
            link.unqueue(leg.key)
        leg.queued_on = ()

    def settle(self, req: Request, leg: Leg) -> None:
        """All of a leg's prompt is computed or here: its worker keeps what it keeps of it."""
        view = self.world.workers.get(leg.worker)
        if view is not None and view.settle(leg.key, req.prompt, leg.gone):
            self.room_made = True

    def free_slot(self, leg: Leg) -> None:
        """The leg only keeps its KV from now on: its slot is somebody else's."""
        view = self.world.workers.get(leg.worker)
        booking = view.bookings.get(leg.key) if view is not None else None
        if view is not None and booking is not None and booking.decoding_slot:
            view.book(leg.key, Booking(booking.role, booking.tokens, decoding_slot=False))
            self.room_made = True

    def take_slot(self, leg: Leg) -> None:
        """The leg decodes again, also when every slot is taken."""
        view = self.world.workers.get(leg.worker)
        booking = view.bookings.get(leg.key) if view is not None else None
        if view is not None and booking is not None:
            view.book(leg.key, booking._replace(decoding_slot=True))

    def feed(self, req: Request, leg: Leg, start: int, now: float) -> None:
        """Tell a leg the law from `start` on."""
        law = req.law.ids
        ids = tuple(law[start:])
        self.send(
            leg.worker,
            Feed(request=req.name, epoch=leg.epoch, law=len(law), start=start, ids=ids),
        )
        leg.sent = len(law)
        if leg.deaf and leg.owes_since is None:
            leg.owes_since = now

    # ------------------------------------------------------------ numbers

    def step_s(self, leg: Leg) -> float:
        """Seconds per decode step: from the leg's own runs, before that from its worker."""
        return leg.clock.trusted_s or self.world.workers[leg.worker].step_s

    def gateway_rtt_s(self, leg: Leg) -> float:
        return self.world.rtt_s(self.config.gateway_site, leg.site)

    def reserve(self, req: Request, role: Role) -> int:
        """Tokens of KV memory a leg sets aside (PROTOCOL, rule 9)."""
        have = req.prompt + len(req.law.ids)
        if role is PREFILL:
            return have
        if role is MAIN:
            return req.prompt + req.limit
        planned = req.decision.relay_tokens if req.decision else 0
        likely = planned or expected_output(req.remaining)
        return have + min(req.remaining, 2 * max(likely, 16))
