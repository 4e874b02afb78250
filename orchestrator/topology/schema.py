"""The nouns of a topology. A field's alias is its key in the file; its name says the unit."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import with_info_before_validator_function

from orchestrator.state.config import Deadlines as CoreDeadlines
from orchestrator.topology.addresses import check_host, parse_ports
from orchestrator.topology.units import (
    WITH_UNIT,
    UnitError,
    parse_distance_km,
    parse_duration_s,
    parse_price_per_gb,
    parse_price_per_h,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)
from transport.tls import TlsFiles
from workers.api.messages import Role
from workers.kv.evict.config import WHOLE, Eviction, Heads

# The way of a fibre is longer than the straight line (1.2-1.5 times), and light in glass
# needs 4.9 microseconds a kilometre.
ROUTE_FACTOR = 1.25
FIBRE_S_PER_KM = 4.9e-6
# Of KV inside a site: one adapter of 200 Gbps. By their data sheets a DGX A100 has one of them for
# each chip and a DGX H100 one of twice that rate, so this is what a single path gives at least.
SITE_BYTES_PER_S = 25e9

FROM_FILE = {"from_file": True}  # the validation context in which bare numbers have no unit


class Quantity:
    """Text is parsed; a bare number is an SI value in code but a mistake in a file.

    For pydantic's `Annotated`; its JSON schema is a text with a unit.
    """

    def __init__(self, parse: Callable[[str], float], example: str) -> None:
        self._parse, self._example = parse, example

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return with_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"type": "string", "pattern": WITH_UNIT, "examples": [self._example]}

    def _read(self, value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            return self._parse(value)
        if info.context == FROM_FILE and value is not None:
            if isinstance(value, int | float) and not isinstance(value, bool):
                raise UnitError(f"{value!r} has no unit; write it such as {self._example}")
            raise UnitError(f"expected a quantity such as {self._example}")
        return value


def _distance(value: object) -> object:
    # The key already names the unit, so a bare number is as clear as "4000 km".
    return parse_distance_km(value) if isinstance(value, str) else value


_DURATION = Quantity(parse_duration_s, "50ms")
Seconds = Annotated[float, _DURATION, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, _DURATION, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[
    float, Quantity(parse_rate_bytes_per_s, "20Gbps"), Field(gt=0, allow_inf_nan=False)
]
Kilometres = Annotated[float, BeforeValidator(_distance), Field(ge=0, allow_inf_nan=False)]
PricePerHour = Annotated[
    float, Quantity(parse_price_per_h, "2.0/h"), Field(ge=0, allow_inf_nan=False)
]
PricePerGB = Annotated[
    float, Quantity(parse_price_per_gb, "0.02/GB"), Field(ge=0, allow_inf_nan=False)
]
Positive = Annotated[int, Field(gt=0)]
Size = Annotated[int, Quantity(parse_size_bytes, "8GiB"), Field(gt=0)]
# Names become node labels, worker ids and metric labels.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Host = Annotated[str, AfterValidator(check_host), Field(examples=["10.0.0.1"])]


def _ports(text: str) -> str:
    parse_ports(text)
    return text


Ports = Annotated[str, AfterValidator(_ports), Field(examples=["7000-7009"])]


class Strict(BaseModel):
    """Frozen, without coercion, and closed to unknown keys."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True
    )


class Simulate(Strict):
    """How fast a simulated worker is: its prefill, and one decode step of any batch."""

    prefill_tokens_per_s: float = Field(default=2000.0, gt=0, allow_inf_nan=False)
    step_s: PositiveSeconds = Field(default=0.02, alias="step")


class Files(Strict):
    """Where KV blocks are kept as files, and how many bytes of them."""

    path: str = Field(min_length=1)
    size_bytes: Size = Field(alias="size")


class KVStore(Strict):
    """A store of KV blocks beside a pool's workers: memory, and files that outlive a restart.

    Workers of all pools of the site that have one read from each other's. `quotas`: what a tenant
    may have in each tier; who has none may fill it.
    """

    dram_bytes: Size = Field(alias="dram")
    nvme: Files | None = None
    policy: Literal["lru", "s3-fifo"] = "lru"
    quotas: dict[Name, Size] = Field(default_factory=dict)


class Vllm(Strict):
    """The vLLM of each of a pool's workers: started with a `python` that has it, or one that runs.

    A `python` with a slash is a path from where pdd runs. `args` and `env` are vLLM's own, for what
    is started. What runs is at `attach`, on the workers'
    machine, and was given the folder `pools` for the KV that it shares with them.
    """

    python: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = Field(default=(), strict=False)
    env: dict[str, str] = Field(default_factory=dict)
    attach: str | None = None
    pools: str | None = Field(default=None, min_length=1)

    @field_validator("attach")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"http://[^\s/]+", value):
            raise PydanticCustomError("url", NO_VLLM_URL)
        return value


NO_VLLM_URL = "a url such as http://127.0.0.1:8100"


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Evict(Strict):
    """What a pool's workers keep of a request's tokens; see `workers.kv.evict`.

    `heads`: whether TriAttention goes by the head that wants a token most, or by all heads' shares.
    `budget`: below 1 a share of the tokens, from 1 on that many. Some die whenever `slack` more
    live, once the prompt is computed; the `first`, the last `recent` and, if wanted, the prompt's
    never. Blocks come together where more than `waste` of their places is empty while less than
    `low` of the pool is free. `calibration`: what `pdd calibrate` wrote, if it is not the user's.
    """

    policy: Literal["h2o", "scissorhands", "random", "sink-recent", "triattention"]
    budget: float = Field(gt=0, allow_inf_nan=False)
    slack: Positive = 128
    recent: Positive = 128
    first: int = Field(default=4, ge=0)
    keep_prompt: bool = False
    heads: Literal["union", "shares"] = "union"
    waste: Share = 0.25
    low: Share = 0.5
    calibration: str | None = Field(default=None, min_length=1)

    @field_validator("budget")
    @classmethod
    def _whole(cls, value: float) -> float:
        if value >= 1 and value != int(value):
            raise PydanticCustomError("budget", NO_BUDGET)
        return value

    @field_validator("heads", mode="before")
    @classmethod
    def _own(cls, value: object) -> object:
        if value in OWN_HEADS:
            raise PydanticCustomError("heads", NO_OWN_HEADS)
        return value

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.heads != "union" and self.policy != "triattention":
            raise PydanticCustomError("heads", NO_HEADS)
        return self

    def orders(self) -> Eviction:
        """The same for an engine."""
        return Eviction(**self.model_dump(exclude={"heads"}), heads=Heads(self.heads))


NO_BUDGET = "a share of the tokens below 1, or a whole number of them"
NO_HEADS = "heads is for the policy triattention"
OWN_HEADS = frozenset(Heads) - WHOLE
NO_OWN_HEADS = (
    "union or shares: a place in a block holds a token of all heads and layers, so that heads "
    "which keep tokens of their own would give hardly any block back"
)


class Pool(Strict):
    """Chips of one kind in one site; each instance is one worker over `parallel` chips.

    With `launch: local` chips are labels and an instance is one process. `chip`, `count`,
    `parallel`, `scale_up` and `price` describe hardware: the rules between the parts of a file
    and `pdd validate` read them, no running worker does. `roles` that are left out: any, and
    `pdd serve` plans which.
    """

    chip: str
    count: Positive = 1
    instances: Positive = 1
    parallel: Positive = 1
    scale_up: Positive | None = None  # chips in one scale-up domain; None: as many as there are
    roles: frozenset[Annotated[Role, Field(strict=False)]] = Field(
        default=frozenset(Role), strict=False
    )
    engine: Literal["torch", "simulated", "vllm"] = "torch"
    simulate: Simulate | None = None
    vllm: Vllm | None = None
    price_per_h: PricePerHour | None = Field(default=None, alias="price")  # of one chip
    kv_tokens: Positive = 16384
    block_size: Positive = 16
    chunk_tokens: Positive = 128
    slots: Positive = 8  # legs at once in one worker
    kv_store: KVStore | None = None  # None: what leaves a worker's memory is lost
    evict: Evict | None = None  # None: every token is kept

    @property
    def open(self) -> bool:
        """Whether its roles are the planner's to choose."""
        return "roles" not in self.model_fields_set


class Site(Strict):
    """A place whose pools are near each other; `local` starts here, an `agent` dials in.

    `bandwidth` is what carries KV between two workers of it: the router reckons with it. `host` is
    where its workers and its agent listen and others reach them, `ports` are all that they take.
    """

    launch: Literal["local", "agent"] = "local"
    rate_bytes_per_s: Rate = Field(default=SITE_BYTES_PER_S, alias="bandwidth")
    host: Host | None = None  # None: on the loopback, for this machine only
    ports: Ports | None = None  # None: the agent chooses
    pools: dict[Name, Pool] = Field(default_factory=dict)

    @property
    def port_range(self) -> range | None:
        return None if self.ports is None else parse_ports(self.ports)


class Link(Strict):
    """The line between two sites; `delay_s` is one way, given or computed from the distance."""

    between: tuple[str, str] = Field(strict=False)
    distance_km: Kilometres | None = None
    delay_s: Seconds = Field(default=0.0, alias="delay")
    rate_bytes_per_s: Rate = Field(alias="bandwidth")
    jitter_s: Seconds = Field(default=0.0, alias="jitter")  # standard deviation of the delay
    loss: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)  # share of packets
    emulate: bool = False
    price_per_gb: PricePerGB | None = Field(default=None, alias="price")

    @model_validator(mode="after")
    def _one_delay(self) -> Self:
        if (self.distance_km is None) == ("delay_s" not in self.model_fields_set):
            raise PydanticCustomError("one_delay", ONE_DELAY)
        if self.distance_km is not None:
            delay_s = self.distance_km * ROUTE_FACTOR * FIBRE_S_PER_KM
            object.__setattr__(self, "delay_s", delay_s)
        return self


ONE_DELAY = "give either distance_km or delay, exactly one of them"


Part = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PlanSection(Strict):
    """A usual request, for which roles that are left out are planned: tokens, and the part of its
    prompt that a cache has.
    """

    prompt: Positive
    output: Positive
    hits: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)


class Replan(Strict):
    """Roles follow the measured world; see `orchestrator.replan` for what keeps them from flapping.

    `every`: between two looks. `margin`: by which part a figure must be off, `dwell`: for how long,
    `gain`: by which part new roles must serve more.
    """

    every_s: PositiveSeconds = Field(default=5.0, alias="every")
    margin: Part = 0.25
    dwell_s: Seconds = Field(default=30.0, alias="dwell")
    gain: Part = 0.15


class Agents(Strict):
    """Where sites' agents reach the gateway; the second of its processes at `port` + 1, and so on.

    `host`: as agents dial it.
    """

    host: Host
    port: int = Field(ge=1, le=65535)


class Gateway(Strict):
    """Where clients connect.

    With several `processes` each answers on `port`, where the kernel shares the connections out,
    and number i of them alone on `port` + i, i from 1. Each has rates, metrics and a queue of its
    own.
    """

    site: str
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8000, ge=1, le=65535)
    processes: int = Field(default=1, ge=1, le=64)
    agents: Agents | None = None  # None: on the loopback, for agents that start here
    cors: tuple[str, ...] = Field(default=(), strict=False)  # origins of web pages that may ask


class Slo(Strict):
    """What users should get: time to the first token, to the second, and time per token after it.

    The second token is the first that comes from behind a line: its time shows what a relay hides.

    A goal to plan for: `pdd validate` shows it, no request is refused for it.
    """

    ttft_s: PositiveSeconds = Field(default=2.0, alias="ttft")
    tpot_s: PositiveSeconds = Field(default=0.05, alias="tpot")
    second_token_s: PositiveSeconds | None = Field(default=None, alias="second_token")


_CORE = CoreDeadlines()


class Deadlines(Strict):
    """How long each wait of a request's life may last. The defaults are the core's own."""

    queue_s: PositiveSeconds = Field(default=_CORE.queue, alias="queue")
    prefill_s: PositiveSeconds = Field(default=_CORE.prefill, alias="prefill")
    first_token_s: PositiveSeconds = Field(default=_CORE.first_token, alias="first_token")
    silence_s: PositiveSeconds = Field(default=_CORE.silence, alias="silence")
    kv_s: PositiveSeconds = Field(default=_CORE.kv, alias="kv")
    resync_s: PositiveSeconds = Field(default=_CORE.resync, alias="resync")
    cut_s: PositiveSeconds = Field(default=_CORE.cut, alias="cut")
    request_s: PositiveSeconds = Field(default=_CORE.request, alias="request")
    hold_s: PositiveSeconds = Field(default=120.0, alias="hold")  # KV that nobody has asked for yet
    # A leg whose gateway is silent is freed, a site whose agent is silent drains.
    lease_s: PositiveSeconds = Field(default=10.0, ge=5.0, alias="lease")


RouteName = Literal["auto", "local", "direct", "relay"]
HandoffName = Literal["auto", "catch-up", "one-shot"]
# The first two choose as they go. A test holds the names against transport.codecs.
CodecName = Literal[
    "lossless", "lossy", "raw", "huffman", "zstd", "int8", "int8+zstd", "k8v4", "int4"
]


class Policy(Strict):
    """How requests are routed and handed over."""

    route: RouteName = "auto"
    handoff: HandoffName = "auto"
    codec: CodecName = "lossless"
    handoff_bound_s: PositiveSeconds = Field(default=1.0, alias="handoff_bound")
    queue_limit: int = Field(default=256, ge=0)  # requests that may wait
    deadlines: Deadlines = Field(default_factory=Deadlines)


class Tls(Strict):
    """The certificates with which sites know each other, as PEM files.

    `{site}` in `cert` and `key` stands for a site's name.
    """

    ca: str = Field(min_length=1)
    cert: str = Field(min_length=1)
    key: str = Field(min_length=1)

    def files(self, site: str) -> TlsFiles:
        """A site's own."""
        cert, key = (path.replace("{site}", site) for path in (self.cert, self.key))
        return TlsFiles(ca=Path(self.ca), cert=Path(cert), key=Path(key))


class Tenant(Strict):
    """What one customer may use in a minute, over all of its keys."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None  # in and out


class Security(Strict):
    """Who may use the gateway, and how sites know each other.

    Without keys everybody may, as the tenant `default`; so are keys that name no tenant. With them
    only an operator's key may change the deployment, as `pdd drain` does.
    """

    api_keys_env: str | None = None  # the environment variable that holds keys
    api_keys_file: str | None = Field(default=None, min_length=1)
    operator_keys_env: str | None = None  # the environment variable that holds operators' keys
    tenants: dict[Name, Tenant] = Field(default_factory=dict)
    tls: Tls | None = None  # None: traffic between sites is not encrypted


class Metrics(Strict):
    """What `/metrics` shows besides: `vllm_aliases`, the same figures under vLLM's names."""

    vllm_aliases: bool = False


class Telemetry(Strict):
    """Where traces go: `otlp`, the URL at which a collector takes them over OTLP/HTTP."""

    otlp: str

    @field_validator("otlp")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            raise PydanticCustomError("url", NO_URL)
        return value


NO_URL = "a url such as http://127.0.0.1:4318/v1/traces"


class Topology(Strict):
    """Everything a deployment's file says."""

    model: str = Field(min_length=1)  # a name from the catalogue, or a model's directory
    sites: dict[Name, Site]
    links: tuple[Link, ...] = Field(default=(), strict=False)
    gateway: Gateway
    slo: Slo = Field(default_factory=Slo)
    policy: Policy = Field(default_factory=Policy)
    # In which KV is kept and sent, in every site; what vLLM computes in, too.
    kv_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    plan: PlanSection | None = None
    replan: Replan | None = None  # None: roles stay what they are
    security: Security = Field(default_factory=Security)
    metrics: Metrics = Field(default_factory=Metrics)
    telemetry: Telemetry | None = None  # None: no traces

    def link(self, a: str, b: str) -> Link | None:
        """The link between two sites, in either order."""
        ends = {a, b}
        return next((link for link in self.links if set(link.between) == ends), None)
