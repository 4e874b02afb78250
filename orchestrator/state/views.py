"""The core's view of workers and links, and its books of what it has placed where."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.state.events import WorkerUp
from orchestrator.state.links import LegId, LinkView
from workers.api.messages import Load, Role

# Before anything was measured. Only their order of magnitude matters: every report replaces them.
DEFAULT_STEP_S = 0.05
DEFAULT_PREFILL_TOKENS_PER_S = 200.0
SAME_SITE_RTT_S = 0.0005
UNKNOWN_RTT_S = 0.1  # between two sites without a measured link
SAME_SITE_BYTES_PER_S = 1e9  # where nobody says what a site's network carries


class Booking(NamedTuple):
    """What one leg takes of its worker, as the gateway booked it."""

    role: Role
    tokens: int
    decoding_slot: bool = True
    prefill_tokens: int = 0


@dataclass(slots=True, eq=False)
class WorkerView:
    """One worker as this gateway knows it. The totals are those of `bookings`.

    `room`: tokens one more leg may have by the books, below 0 when every slot is taken; `share`:
    the part of the slots that are taken. Both are read far more often than the books change.
    `slots_theirs` and `tokens_theirs` are other gateways', as last reported, but no more than
    leaves this one as much as any: what they have beyond that it asks for, and the worker sees to
    it that it comes free.
    `prefill_queue_tokens`: prompt tokens that must be computed before a new leg's turn. `step_s`
    (per decode step) and `prefill_tokens_per_s` are as last reported, and never 0.
    """

    up: WorkerUp
    name: str = field(init=False)
    site: str = field(init=False)
    roles: frozenset[Role] = field(init=False)  # that new legs may have
    load: Load | None = None
    draining: bool = False
    step_s: float = field(default=DEFAULT_STEP_S, init=False)
    prefill_tokens_per_s: float = field(default=DEFAULT_PREFILL_TOKENS_PER_S, init=False)
    bookings: dict[LegId, Booking] = field(default_factory=dict, init=False)
    slots_used: int = field(default=0, init=False)
    tokens_booked: int = field(default=0, init=False)
    prefill_queue_tokens: int = field(default=0, init=False)
    slots_theirs: int = field(default=0, init=False)
    tokens_theirs: int = field(default=0, init=False)
    room: int = field(init=False)
    share: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.name, self.site, self.roles = self.up.worker, self.up.site, self.up.roles
        self.room = self.up.kv_total_tokens
        if self.load is not None:
            self.report(self.load)

    def report(self, load: Load) -> None:
        """What the worker says of itself."""
        self.load = load
        self.step_s = load.step_s or DEFAULT_STEP_S
        self.prefill_tokens_per_s = load.prefill_tokens_per_s or DEFAULT_PREFILL_TOKENS_PER_S
        slots, tokens, gateways = self.up.slots, self.up.kv_total_tokens, load.gateways
        self.slots_theirs = min(load.others_slots, slots - -(-slots // gateways))
        self.tokens_theirs = min(load.others_tokens, tokens - -(-tokens // gateways))
        self._sum_up()

    def refused(self) -> None:
        """It had no room for a leg that the books had room for: until it reports, others have all
        that this gateway has not.
        """
        if self.load is not None and self.load.gateways > 1:
            self.slots_theirs = self.up.slots - self.slots_used
            self._sum_up()

    def book(self, leg: LegId, booking: Booking) -> None:
        """Enter what a leg takes; an earlier entry of the same leg is struck out."""
        if leg in self.bookings:
            self.unbook(leg)
        self.bookings[leg] = booking
        self._count(booking, 1)

    def unbook(self, leg: LegId) -> bool:
        """Strike out a leg's entry; False: there is none."""
        booking = self.bookings.pop(leg, None)
        if booking is None:
            return False
        self._count(booking, -1)
        return True

    def _count(self, booking: Booking, sign: int) -> None:
        self.slots_used += sign * booking.decoding_slot
        self.tokens_booked += sign * booking.tokens
        self.prefill_queue_tokens += sign * booking.prefill_tokens
        self._sum_up()

    def _sum_up(self) -> None:
        slots, used = self.up.slots, self.slots_used + self.slots_theirs
        left = self.up.kv_total_tokens - self.tokens_booked - self.tokens_theirs
        self.room = left if used < slots else -1
        self.share = used / slots

    def leaves(self, tokens: int, gone: int = 0) -> int:
        """How many of a prompt's tokens it has once all are computed, `gone` of them nowhere."""
        keeps, live = self.up.keeps, tokens - gone
        return live if keeps is None else keeps.left(live, tokens, tokens)

    def settle(self, leg: LegId, prompt: int, gone: int) -> bool:
        """All of a leg's prompt is there, but for `gone` tokens that its source did not keep.

        What will be kept of it is less than it has set aside; False: it is not.
        """
        booking = self.bookings.get(leg)
        if booking is None:
            return False
        keeps, tokens = self.up.keeps, booking.tokens - gone
        if keeps is not None:
            tokens = min(tokens, keeps.most(booking.tokens, prompt))
        if tokens == booking.tokens:
            return False
        self.book(leg, booking._replace(tokens=tokens))
        return True

    def has_room(self, tokens: int) -> bool:
        """Whether one more leg of `tokens` fits the books."""
        return tokens <= self.room


@dataclass(slots=True)
class World:
    """All workers and links at the time `now`, and the site this gateway stands in.

    `site_bytes_per_s`: what carries KV inside a site, of those that the topology says it of.

    A link is known by where it comes from and where it goes: both ways have a view of their own.
    """

    gateway_site: str
    workers: dict[str, WorkerView] = field(default_factory=dict)
    links: dict[tuple[str, str], LinkView] = field(default_factory=dict)
    site_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0

    def link(self, a: str, b: str) -> LinkView | None:
        """The link from `a` to `b`; None when there is none (or when they are one site)."""
        return self.links.get((a, b))

    def rtt_s(self, a: str, b: str) -> float:
        """Round trip between two sites; a site to itself takes next to nothing."""
        if a == b:
            return SAME_SITE_RTT_S
        link = self.link(a, b)
        return link.rtt_s(self.now) if link else UNKNOWN_RTT_S

    def inside_bytes_per_s(self, site: str) -> float:
        """What carries KV from one worker of a site to another."""
        return self.site_bytes_per_s.get(site, SAME_SITE_BYTES_PER_S)

    def connected(self, a: str, b: str) -> bool:
        return a == b or self.link(a, b) is not None

    def drop_worker(self, name: str) -> None:
        """The worker is gone, and what it said of its links."""
        del self.workers[name]
        for link in self.links.values():
            link.forget(name)
