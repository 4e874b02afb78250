"""Workers in two sites that send each other KV: real cores and planes, steps by hand."""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

from orchestrator.virtual.kv.plane import KVPlane
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.schedule import Schedule
from tests.workers.worker_rig import MODEL, send_kv, start
from transport.base import StreamId
from transport.codecs.table import encode_slice
from transport.stream.frames import Data
from workers.api.info import Part
from workers.api.messages import DownMessage, KVFailed, KVStats, Landed, Role, Sampling, Stop
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec, Step
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.outputs import CloseStream, DropImport, OpenStream, Output, Up
from workers.streams.exports import as_slice
from workers.worker import Worker

T = TypeVar("T")

COSTS = MeasuredCosts(prefill_tokens_per_s=2000.0, decode_step_s=0.02)


class Host:
    """One worker: its core, its plane, and steps that take their time."""

    def __init__(self, name: str, site: str, world: "KVWorld") -> None:
        self.process = Process(name, site, world.schedule)
        self._world = world
        self.outputs: list[Output] = []

    def boot(self) -> None:
        self.process.start()
        self.engine = SimulatedEngine(MODEL, COSTS, kv_total_tokens=1 << 16, chunk_tokens=64)
        self.core = Worker(self.process.name, self.engine, slots=64, hold_s=1e4, lease_s=1e6)
        self.kv = KVPlane(self, self._world.network, self._world.find)
        self._step: Step | None = None

    def send(self, *messages: DownMessage) -> None:
        """Messages arrive in its process."""
        self.process.do(self._take, messages)

    def _take(self, messages: Sequence[DownMessage]) -> None:
        now = self.process.time()
        self._turn([out for message in messages for out in self.core.handle(message, now)])

    def submit(self, call: Callable[[Worker, float], Sequence[Output]]) -> None:
        self._turn(call(self.core, self.process.time()))

    def look(self, call: Callable[[Worker, float], T]) -> T:
        return call(self.core, self.process.time())

    def wrong_kv(self, stream: StreamId, error: WrongKV) -> None:
        raise AssertionError(f"{stream}: {error}")

    def told(self, kind: type[T], request: str) -> list[T]:
        """What this worker, in all its lives, said of a request."""
        ups = [out.message for out in self.outputs if isinstance(out, Up)]
        return [m for m in ups if isinstance(m, kind) and m.request == request]

    def _turn(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, OpenStream):
                self.kv.open(output)
            elif isinstance(output, CloseStream):
                self.kv.close(output.stream)
            elif isinstance(output, DropImport):
                self.kv.drop(output.stream)
        self.kv.refresh()
        if self._step is None:
            self._step = self.core.begin(self.process.time())
            if self._step is not None:
                self.process.after(self._step.duration_s or 0.0, self._stepped, self._step)

    def _stepped(self, step: Step) -> None:
        self._step = None
        self._turn(self.core.finish(step, self.process.time()))


class KVWorld:
    """Source `a` and target `b` in two sites, `c` beside `b`."""

    def __init__(self, seed: int = 0, *, bytes_per_s: float = 1e6) -> None:
        self.schedule = Schedule()
        self.random = Random(seed)
        self.network = Network(
            self.schedule, Random(seed + 1), one_way_s=0.025, bytes_per_s=bytes_per_s
        )
        self.hosts = {name: Host(name, site, self) for name, site in SITES.items()}
        for host in self.hosts.values():
            host.boot()

    def find(self, name: str) -> KVPlane | None:
        host = self.hosts.get(name)
        return host.kv if host is not None and host.process.alive else None

    def transfer(
        self,
        request: str,
        tokens: int,
        *,
        source: str = "a",
        target: str = "b",
        target_starts_at: float = 0.0,
    ) -> StreamId:
        """A prefill at `source` whose KV goes to a main leg at `target`."""
        prompt = tuple(self.random.randrange(3, MODEL.vocab_size) for _ in range(tokens))
        more = {"request": request, "prompt_ids": prompt, "reserve": tokens + 16}
        self.schedule.at(target_starts_at, self.hosts[target].send, start(Role.MAIN, **more))
        self.hosts[source].send(
            start(Role.PREFILL, **more),
            send_kv(request=request, to_worker=target, stop=tokens, address=target),
        )
        return StreamId(request, 1, 2)

    def piece(self) -> Data:
        """A frame of KV."""
        engine = self.hosts["a"].engine
        seq = SeqId("alone", 1)
        spec = SequenceSpec(tokens=(5,) * 20, prompt_len=20, reserve=32, sampling=Sampling())
        engine.open(seq, spec, reuse=False)
        engine.set_goal(seq, 20)
        while (step := engine.begin()) is not None:
            engine.finish(step)
        piece = as_slice(engine.read(seq, 0, Part.KEY, 0, 20))
        return encode_slice(StreamId("alone", 1, 2), piece, "raw")

    def run(self, until: float) -> None:
        """Let time pass."""
        self.schedule.run(until)

    def landed(self, request: str, target: str = "b") -> bool:
        return bool(self.hosts[target].told(Landed, request))

    def failed(self, request: str, source: str = "a") -> list[str]:
        """Why the source says that it could not be sent."""
        return [fail.reason for fail in self.hosts[source].told(KVFailed, request)]

    def stats(self, request: str, target: str = "b") -> KVStats:
        (stats,) = self.hosts[target].told(KVStats, request)
        return stats

    @property
    def idle(self) -> bool:
        return all(host.kv.idle for host in self.hosts.values())

    def stop(self, at: str, request: str, epoch: int) -> list[Output]:
        """A leg is stopped; what its core asks for then."""
        host = self.hosts[at]
        before = len(host.outputs)
        host.send(Stop(request=request, epoch=epoch))
        return host.outputs[before:]

    def check_nothing_is_left(self, streams: Iterable[tuple[str, str, StreamId]]) -> None:
        """Of streams (from, to, id): planes and cores know that they have ended, memory is free."""
        assert self.idle
        for source, target, stream in streams:
            asked = self.stop(source, stream.request, stream.source)
            asked += self.stop(target, stream.request, stream.target)
            assert not [out for out in asked if isinstance(out, CloseStream | DropImport)]
        for host in self.hosts.values():
            assert host.core.idle
            assert host.engine.kv_held_tokens() == 0


SITES = {"a": "x", "b": "y", "c": "y"}
