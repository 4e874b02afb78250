"""The core's view of workers and links, and its books of what it has placed where."""

from dataclasses import dataclass, field

from orchestrator.state.events import WorkerUp
from workers.api.messages import Load, Role

# Before anything was measured. Only their order of magnitude matters: every report replaces them.
DEFAULT_STEP_S = 0.05
DEFAULT_PREFILL_TOKENS_PER_S = 200.0
SAME_SITE_RTT_S = 0.0005
UNKNOWN_RTT_S = 0.1  # between two sites without a measured link
SAME_SITE_BYTES_PER_S = 1e9


@dataclass(slots=True)
class Booking:
    """What one leg takes of its worker, as the gateway booked it."""

    role: Role
    tokens: int
    decoding_slot: bool = True
    prefill_tokens: int = 0


@dataclass(slots=True)
class WorkerView:
    """One worker as this gateway knows it."""

    up: WorkerUp
    load: Load | None = None
    draining: bool = False
    bookings: dict[tuple[str, int], Booking] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.up.worker

    @property
    def site(self) -> str:
        return self.up.site

    @property
    def slots_used(self) -> int:
        return sum(b.decoding_slot for b in self.bookings.values())

    @property
    def tokens_booked(self) -> int:
        return sum(b.tokens for b in self.bookings.values())

    @property
    def prefill_queue_tokens(self) -> int:
        """Prompt tokens that must be computed before a new leg's turn."""
        return sum(b.prefill_tokens for b in self.bookings.values())

    @property
    def step_s(self) -> float:
        """Seconds per decode step, as last reported; never 0."""
        reported = self.load.step_s if self.load else None
        return reported or DEFAULT_STEP_S

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed per second, as last reported; never 0."""
        reported = self.load.prefill_tokens_per_s if self.load else None
        return reported or DEFAULT_PREFILL_TOKENS_PER_S

    def has_room(self, tokens: int) -> bool:
        """Whether one more leg of `tokens` fits the books."""
        return (
            self.slots_used < self.up.slots
            and self.tokens_booked + tokens <= self.up.kv_total_tokens
        )


@dataclass(slots=True)
class LinkView:
    """The path between two sites: what it gives and what this gateway has still to send."""

    rtt_s: float
    goodput_bytes_per_s: float
    queued: dict[tuple[str, int], int] = field(default_factory=dict)  # leg -> bytes under way

    @property
    def queue_bytes(self) -> int:
        return sum(self.queued.values())


@dataclass(slots=True)
class World:
    """All workers and links, and the site this gateway stands in."""

    gateway_site: str
    workers: dict[str, WorkerView] = field(default_factory=dict)
    links: dict[frozenset[str], LinkView] = field(default_factory=dict)

    def link(self, a: str, b: str) -> LinkView | None:
        """The path between two sites; None when there is none (or when they are one site)."""
        return self.links.get(frozenset((a, b)))

    def rtt_s(self, a: str, b: str) -> float:
        """Round trip between two sites; a site to itself takes next to nothing."""
        if a == b:
            return SAME_SITE_RTT_S
        link = self.link(a, b)
        return link.rtt_s if link else UNKNOWN_RTT_S

    def connected(self, a: str, b: str) -> bool:
        return a == b or self.link(a, b) is not None
