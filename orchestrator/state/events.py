"""Events: what has happened, told to the machine. Past tense, frozen, replayable."""

from dataclasses import field
from enum import StrEnum
from typing import Final

from workers.api.budget import Budget
from workers.api.messages import Role, Sampling, UpMessage
from workers.api.record import record


class Route(StrEnum):
    """Where a request's three stages run."""

    LOCAL = "local"  # prefill and every decode step in one site
    DIRECT = "direct"  # prefill, then main across the link, no relay
    RELAY = "relay"  # all three


class HandoffMode(StrEnum):
    """How relay decode ends."""

    AUTO = "auto"
    CATCH_UP = "catch-up"
    ONE_SHOT = "one-shot"


# Where it is asked for at every token; see `workers.api.messages`.
AUTO: Final = HandoffMode.AUTO


@record
class Arrived:
    """A client's request. `limit` is the most output tokens it may get.

    `route` and `handoff` override the deployment's policy; None: the policy decides.
    `stop_strings` are matched by the machine's stop watch, over the accepted tokens' text.
    `weight`, above 0: its KV goes over a line as if it were that many times smaller. Of those who
    wait for a place the smallest `priority` gets the next one. `tenant`: whose request it is, for
    what sites' stores may keep of it.
    """

    request: str
    prompt_ids: tuple[int, ...]
    limit: int
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    cache_salt: str = ""
    tenant: str = "default"
    weight: float = 1.0
    priority: int = 0
    route: Route | None = None
    handoff: HandoffMode | None = None


@record
class ClientGone:
    """The client closed its connection; nobody reads what is still to come."""

    request: str


@record
class Heard:
    """A message from a worker."""

    worker: str
    message: UpMessage


@record
class WorkerUp:
    """A worker is there: new, restarted (its legs are gone) or reachable again.

    It can take legs, unless it is `draining`. `keeps`: how much of a sequence's KV; None: all.
    """

    worker: str
    site: str
    pool: str
    roles: frozenset[Role]
    slots: int
    max_context: int
    kv_total_tokens: int
    kv_bytes_per_token: int
    draining: bool = False
    keeps: Budget | None = None


@record
class WorkerLost:
    """A worker died or cannot be reached: its legs are lost."""

    worker: str
    reason: str


@record
class WorkerDraining:
    """A worker takes no new legs; those it has go on (SIGTERM, `pdd drain`, a lapsed lease)."""

    worker: str


@record
class WorkerReturned:
    """A draining worker takes new legs again: its site's lease was renewed."""

    worker: str


@record
class RolesTold:
    """New legs of a worker are of these roles from now on; those it has go on, whatever they are.

    A worker that comes up again has what its `WorkerUp` says.
    """

    worker: str
    roles: frozenset[Role]


@record
class Reconnected:
    """A worker's token stream broke and is open again; what it said meanwhile may be lost."""

    worker: str


@record
class LinkTold:
    """What the topology says of the link between two sites, both ways alike."""

    site_a: str
    site_b: str
    rtt_s: float
    bytes_per_s: float


@record
class StoreHolds:
    """The store of a pool told what it has come to hold since it told last, and what it lost.

    Both are first bytes of block names, in hexadecimal and one after the other
    (`policy.prefixes`); `whole`: `added` is all it holds.
    """

    site: str
    pool: str
    whole: bool
    added: str
    removed: str


@record
class Ticked:
    """The time `next_deadline()` named has come."""


Event = (
    Arrived
    | ClientGone
    | Heard
    | WorkerUp
    | WorkerLost
    | WorkerDraining
    | WorkerReturned
    | RolesTold
    | Reconnected
    | LinkTold
    | StoreHolds
    | Ticked
)
