"""What a virtual deployment is made of: workers, clients, a stop watch over ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.state.actions import Fail, Finish
from orchestrator.state.events import Arrived
from workers.api.messages import Role
from workers.engines.simulated.engine import SimulatedEngine
from workers.worker import Worker

NEVER = 1e9


class IdWatch:
    """A stop watch over token ids: a stop string "7,8" matches the ids 7, 8 in a row."""

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


@dataclass(frozen=True)
class Spec:
    """One worker of the deployment."""

    name: str
    site: str
    roles: frozenset[Role]
    step_s: float = 0.05
    slots: int = 8
    kv_tokens: int = 4096
    salt: int = 0


@dataclass
class Box:
    """A worker process: its core, or nothing while it is dead."""

    spec: Spec
    core: Worker | None = None
    engine: SimulatedEngine | None = None
    life: int = 0
    stepping: bool = False
    frozen: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list)
    expiry: float = NEVER


@dataclass
class Client:
    """What one client has seen."""

    spec: Arrived
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    end: Finish | Fail | None = None
    gone: bool = False


TWO_SITES = (
    Spec("p0", "hami", frozenset({Role.PREFILL, Role.MAIN})),
    Spec("r0", "hami", frozenset({Role.RELAY})),
    Spec("m0", "shenzhen", frozenset({Role.MAIN})),
)
