"""A small deployment in virtual time: the real machine, real worker cores, simulated engines."""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.recover import settle_phase
from orchestrator.state.actions import Action, Emit, Finish, Send
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import (
    Arrived,
    ClientGone,
    Event,
    Heard,
    LinkMeasured,
    Reconnected,
    Ticked,
    WorkerLost,
    WorkerUp,
)
from tests.orchestrator.lifecycle.virtual_parts import (
    NEVER,
    TWO_SITES,
    Box,
    Client,
    IdWatch,
    Spec,
)
from transport.base import Offer, OfferRefused, StreamId
from workers.api.info import Part
from workers.api.messages import (
    DownMessage,
    Feed,
    KVStats,
    Load,
    Resync,
    SendKV,
    Start,
    Stop,
    TokenRun,
)
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.exports import canonical
from workers.outputs import CloseStream, DropImport, OpenStream, Output, Up
from workers.worker import NotYet, Worker

DETECT_S = 0.3  # a killed worker's connection is refused this soon
# What takes `kv_s` to cross, for the gateway's books: 64 tokens of the simulated model.
TYPICAL_PROMPT_BYTES = 64 * 16


class Deployment:
    """Runs events in order of (time, number); everything random comes from `seed`."""

    def __init__(
        self,
        specs: Sequence[Spec] = TWO_SITES,
        *,
        seed: int = 0,
        config: CoreConfig | None = None,
        one_way_s: float = 0.025,
        jitter_s: float = 0.0,
        loss: float = 0.0,
        repeat: float = 0.0,
        kv_s: float = 1.0,
        end_rate: float = 0.0,
        divergence: int | None = None,
        prefill_tokens_per_s: float = 1000.0,
        vocabulary: int = 32_000,
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.config = config or CoreConfig(
            gateway="g", gateway_site="shenzhen", deadlines=Deadlines(queue=10.0, request=120.0)
        )
        self.machine = Machine(self.config, IdWatch)
        self.one_way_s, self.jitter_s = one_way_s, jitter_s
        self.loss, self.repeat, self.kv_s = loss, repeat, kv_s
        self.end_rate, self.divergence = end_rate, divergence
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.vocabulary = vocabulary
        self.clients: dict[str, Client] = {}
        self.log: list[tuple[float, Event, list[Action]]] = []
        self.starts: dict[tuple[str, str, int], int] = defaultdict(int)
        self.stops: dict[tuple[str, str, int], int] = defaultdict(int)
        self.streams: dict[StreamId, OpenStream] = {}
        self.drop: Callable[[str, object], bool] = lambda worker, message: False
        self.links_cut: set[str] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._tick_at = NEVER
        self.boxes = {spec.name: Box(spec) for spec in specs}
        sites = sorted({spec.site for spec in specs})
        for a in sites:
            for b in sites:
                if a < b:
                    rate = TYPICAL_PROMPT_BYTES / max(kv_s, 0.01)
                    self.tell(
                        LinkMeasured(
                            site_a=a, site_b=b, rtt_s=2 * one_way_s, goodput_bytes_per_s=rate
                        )
                    )
        for box in self.boxes.values():
            self.boot(box)
        self.at(1.0, self._heartbeat)

    # ------------------------------------------------------------ time

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), self._order, call))
        self._order += 1

    def after(self, delay: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay, call)

    def run(self, until: float = NEVER, *, stop: Callable[[], bool] | None = None) -> None:
        """Run until nothing but heartbeats is left, or until a time or a condition."""
        while self._heap and self._heap[0][0] <= until:
            if stop is not None and stop():
                return
            if until == NEVER and self.quiet():
                return
            self.now, _, call = heapq.heappop(self._heap)
            call()
        if until != NEVER:
            self.now = max(self.now, until)

    def quiet(self) -> bool:
        """No client waits and no worker computes or holds anything."""
        if any(c.end is None and not c.gone for c in self.clients.values()):
            return False
        if self.machine.requests or any(box.stepping for box in self.boxes.values()):
            return False
        return all(box.core is None or box.core.idle for box in self.boxes.values())

    def _heartbeat(self) -> None:
        for name, box in self.boxes.items():
            if box.core is not None and not box.frozen and name not in self.links_cut:
                box.core.gateway_seen(self.config.gateway, self.now)
                self.tell(Heard(worker=name, message=self._load(box)))
        self.after(1.0, self._heartbeat)

    def _load(self, box: Box) -> Load:
        assert box.core is not None
        load = box.core.load()
        return replace(load, step_s=load.step_s or box.spec.step_s)

    # ------------------------------------------------------------ machine

    def tell(self, event: Event) -> None:
        actions = self.machine.handle(event, self.now)
        self.log.append((self.now, event, actions))
        for action in actions:
            self._act(action)
        due = self.machine.next_deadline()
        assert due is None or due > self.now, f"deadline {due} is not after {self.now}"
        for req in self.machine.requests.values():
            before = req.phase
            settle_phase(req)
            assert req.phase is before, "the stored phase lags behind the tracks"
        if due is not None and due != self._tick_at:
            self._tick_at = due
            self.at(due, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._tick_at == due:
            self._tick_at = NEVER
            self.tell(Ticked())

    def _act(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action.worker, action.message)
            return
        client = self.clients[action.request]
        assert client.end is None, "the client was told something after the end"
        if isinstance(action, Emit):
            assert action.start == len(client.ids), "a token was repeated or left out"
            assert action.ids, "an empty emit"
            client.ids.extend(action.ids)
            client.times.extend([self.now] * len(action.ids))
        else:
            client.end = action

    # ------------------------------------------------------------ clients

    def ask(self, name: str, *, prompt: int = 20, limit: int = 40, **fields: object) -> Client:
        """A request arrives now."""
        ids = tuple((hash_ids(name) + i * 7) % (self.vocabulary - 3) + 3 for i in range(prompt))
        spec = Arrived(request=name, prompt_ids=ids, limit=limit, **fields)  # type: ignore[arg-type]
        client = self.clients[name] = Client(spec)
        self.tell(spec)
        return client

    def leave(self, name: str) -> None:
        client = self.clients[name]
        if client.end is None:
            client.gone = True
            self.tell(ClientGone(request=name))

    def law(self, name: str) -> int:
        req = self.machine.requests.get(name)
        return len(req.law) if req is not None else len(self.clients[name].ids)

    # ------------------------------------------------------------ network

    def _delay(self, site: str) -> float:
        base = 0.0002 if site == self.config.gateway_site else self.one_way_s
        return base + self.rng.random() * self.jitter_s

    def _send(self, worker: str, message: DownMessage) -> None:
        key = (worker, message.request, message.epoch)
        if isinstance(message, Start):
            self.starts[key] += 1
        if isinstance(message, Stop):
            self.stops[key] += 1
        if isinstance(message, SendKV):
            message = replace(message, address=message.to_worker)
        box = self.boxes[worker]
        tokens = isinstance(message, Feed | Resync)
        copies = 1 + (self.rng.random() < self.repeat)
        for _ in range(copies):
            delay = self._delay(box.spec.site)
            lost = self.rng.random() < self.loss or self.drop(worker, message)
            if lost and tokens:
                continue
            # Control is delivered at least once: a loss is a later delivery.
            self.after(delay + (0.3 if lost else 0.0), lambda m=message: self._arrive(box, m))

    def _arrive(self, box: Box, message: DownMessage) -> None:
        if box.spec.name in self.links_cut:
            if not isinstance(message, Feed | Resync):
                self.after(0.5, lambda: self._arrive(box, message))
            return
        self._in(box, lambda core: core.handle(message, self.now))

    def _in(self, box: Box, call: Callable[[Worker], list[Output]]) -> None:
        """Run something in the worker, or later when it is frozen; never when it is dead."""
        if box.core is None:
            return
        if box.frozen:
            life = box.life
            box.backlog.append(lambda: box.life == life and self._in(box, call))  # type: ignore[arg-type,return-value]
            return
        self._outputs(box, call(box.core))
        self._kick(box)
        self._plan_expiry(box)

    def _outputs(self, box: Box, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Up):
                self._up(box, output)
            elif isinstance(output, OpenStream):
                self.streams[output.stream] = output
                self.after(0.001, lambda o=output: self._offer(box, o, box.life, self.now + 5))
            elif isinstance(output, CloseStream):
                opened = self.streams.pop(output.stream, None)
                if opened is not None:
                    self._break(opened, "the sender closed")
            elif isinstance(output, DropImport):
                self.streams.pop(output.stream, None)

    def _up(self, box: Box, up: Up) -> None:
        copies = 1 + (self.rng.random() < self.repeat)
        for _ in range(copies):
            lost = self.rng.random() < self.loss or self.drop(box.spec.name, up.message)
            if lost and isinstance(up.message, TokenRun):
                continue
            delay = self._delay(box.spec.site) + (0.3 if lost else 0.0)
            self.after(delay, lambda: self._hear(box, up, box.life))

    def _hear(self, box: Box, up: Up, life: int) -> None:
        if box.spec.name in self.links_cut:
            if not isinstance(up.message, TokenRun):
                self.after(0.5, lambda: self._hear(box, up, life))
            return
        if up.gateway in (None, self.config.gateway):
            self.tell(Heard(worker=box.spec.name, message=up.message))

    # ------------------------------------------------------------ workers

    def boot(self, box: Box) -> None:
        """Start, or start again, a worker with an empty pool."""
        spec = box.spec
        box.life += 1
        box.stepping = box.frozen = False
        box.backlog.clear()
        model = replace(self._model(), divergence=self.divergence, salt=spec.salt)
        box.engine = SimulatedEngine(
            model,
            MeasuredCosts(
                prefill_tokens_per_s=self.prefill_tokens_per_s, decode_step_s=spec.step_s
            ),
            kv_total_tokens=spec.kv_tokens,
            chunk_tokens=64,
        )
        box.core = Worker(spec.name, box.engine, slots=spec.slots, hold_s=60.0, lease_s=8.0)
        box.core.gateway_seen(self.config.gateway, self.now)
        info = box.engine.info
        self.tell(
            WorkerUp(
                worker=spec.name,
                site=spec.site,
                pool=spec.name,
                roles=spec.roles,
                slots=spec.slots,
                max_context=info.max_context,
                kv_total_tokens=info.kv_total_tokens,
                kv_bytes_per_token=info.kv_bytes_per_token,
            )
        )
        self.tell(Heard(worker=spec.name, message=self._load(box)))

    def _model(self) -> SimulatedModel:
        return SimulatedModel(
            layers=1, head_size=4, end_rate=self.end_rate, vocab_size=self.vocabulary
        )

    def kill(self, name: str, *, back_after: float | None = None) -> None:
        """SIGKILL; the gateway's connection is refused a moment later."""
        box = self.boxes[name]
        if box.core is None:
            return
        box.core = box.engine = None
        box.life += 1
        box.stepping = False
        box.backlog.clear()
        self.after(DETECT_S, lambda: self.tell(WorkerLost(worker=name, reason="killed")))
        if back_after is not None:
            self.after(max(back_after, 2 * DETECT_S), lambda: self.boot(box))

    def freeze(self, name: str, seconds: float) -> None:
        """SIGSTOP for a while; what arrives waits."""
        box = self.boxes[name]
        if box.core is None or box.frozen:
            return
        box.frozen = True
        life = box.life
        self.after(seconds, lambda: self._thaw(box, life))

    def _thaw(self, box: Box, life: int) -> None:
        if box.life != life:
            return
        box.frozen = False
        backlog, box.backlog = box.backlog, []
        for call in backlog:
            call()
        self._kick(box)
        self._plan_expiry(box)

    def cut(self, name: str, seconds: float) -> None:
        """Nothing passes between the gateway and one worker for a while."""
        self.links_cut.add(name)

        def restore() -> None:
            self.links_cut.discard(name)
            if self.boxes[name].core is not None:
                self.tell(Reconnected(worker=name))

        self.after(seconds, restore)

    def _kick(self, box: Box) -> None:
        if box.core is None or box.stepping or box.frozen:
            return
        step = box.core.begin(self.now)
        if step is None:
            return
        box.stepping = True
        life = box.life
        self.after(step.duration_s or 0.0, lambda: self._stepped(box, step, life))

    def _stepped(self, box: Box, step: object, life: int) -> None:
        if box.life != life or box.core is None:
            return
        if box.frozen:
            box.backlog.append(lambda: self._stepped(box, step, life))
            return
        box.stepping = False
        self._outputs(box, box.core.finish(step, self.now))  # type: ignore[arg-type]
        self._kick(box)
        self._plan_expiry(box)

    def _plan_expiry(self, box: Box) -> None:
        due = box.core.next_deadline() if box.core is not None else None
        if due is not None and due != box.expiry:
            box.expiry = due
            self.at(due, lambda: self._expired(box, due))

    def _expired(self, box: Box, due: float) -> None:
        if box.expiry == due:
            box.expiry = NEVER
            self._in(box, lambda core: core.expire(self.now))

    # ------------------------------------------------------------ KV

    def _offer(self, source: Box, opened: OpenStream, life: int, give_up: float) -> None:
        """Offer, wait for the source to compute, move, land; whatever fails is told to both."""
        stream = opened.stream
        if stream not in self.streams or source.life != life or source.engine is None:
            return
        target = self.boxes[opened.address]
        if target.core is None or target.frozen or self.now > give_up:
            if self.now > give_up:
                self._break(opened, "the target does not answer")
            else:
                self.after(0.1, lambda: self._offer(source, opened, life, give_up))
            return
        offer = Offer(
            stream=stream,
            start=opened.start,
            stop=opened.stop,
            slices_per_token=2,
            fingerprint=canonical(source.engine.info.fingerprint),
            cache_salt=opened.cache_salt,
        )
        try:
            have = target.core.offered(offer, self.now)
        except NotYet:
            self.after(0.02, lambda: self._offer(source, opened, life, give_up))
            return
        except OfferRefused as error:
            self._break(opened, str(error))
            return
        self._follow(source, target, opened, have, (life, target.life))

    def _follow(
        self, source: Box, target: Box, opened: OpenStream, have: int, lives: tuple[int, int]
    ) -> None:
        if opened.stream not in self.streams or source.life != lives[0]:
            return
        if target.life != lives[1]:
            self._break(opened, "the target died")
            return
        assert source.engine is not None
        try:
            ready = source.engine.computed(opened.seq)
        except KeyError:
            self._break(opened, "the source has ended")
            return
        if ready < opened.stop:
            self.after(0.02, lambda: self._follow(source, target, opened, have, lives))
            return
        start = max(have, opened.start)
        pieces = []
        for a in range(start, opened.stop, 16):
            for part in Part:
                b = min(a + 16, opened.stop)
                pieces.append(source.engine.read(opened.seq, 0, part, a, b))
        self.rng.shuffle(pieces)
        far = source.spec.site != target.spec.site
        share = (opened.stop - start) / max(1, opened.stop)
        delay = (self.one_way_s + self.kv_s * share) if far else 0.002

        def land() -> None:
            if opened.stream not in self.streams or target.life != lives[1]:
                return
            if target.frozen:
                target.backlog.append(land)
                return
            del self.streams[opened.stream]
            assert target.engine is not None
            try:
                for piece in pieces:
                    target.engine.put(SeqId(opened.seq.request, opened.stream.target), piece)
            except KeyError:
                return
            nbytes = sum(piece.data.nbytes for piece in pieces)
            self._in(target, lambda core: core.import_completed(opened.stream, self.now))
            self._in(source, lambda core: core.export_completed(opened.stream, self.now))
            stats = KVStats(
                request=opened.stream.request,
                epoch=opened.stream.target,
                bytes_raw=nbytes,
                bytes_wire=nbytes,
                transfer_s=delay,
            )
            self._up(target, Up(gateway=self.config.gateway, message=stats))

        self.after(delay, land)

    def _break(self, opened: OpenStream, reason: str) -> None:
        self.streams.pop(opened.stream, None)
        source = next(
            (b for b in self.boxes.values() if b.engine is not None and _has(b, opened.seq)), None
        )
        if source is not None:
            self._in(source, lambda core: core.export_failed(opened.stream, reason, self.now))
        target = self.boxes[opened.address]
        self._in(target, lambda core: core.import_broken(opened.stream, reason, self.now))

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """Every promise that can be checked when all is quiet."""
        for name, client in self.clients.items():
            if client.gone:
                continue
            assert client.end is not None, f"{name} hangs"
            if isinstance(client.end, Finish):
                assert client.end.summary.completion_tokens == len(client.ids)
                assert len(client.ids) <= client.spec.limit
                if self.divergence is None:
                    assert client.ids == self.reference(client.spec), f"{name}: wrong tokens"
        assert not self.machine.requests
        assert self.machine.next_deadline() is None
        for view in self.machine.ctx.world.workers.values():
            assert not view.bookings, f"{view.name} is still booked: {view.bookings}"
        for link in self.machine.ctx.world.links.values():
            assert not link.queued
        for key, count in self.starts.items():
            assert count == 1, f"{key} was started {count} times"
            assert self.stops[key] >= 1, f"{key} was never stopped"
        for box in self.boxes.values():
            if box.engine is not None:
                assert box.engine.kv_held_tokens() == 0, f"{box.spec.name} holds KV"

    def reference(self, spec: Arrived) -> list[int]:
        """What one engine's own run gives, ended as the gateway ends it."""
        model = self._model()
        costs = MeasuredCosts(prefill_tokens_per_s=1e6, decode_step_s=1e-3)
        engine = SimulatedEngine(model, costs, kv_total_tokens=8192, chunk_tokens=8192)
        seq = SeqId(spec.request, 0)
        engine.open(
            seq,
            SequenceSpec(
                tokens=spec.prompt_ids,
                prompt_len=len(spec.prompt_ids),
                reserve=len(spec.prompt_ids) + spec.limit,
                sampling=spec.sampling,
                stop_ids=spec.stop_ids,
                min_tokens=spec.min_tokens,
            ),
            reuse=False,
        )
        engine.set_goal(seq, len(spec.prompt_ids) + spec.limit)
        watch = IdWatch(spec.stop_strings)
        ids: list[int] = []
        while len(ids) < spec.limit:
            step = engine.begin()
            assert step is not None
            for sample in engine.finish(step).samples:
                ids.append(sample.token)
                if watch.push((sample.token,)) is not None:
                    return ids
                if sample.token in spec.stop_ids and len(ids) > spec.min_tokens:
                    return ids
        return ids


def hash_ids(name: str) -> int:
    """A stable number for a name."""
    return sum((i + 1) * ord(c) for i, c in enumerate(name)) * 31


def _has(box: Box, seq: SeqId) -> bool:
    assert box.engine is not None
    try:
        box.engine.length(seq)
    except KeyError:
        return False
    return True
