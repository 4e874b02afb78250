"""What the core is told once: who it is, its policy and its deadlines."""

from dataclasses import dataclass, field

from orchestrator.state.events import HandoffMode, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each leg and phase may take, in seconds. One table; the YAML may change it."""

    queue: float = 30.0  # waiting for a place
    prefill: float = 60.0  # a prefill leg: started to its token
    kv: float = 60.0  # KV computed to landed, per leg
    first_token: float = 20.0  # KV landed to the leg's first token
    silence: float = 20.0  # between two runs of a leg that should decode
    resync: float = 1.0  # silence before the first resync; doubles each time
    cut: float = 5.0  # relay paused to main's next token
    request: float = 600.0  # the whole request


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How often a request may lose what it has before it stops trying."""

    restarts: int = 8  # prefilled again from the start
    relay: int = 3  # relay legs lost
    main: int = 4  # main legs lost


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """The core's standing orders. `route` None lets the router choose.

    `site_bytes_per_s`: what carries KV from one worker to another inside each site; see
    `World.inside_bytes_per_s` for a site that is not in it.
    """

    gateway: str
    gateway_site: str
    route: Route | None = None
    handoff: HandoffMode = HandoffMode.AUTO
    codec: str = "lossless"  # see transport.codecs.choose
    handoff_bound_s: float = 1.0
    queue_limit: int = 256
    deadlines: Deadlines = field(default_factory=Deadlines)
    attempts: Attempts = field(default_factory=Attempts)
    site_bytes_per_s: dict[str, float] = field(default_factory=dict)
