"""Workers in two sites that send each other KV: real cores and planes, a hand for everything else."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from orchestrator.virtual.kv import KVPlane
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.schedule import Schedule
from tests.workers.worker_rig import MODEL, send_kv, start
from transport.base import StreamId
from workers.api.messages import DownMessage, KVFailed, KVStats, Landed, Role, Stop, UpMessage
from workers.costs import MeasuredCosts
from workers.engines.base import Step
from workers.engines.simulated.engine import SimulatedEngine
from workers.outputs import CloseStream, DropImport, OpenStream, Output, Up
from workers.worker import Worker

T = TypeVar("T")

COSTS = MeasuredCosts(prefill_tokens_per_s=2000.0, decode_step_s=0.02)


class Host:
    """One worker: its core, its plane, and steps that take their time."""

    def __init__(self, name: str, site: str, world: "KVWorld") -> None:
        self.process = Process(name, site, world.schedule)
        self._world = world
        self.ups: list[tuple[float, UpMessage]] = []

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

    def told(self, kind: type[T], request: str) -> list[T]:
        """What this worker, in all its lives, said of a request."""
        return [m for _, m in self.ups if isinstance(m, kind) and m.request == request]

    def _turn(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Up):
                self.ups.append((self._world.schedule.now, output.message))
            elif isinstance(output, OpenStream):
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
        self.frames: list[tuple[float, str]] = []

    def find(self, name: str) -> KVPlane | None:
        host = self.hosts.get(name)
        return host.kv if host is not None and host.process.alive else None

    def host(self, name: str) -> Host:
        return self.hosts[name]

    def transfer(
        self, request: str, tokens: int, *, source: str = "a", target: str = "b"
    ) -> StreamId:
        """A prefill at `source` whose KV goes to a main leg at `target`."""
        prompt = tuple(self.random.randrange(3, MODEL.vocab_size) for _ in range(tokens))
        more = {"request": request, "prompt_ids": prompt, "reserve": tokens + 16}
        self.hosts[target].send(start(Role.MAIN, **more))
        self.hosts[source].send(
            start(Role.PREFILL, **more),
            send_kv(request=request, to_worker=target, stop=tokens, address=target),
        )
        return StreamId(request, 1, 2)

    def run(self, until: float) -> None:
        """Let time pass."""
        while (at := self.schedule.next_at()) is not None and at <= until:
            self.schedule.step()
        self.schedule.now = max(self.schedule.now, until)

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
        return all(host.kv.idle for host in self.hosts.values() if host.process.alive)

    def stop(self, request: str, epoch: int, at: str) -> None:
        self.hosts[at].send(Stop(request=request, epoch=epoch))


SITES = {"a": "x", "b": "y", "c": "y"}
