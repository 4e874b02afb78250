"""What a replayed deployment is made of."""

from dataclasses import dataclass

from orchestrator.replan.watch import Replanning
from orchestrator.replay.faults import Fault
from orchestrator.replay.lines.model import CodecModel, Congestion, LineModel, Sharing
from orchestrator.replay.stores.tiers import StoreSpec
from orchestrator.state.config import CoreConfig
from workers.api.budget import Budget
from workers.api.messages import Role
from workers.costs import Costs

NO_CODEC = CodecModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One modelled worker, named site/pool/number. `chunk_tokens`: prompt tokens per step.

    `shared_budget`: each sequence that decodes leaves a step one token less for prompts. `layers`:
    a prompt's KV is handed over in so many parts of each chunk, as they are computed. `keeps`: how
    much of a sequence's KV; None: all.
    """

    name: str
    site: str
    roles: frozenset[Role]
    costs: Costs
    slots: int
    kv_tokens: int
    kv_bytes_per_token: int
    max_context: int = 131_072
    chunk_tokens: int = 2048
    shared_budget: bool = False
    layers: int = 1
    keeps: Budget | None = None

    @property
    def pool(self) -> str:
        return self.name.split("/")[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpec:
    """The path between two sites: bytes of KV per second each way, seconds of delay one way.

    The others are `LineModel`'s; `seed` is that of the jitter.
    """

    between: tuple[str, str]
    bytes_per_s: float
    delay_s: float
    share: Sharing = Sharing.FIFO
    codec: CodecModel = NO_CODEC
    loss: float = 0.0
    jitter_s: float = 0.0
    connections: int = 8
    connection_bytes_per_s: float | None = None
    congestion: Congestion = Congestion.BBR
    slow_start: bool = False
    seed: int = 0

    def model(self) -> LineModel:
        """What it does to KV, each way."""
        return LineModel(
            bytes_per_s=self.bytes_per_s,
            delay_s=self.delay_s,
            share=self.share,
            codec=self.codec,
            loss=self.loss,
            jitter_s=self.jitter_s,
            connections=self.connections,
            connection_bytes_per_s=self.connection_bytes_per_s,
            congestion=self.congestion,
            slow_start=self.slow_start,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """A deployment.

    `block_tokens`: what a name of a prompt's block stands for; None: workers keep no prefixes,
    and nor do `stores`.
    Every `timelines`-th request has its stages written down, and how busy lines and pools are is
    sampled every `use_every_s`; 0: neither. `site_bytes_per_s`: KV inside any site; None: what
    `core` is told of each. `report_s`: a relay that has nothing urgent to say speaks at least every
    so often (twice that at most). `every_step`: everyone speaks after every step, and steps are
    taken one by one; the measure of what the fast way leaves out. `replanning` None: all roles
    stay what they are.
    """

    core: CoreConfig
    workers: tuple[ModelSpec, ...]
    lines: tuple[LineSpec, ...]
    block_tokens: int | None = None
    stores: tuple[StoreSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    timelines: int = 0
    use_every_s: float = 0.0
    site_bytes_per_s: float | None = None
    report_s: float = 5.0
    every_step: bool = False
    replanning: Replanning | None = None
