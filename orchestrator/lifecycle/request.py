"""One request as the machine keeps it: its law, its live legs and what both tracks say."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.lifecycle.phases import (
    ABSENT,
    EMPTY,
    ENDED,
    JOINT,
    LANDED,
    MAIN_BRINGS,
    MOVING,
    PAUSED,
    RELAYING,
    UNROUTED,
    WAITING,
    Phase,
)
from orchestrator.policy.prefixes import Name
from orchestrator.policy.router import Decision
from orchestrator.state.actions import Failure, FinishReason
from orchestrator.state.events import Arrived, HandoffMode
from orchestrator.state.law import Law
from orchestrator.state.links import LegId, LinkView
from workers.api.messages import (
    PREFILL,
    RANK,
    Role,
    TokenRun,
    token_count,
)

# A leg's runs that cannot be judged yet wait here; more than this many are forgotten and asked
# for again when their turn comes.
PARKED_RUNS = 64
STEP_WEIGHT = 0.2
TRUSTED_GAPS = 4
# The handoff's gap is looked for among this many tokens on either side of main's first.
NEAR_HANDOFF = 8
NONE_LOST = dict.fromkeys(Role, 0)


class StopWatch(Protocol):
    """Looks for stop strings in the text of accepted tokens."""

    matched: str | None

    def push(self, ids: Sequence[int]) -> int | None:
        """How many of all tokens pushed so far complete a stop string; None: none does yet."""


@dataclass(slots=True)
class StepClock:
    """Seconds per token of one leg, from the arrival of its own runs.

    The mean of the first few gaps, then a moving average. Law that the leg was fed, and took over
    in one pass, is no step. `trusted_s` is the step once it was seen often enough to act on; jitter
    makes the first gaps lie.
    """

    step_s: float | None = None
    trusted_s: float | None = None
    gaps: int = 0
    last_at: float | None = None
    last_end: int | None = None

    def note(self, start: int, end: int, now: float) -> None:
        """A run of indices [start, end) has arrived."""
        if self.last_at is not None and start == self.last_end:
            gap = (now - self.last_at) / (end - start)
            self.gaps += 1
            old = self.step_s or 0.0
            self.step_s = old + max(STEP_WEIGHT, 1 / self.gaps) * (gap - old)
            if self.gaps >= TRUSTED_GAPS:
                self.trusted_s = self.step_s
        self.last_at, self.last_end = now, end


@dataclass(slots=True)
class Leg:
    """One live assignment of a request to a worker.

    `base`: the law's length when it started. `cover`: law tokens whose KV the import brings.
    `source`: epoch of the leg that sends its KV; None for prefill, or when the source is lost.
    """

    key: LegId
    epoch: int
    role: Role
    worker: str
    site: str
    base: int
    cover: int
    opened_at: float
    source: int | None = None
    source_at: float | None = None  # when the KV could begin to move
    source_site: str | None = None  # and from where, also when that leg has ended
    gone: int = 0  # tokens of its prompt that its source has not kept
    landed_at: float | None = None
    first_at: float | None = None  # its first accepted token, which has this index
    first_index: int | None = None
    ended_at: float | None = None
    lost: bool = False  # it failed, and its role was to be filled anew
    heard_at: float | None = None  # the newest run, also an empty one
    spoke_at: float | None = None  # the newest run with tokens of its own
    owes_since: float | None = None  # it has not said since then what it should (see `owes`)
    heard: int = 0  # newest index heard + 1
    fed: int = 0  # how much of the law the worker says it knows
    sent: int = 0  # how much of the law was fed
    produced: bool = False  # a prefill leg has given its one token
    accepted: int = 0
    rank: int = field(init=False)
    parked: list[TokenRun] = field(default_factory=list)
    queued_on: tuple[LinkView, ...] = ()  # that have its KV in their books
    clock: StepClock = field(default_factory=StepClock)
    pause_seq: int = 0
    paused: bool = False
    paused_since: float | None = None
    pause_at: int | None = None  # K, once the worker has said it
    resync_after: float = 0.0
    resync_wait: float = 0.0

    def __post_init__(self) -> None:
        self.rank = RANK[self.role]

    @property
    def landed(self) -> bool:
        return self.landed_at is not None

    @property
    def deaf(self) -> bool:
        """It has not said that it knows all it was fed. What it produced needs no saying."""
        return not self.accepted and self.fed < self.sent and self.role is not PREFILL


@dataclass(slots=True)
class Account:
    """What a request's summary is made of. Gateway clock, seconds; None: not yet."""

    routed_at: float | None = None
    first_token_at: float | None = None
    cached_tokens: int = 0
    landed_at: float | None = None
    relay_first_at: float | None = None
    relay_last_at: float | None = None
    relay_tokens: int = 0
    handoff_index: int | None = None
    relay_step_s: float | None = None
    main_step_s: float | None = None
    kv_bytes_raw: int = 0
    kv_bytes_wire: int = 0
    recoveries: int = 0
    workers: dict[str, str] = field(default_factory=dict)
    releases: list[tuple[int, float]] = field(default_factory=list)  # near the handoff: (end, when)

    def note_release(self, end: int, now: float) -> None:
        """Tokens up to `end` went to the client. Only those near the handoff are kept."""
        last = self.releases[-1][0] if self.releases else 0
        if self.handoff_index is not None and last > self.handoff_index + NEAR_HANDOFF:
            return
        self.releases.append((end, now))
        if self.handoff_index is None and len(self.releases) > NEAR_HANDOFF + 1:
            del self.releases[0]


@dataclass(slots=True)
class Request:
    """A request that has arrived and not ended."""

    spec: Arrived
    mode: HandoffMode
    arrived_at: float
    watch: StopWatch | None
    prefix: tuple[Name, ...]
    name: str = field(init=False)
    prompt: int = field(init=False)  # tokens
    phase: Phase = Phase.QUEUED
    decision: Decision | None = None
    law: Law = field(default_factory=Law)
    legs: dict[int, Leg] = field(default_factory=dict)
    past: list[Leg] = field(default_factory=list)  # that have ended, for the request's timeline
    prefill: Leg | None = None  # the live leg with this role; there is never more than one
    relay: Leg | None = None
    main: Leg | None = None
    next_epoch: int = 0
    excluded: set[str] = field(default_factory=set)
    failed_sources: set[int] = field(default_factory=set)  # legs whose KV did not arrive
    lost: dict[Role, int] = field(default_factory=NONE_LOST.copy)
    restarts: int = 0
    refused: bool = False  # what it lacks was refused, not lost
    relay_finishes: bool = False  # no further main is tried; the relay brings the request home
    parks: bool = False  # some leg may have runs that wait for their turn
    sole: Leg | None = None  # main, while its tokens need no judging (see `accept.take_next`)
    released: int = 0
    release_at: float | None = None  # when the next paced token is due
    lead_spent: bool = False  # after the handoff nothing was held back any more
    over: bool = False  # ended well or badly; nothing is accepted any more
    ended: FinishReason | None = None
    failed: tuple[Failure, str] | None = None
    account: Account = field(default_factory=Account)
    waiting_since: float | None = None  # no place was found since then
    retry_at: float | None = None  # when to look again for what could not be placed
    due_at: float | None = None  # when the machine looks at it again, as its heap has it

    def __post_init__(self) -> None:
        self.name, self.prompt = self.spec.request, token_count(self.spec.prompt_ids)

    @property
    def limit(self) -> int:
        return self.spec.limit

    @property
    def remaining(self) -> int:
        return self.spec.limit - len(self.law.ids)

    def end(self, reason: FinishReason) -> None:
        """The law is complete."""
        self.over, self.ended = True, reason

    def fail(self, failure: Failure, message: str) -> None:
        """It is given up."""
        self.over, self.failed = True, (failure, message)

    def add(self, leg: Leg) -> None:
        """A leg has started."""
        self.legs[leg.epoch] = leg
        setattr(self, leg.role, leg)

    def remove(self, leg: Leg) -> None:
        """A leg has ended."""
        del self.legs[leg.epoch]
        self.past.append(leg)
        setattr(self, leg.role, None)

    def leg(self, role: Role) -> Leg | None:
        """The live leg with this role."""
        leg: Leg | None = getattr(self, role)
        return leg

    @property
    def authority(self) -> Leg | None:
        """The highest-ranked live leg with an accepted token."""
        for leg in (self.main, self.relay, self.prefill):
            if leg is not None and leg.accepted:
                return leg
        return None

    def owes(self, leg: Leg) -> bool:
        """Whether a leg that speaks leaves something out, so that it must be asked.

        A feed may have been lost; or a token before one that has come, when nobody else brings it.
        """
        return leg.deaf or (bool(leg.parked) and self._alone(leg))

    def _alone(self, leg: Leg) -> bool:
        """Whether nobody but this leg brings the next token."""
        if leg is self.authority:
            return True
        return leg is self.main and (self.relay is None or self.relay.paused)

    def joint_phase(self) -> Phase:
        """Where the live legs say that the request stands."""
        relay, main = self.relay, self.main
        kv = ABSENT if main is None else MOVING if main.landed_at is None else LANDED
        if self.over:
            token = ENDED
        elif self.decision is None:
            token = UNROUTED
        elif not self.law.ids:
            token = EMPTY
        elif main is not None and main.accepted:
            token = MAIN_BRINGS
        elif relay is not None:
            token = PAUSED if relay.paused else RELAYING
        else:
            token = WAITING
        return JOINT[token, kv]
