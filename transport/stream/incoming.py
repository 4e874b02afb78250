"""One KV stream as its receiving end keeps it."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from transport.base import Offer, SliceKey
from transport.stream.frames import Data, Range
from transport.stream.ranges import Ranges

Conn = Hashable


@dataclass(frozen=True, slots=True)
class Pending:
    """A piece that was admitted and is not yet stored.

    `brought`: the connection it is read from, and those on which it came again meanwhile, as it
    does when the sender knows before us that a connection broke: each must hear of it.
    """

    data: Data
    brought: list[Conn]

    def repeated(self, conn: Conn) -> None:
        """It came once more."""
        if conn not in self.brought:
            self.brought.append(conn)


@dataclass(slots=True, kw_only=True, eq=False)
class Incoming:
    """Held and changed by `Receiver`."""

    offer: Offer
    session: bytes  # of the connections that may bring its pieces
    give_up_at: float | None
    have: int | None = None  # None: the sink has not answered yet
    missing: int = 0  # tokens summed over layers and parts
    received: dict[tuple[int, str], Ranges] = field(default_factory=dict)
    pending: dict[SliceKey, Pending] = field(default_factory=dict)
    # Came before the sink had answered, on which connection.
    skipped: dict[SliceKey, Conn] = field(default_factory=dict)
    asked: tuple[Conn, int] | None = None  # where and which attempt is to be answered
    attempt: int = 0  # the last that was seen
    bytes_raw: int = 0
    bytes_wire: int = 0
    first_at: float | None = None

    @property
    def first(self) -> int:
        """The first token that is wanted."""
        return max(self.offer.start, self.have or 0)

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(
            (layer, part, start, stop)
            for (layer, part), ranges in self.received.items()
            for start, stop in ranges
        )

    def has(self, key: SliceKey) -> bool:
        """Whether all of a piece is here."""
        if key.stop <= self.first:
            return True
        ranges = self.received.get((key.layer, key.part))
        return ranges is not None and ranges.covers(max(key.start, self.first), key.stop)

    def foreign(self, key: SliceKey) -> str | None:
        """Why a piece cannot belong to this stream; None: it can."""
        offer = self.offer
        if key.start < offer.start or key.stop > offer.stop:
            return f"tokens {key.start}-{key.stop} outside {offer.start}-{offer.stop}"
        owners = self.received.keys() | {(k.layer, k.part) for k in self.pending}
        if (key.layer, key.part) not in owners and len(owners) >= offer.slices_per_token:
            return f"more than {offer.slices_per_token} slices per token"
        return None

    def store(self, data: Data, body_bytes: int) -> None:
        """Count a piece that has been put."""
        key = data.key
        start = max(key.start, self.first)
        if start < key.stop:
            ranges = self.received.setdefault((key.layer, key.part), Ranges())
            self.missing -= ranges.add(start, key.stop)
        self.bytes_raw += data.raw_bytes
        self.bytes_wire += body_bytes
