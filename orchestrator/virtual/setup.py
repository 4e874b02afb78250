"""What a virtual deployment is made of, before it lives."""

from dataclasses import dataclass, field

from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived
from orchestrator.virtual.process import ClockError
from orchestrator.virtual.stores.store import StoreSpec
from workers.api.messages import Role
from workers.kv.evict.config import Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker, named site/pool/number. `salt`: see `SimulatedModel.divergence`.

    `step_s` is a decode step of any batch, `kv_tokens` the size of its pool, `eviction` what that
    keeps. A `warm` one knows its
    step before its first decode here, as one does that has served others before.
    """

    name: str
    site: str
    roles: frozenset[Role]
    step_s: float = 0.05
    prefill_tokens_per_s: float = 1000.0
    slots: int = 8
    kv_tokens: int = 4096
    eviction: Eviction | None = None
    salt: int = 0
    warm: bool = True

    @property
    def pool(self) -> str:
        return self.name.split("/")[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A deployment: its workers, its line, its clocks.

    `core`: each gateway gets it under a name of its own. `bytes_per_s` is the KV line between two
    sites, each way. `hold_s` and `lease_s` are a topology's `hold` and `lease`, shorter than by
    default so that less virtual time has to pass. `divergence`, `end_rate` and `vocab_size` are the
    simulated model's.
    """

    core: CoreConfig
    workers: tuple[WorkerSpec, ...]
    gateways: int = 1
    one_way_s: float = 0.025
    jitter_s: float = 0.0
    bytes_per_s: float = 1024.0
    hold_s: float = 60.0
    lease_s: float = 8.0
    end_rate: float = 0.0
    divergence: int | None = None
    vocab_size: int = 32_000
    clocks: dict[str, ClockError] = field(default_factory=dict)  # of processes, by name
    stores: tuple[StoreSpec, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """The workers' sites, in order of their names."""
        return tuple(sorted({worker.site for worker in self.workers}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A client's request at `at`, of the gateway in place `gateway`.

    `leaves_after`: seconds until the client leaves, if it is not served by then; None: it stays.
    """

    at: float
    arrived: Arrived
    gateway: int = 0
    leaves_after: float | None = None
