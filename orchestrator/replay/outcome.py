"""What came of a replay: of each request, and of each line and pool over time."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from orchestrator.state.actions import Fail, Finish


class Stage(StrEnum):
    """What a request goes through, as its timeline shows it."""

    QUEUED = "queued"  # asked to its prefill's first chunk
    PREFILL = "prefill"
    TRANSFER = "transfer"  # KV over a line: its first byte leaves to its last byte lands
    RELAY = "relay"  # relay's first to its last accepted token
    HANDOFF = "handoff"  # last accepted token of relay to main's first
    MAIN = "main"


class Span(NamedTuple):
    """One stage of one request; `where` is a worker's name, or "from>to" for a line."""

    stage: Stage
    where: str
    began_at: float
    ended_at: float


@dataclass(slots=True, eq=False)
class Outcome:
    """What came of one request: when it asked, when its tokens were released, how it ended.

    Seconds of virtual time, as the client at the gateway sees them; None: that token never came.
    `wire_bytes`: KV that was given to lines between sites, coded. `prefill_hit`, `main_hit`: prompt
    tokens that were found in the caches, or came from stores at prefill's site: `from_memory`,
    `from_files` are those of them at prefill. `spans` is filled where a timeline was asked for.
    """

    name: str
    asked_at: float
    prompt: int = 0  # tokens
    first_at: float | None = None
    second_at: float | None = None  # the first that a decoding leg gave: prefill gives but one
    last_at: float | None = None
    tokens: int = 0
    wire_bytes: float = 0.0
    prefill_hit: int = 0
    main_hit: int = 0
    from_memory: int = 0
    from_files: int = 0
    end: Finish | Fail | None = None
    spans: list[Span] | None = None


@dataclass(slots=True)
class Use:
    """How busy something was: a sample every `every_s` seconds from 0 on, each a mean in [0, 1].

    Of a line, bytes sent over what it could have sent; of a pool, decoding slots (prefill: seconds
    in which it computed) over what it has.
    """

    every_s: float
    samples: list[float] = field(default_factory=list)
