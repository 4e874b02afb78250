"""One KV stream as its sending end keeps it."""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from transport.base import Offer, SliceKey, StreamId
from transport.stream.frames import Data
from transport.stream.pace import Sent
from transport.stream.ranges import Ranges

Conn = Hashable
Owner = tuple[int, str]  # layer, part


class Phase(StrEnum):
    """`OFFERED`: the receiver has not answered yet."""

    OFFERED = "offered"
    OPEN = "open"
    DONE = "done"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Flight:
    """A piece that was written and not yet acknowledged."""

    conn: Conn
    sent: Sent


@dataclass(slots=True, kw_only=True, eq=False)
class Outgoing:
    """Held and changed by `Sender`; everyone else only reads it.

    Every piece that was pushed stays in `unacked` until it is acknowledged, and meanwhile is in
    just one of `queue`, `flying` and `uncertain`.
    """

    offer: Offer
    order: int  # streams to one peer, in the order they were opened
    opened_at: float
    token_bytes: int  # raw KV of one token, all layers and parts
    weight: float
    early: bool
    phase: Phase = Phase.OFFERED
    have: int | None = None  # leading tokens the receiver had; None: not yet accepted
    reason: str | None = None  # why it is broken
    sent_bytes: int = 0  # coded, repeats included
    resent_bytes: int = 0  # of those, what had been written before

    unacked: dict[SliceKey, Data] = field(default_factory=dict)
    queue: deque[SliceKey] = field(default_factory=deque)
    flying: dict[SliceKey, Flight] = field(default_factory=dict)
    uncertain: set[SliceKey] = field(default_factory=set)  # flew on a connection that broke
    written: set[SliceKey] = field(default_factory=set)  # of `unacked`
    acked: dict[Owner, Ranges] = field(default_factory=dict)
    queued_bytes: int = 0
    sent_raw: int = 0

    attempt: int = 0
    awaiting: bool = True  # an answer to the offer
    asked_on: set[Conn] = field(default_factory=set)
    promised: list[tuple[Owner, int, int]] = field(default_factory=list)  # acked when asked
    finishing: bool = False
    finish_sent: bool = False
    give_up_at: float | None = None
    stall_at: float | None = None
    breaks: int = 0
    damaged: int = 0  # times the receiver asked again since it last acknowledged

    @property
    def stream(self) -> StreamId:
        return self.offer.stream

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.BROKEN)

    @property
    def remaining_bytes(self) -> int:
        """Raw bytes that no connection was given yet."""
        first = max(self.offer.start, self.have or 0)
        return max(0, (self.offer.stop - first) * self.token_bytes - self.sent_raw)

    def may_fly_on(self, conn: Conn) -> bool:
        """Whether there is a piece that may be written on `conn` now."""
        if not self.queue:
            return False
        return self.phase is Phase.OPEN or (self.early and conn in self.asked_on)

    def covered(self, key: SliceKey) -> bool:
        """Whether the receiver had it before."""
        return self.have is not None and key.stop <= self.have

    def enqueue(self, key: SliceKey, *, first: bool = False) -> None:
        """`key` of `unacked` is to be written."""
        if first:
            self.queue.appendleft(key)
        else:
            self.queue.append(key)
        self.queued_bytes += len(self.unacked[key].body)

    def take(self) -> Data:
        """The piece at the head of the queue."""
        data = self.unacked[self.queue.popleft()]
        self.queued_bytes -= len(data.body)
        return data

    def settle(self, key: SliceKey) -> Data | None:
        """The receiver has it; None: that was known. The caller takes it off the flights."""
        data = self.unacked.pop(key, None)
        if data is None:
            return None
        if key in self.queue:  # damaged once, or resent after a break: rarely more than a few
            self.queue.remove(key)
            self.queued_bytes -= len(data.body)
        self.uncertain.discard(key)
        self.written.discard(key)
        self.acked.setdefault((key.layer, key.part), Ranges()).add(key.start, key.stop)
        return data

    def clear(self) -> None:
        """Its memory goes."""
        for held in (self.unacked, self.queue, self.flying, self.uncertain, self.written):
            held.clear()
        self.acked.clear()
        self.promised.clear()
        self.queued_bytes = 0
