"""Stories on the virtual deployment: who is there, how to get to a phase, what must be true."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.request import Request
from orchestrator.state.actions import Finish, Send, Summary
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import Arrived, Event, HandoffMode, Route
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.cases import READY_S
from orchestrator.virtual.faults.checks import check
from orchestrator.virtual.gateway import VirtualGateway
from orchestrator.virtual.setup import Ask, Setup, WorkerSpec
from orchestrator.virtual.world import World
from workers.api.messages import DownMessage, Role, UpMessage

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
HAMI, SHENZHEN, URUMQI = "hami", "shenzhen", "urumqi"
P0, P1 = "hami/prefill/0", "hami/prefill/1"
R0, R1 = "hami/relay/0", "hami/relay/1"
M0, M1 = "shenzhen/main/0", "shenzhen/main/1"
X0 = "urumqi/any/0"
GATEWAY = "g0"  # the machine that the gateway runs on

PROMPT = 20  # tokens, unless a story says otherwise
KV_BYTES = 16  # per token of the simulated model
VOCABULARY = 32_000


def spec(name: str, *roles: Role, **fields: float) -> WorkerSpec:
    """A worker, in the site that its name tells."""
    site = name.split("/")[0]
    return WorkerSpec(name=name, site=site, roles=frozenset(roles), **fields)  # type: ignore[arg-type]


TWO_SITES = (spec(P0, P, M), spec(R0, R), spec(M0, M))
ONE_EACH = (spec(P0, P), spec(R0, R), spec(M0, M))
SPARES = (*ONE_EACH, spec(P1, P), spec(R1, R), spec(M1, M))
ANYWHERE = spec(X0, *Role)


def slow_main(workers: Sequence[WorkerSpec]) -> tuple[WorkerSpec, ...]:
    """The same workers; those in Shenzhen need 70 ms for a step."""
    return tuple(replace(w, step_s=0.07) if w.site == SHENZHEN else w for w in workers)


def line(kv_s: float, *, tokens: int = PROMPT) -> float:
    """Bytes per second of a line that the KV of so many tokens needs `kv_s` to cross."""
    return tokens * KV_BYTES / kv_s


@dataclass(slots=True)
class Story:
    """One deployment of one gateway, and what a story does to it. It begins when all are ready."""

    world: World

    @property
    def gateway(self) -> VirtualGateway:
        return self.world.gateways[0]

    @property
    def machine(self) -> Machine:
        return self.gateway.machine

    @property
    def counts(self) -> Counter[str]:
        return self.machine.ctx.counts

    # ------------------------------------------------------------ clients

    def ask(
        self,
        name: str = "a",
        *,
        prompt: int = PROMPT,
        limit: int = 40,
        route: Route | None = Route.RELAY,
        **fields: object,
    ) -> Client:
        """A request comes now; its prompt is made from its name."""
        first = sum((i + 1) * ord(letter) for i, letter in enumerate(name)) * 31
        ids = tuple((first + i * 7) % (VOCABULARY - 3) + 3 for i in range(prompt))
        arrived = Arrived(request=name, prompt_ids=ids, limit=limit, route=route, **fields)  # type: ignore[arg-type]
        return self.world.ask(Ask(at=self.world.now, arrived=arrived))

    def request(self, name: str = "a") -> Request:
        return self.machine.requests[name]

    def law(self, name: str = "a") -> int:
        """How many tokens are accepted."""
        req = self.machine.requests.get(name)
        return len(req.law) if req is not None else len(self.world.clients[name].ids)

    def worker_of(self, role: Role) -> str:
        """Where the live leg of request `a` with this role is."""
        leg = self.request().leg(role)
        assert leg is not None
        return leg.worker

    # ------------------------------------------------------------ time

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def until(self, there: Callable[[], bool]) -> None:
        """Run until something is so, which must be within a minute."""
        assert there() or self.world.run(self.world.now + 60.0, stop=there), "it never was so"

    def reach(self, phase: Phase, *, tokens: int = 0) -> None:
        """Run until request `a` is in a phase and has so many tokens."""

        def there() -> bool:
            req = self.machine.requests.get("a")
            return req is not None and req.phase is phase and len(req.law) >= tokens

        self.until(there)

    def settle(self) -> None:
        """Run until all is quiet, past the longest deadline there is."""
        setup = self.world.setup
        assert self.world.settle(setup.core.deadlines.request + setup.hold_s), "it is never quiet"

    def served(self, client: Client, *, limit: int = 40) -> Summary:
        """It ends well, complete; the tokens themselves are checked at the end of the test."""
        self.settle()
        assert isinstance(client.end, Finish), client.end
        assert len(client.ids) == limit
        return client.end.summary

    # ------------------------------------------------------------ what happens to workers

    def kill(self, worker: str, *, back_after: float | None = None) -> None:
        """SIGKILL, for good unless it is started again."""
        self.world.trouble(back_after or 0.0)
        self.world.kill_worker(worker, back_after=back_after)

    def freeze(self, worker: str, seconds: float) -> None:
        self.world.trouble(seconds)
        self.world.freeze(self.world.workers[worker].process, seconds)

    def cut(self, end: str, other: str, seconds: float) -> None:
        """Nothing passes between two workers, sites or machines, either way."""
        self.world.trouble(seconds)
        self.world.cut(end, other, seconds)
        self.world.cut(other, end, seconds)

    def break_stream(self, worker: str) -> None:
        """The gateway's connection to a worker is reset."""
        self.world.trouble(0.0)
        far = self.world.workers[worker].process
        for connection in list(self.gateway.process.connections):
            if connection.far is far:
                connection.reset("an accident on the way")

    def drop(self, lost: Callable[[str, object], bool]) -> None:
        """Lose the messages of which `lost(worker, message)` says so; control comes later."""
        self.world.trouble(0.0)
        self.world.network.drop = lost

    def drop_once(self, kind: type, worker: str, *, nth: int = 0) -> None:
        """Lose the nth message of its kind to or from a worker."""
        seen = {"left": nth}

        def lost(where: str, message: object) -> bool:
            if where != worker or not isinstance(message, kind):
                return False
            seen["left"] -= 1
            return seen["left"] == -1

        self.drop(lost)

    def delay(self, kind: type, worker: str, seconds: float) -> None:
        """What a worker says of this kind comes so much later, after what it said then."""
        self.world.trouble(0.0)
        gateway, hear = self.gateway, self.gateway.heard

        def heard(where: str, messages: Sequence[UpMessage]) -> None:
            late = [m for m in messages if where == worker and isinstance(m, kind)]
            if late:
                gateway.process.after(seconds, hear, where, late)
            hear(where, [m for m in messages if m not in late])

        gateway.heard = heard  # type: ignore[method-assign]

    # ------------------------------------------------------------ what was seen

    def events(self) -> Iterator[tuple[float, Event]]:
        """What the core was told, with the time."""
        return ((entry.at, entry.event) for entry in self.gateway.log)

    def sent(self) -> Iterator[tuple[float, str, DownMessage]]:
        """What the core sent: when, to whom, what."""
        for entry in self.gateway.log:
            for action in entry.actions:
                if isinstance(action, Send):
                    yield entry.at, action.worker, action.message

    def all_idle(self) -> bool:
        """No worker holds anything or does anything for anybody."""
        return all(worker.idle for worker in self.world.workers.values())

    def check(self) -> None:
        """When all is quiet, no promise was broken."""
        self.settle()
        breaches = check(self.world)
        assert not breaches, "\n".join(map(str, breaches))


MakeStory = Callable[..., Story]


def new_story(
    workers: Sequence[WorkerSpec] = SPARES,
    *,
    handoff: HandoffMode = HandoffMode.AUTO,
    gateway_site: str = SHENZHEN,
    deadlines: Deadlines = Deadlines(queue=10.0, request=120.0),  # noqa: B008 - frozen
    kv_s: float = 1.0,
    prompt: int = PROMPT,
    prefill_tokens_per_s: float = 1000.0,
    seed: int = 0,
    **fields: object,
) -> Story:
    """A story's world. `kv_s`: how long the KV of a prompt of `prompt` tokens crosses the line."""
    setup = Setup(
        core=CoreConfig(
            gateway="", gateway_site=gateway_site, handoff=handoff, codec="raw", deadlines=deadlines
        ),
        workers=tuple(replace(w, prefill_tokens_per_s=prefill_tokens_per_s) for w in workers),
        bytes_per_s=line(kv_s, tokens=prompt),
        vocab_size=VOCABULARY,
        **fields,  # type: ignore[arg-type]
    )
    world = World(setup, seed=seed)
    world.run(READY_S)
    return Story(world)


def waits(client: Client) -> float:
    """The longest wait between two tokens, seconds."""
    return max(b - a for a, b in pairwise(client.times))
