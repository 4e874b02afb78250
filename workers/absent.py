"""Legs that are not here: what came before their start, and what is remembered after their end."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.api.messages import Cause, DownMessage
from workers.engines.base import SeqId

PARKED_S = 10.0  # a start that is later than this after its other messages is taken for lost
_PARKED_LEGS = 1024
_PARKED_PER_LEG = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A leg that ended. `refusal`: why the gateway must hear that it is gone; None: it knows."""

    expires: float
    gateway: str | None  # None: stopped before it started
    refusal: str | None = None
    cause: Cause = Cause.BUSY


@dataclass(slots=True)
class _Parked:
    expires: float
    messages: deque[DownMessage] = field(default_factory=lambda: deque(maxlen=_PARKED_PER_LEG))


class Absent:
    """Tombstones and parked messages. Both expire in the order they came."""

    def __init__(self, tombstone_s: float) -> None:
        self._tombstone_s = tombstone_s
        self._tombstones: dict[SeqId, Tombstone] = {}
        self._parked: dict[SeqId, _Parked] = {}

    def tombstone(self, seq: SeqId) -> Tombstone | None:
        return self._tombstones.get(seq)

    def bury(
        self,
        seq: SeqId,
        now: float,
        gateway: str | None,
        *,
        refusal: str | None = None,
        cause: Cause = Cause.BUSY,
    ) -> None:
        """Remember that a leg has ended; a second burial changes nothing."""
        self._tombstones.setdefault(
            seq,
            Tombstone(
                expires=now + self._tombstone_s,
                gateway=gateway,
                refusal=refusal,
                cause=cause,
            ),
        )

    def park(self, seq: SeqId, message: DownMessage, now: float) -> list[DownMessage]:
        """Keep a message until its leg starts; returns those given up to make room for it."""
        parked = self._parked.get(seq)
        if parked is None:
            parked = self._parked[seq] = _Parked(expires=now + PARKED_S)
        dropped: list[DownMessage] = []
        if len(parked.messages) == _PARKED_PER_LEG:
            dropped.append(parked.messages.popleft())
        parked.messages.append(message)
        if len(self._parked) > _PARKED_LEGS:
            dropped.extend(self.unpark(next(iter(self._parked))))
        return dropped

    def unpark(self, seq: SeqId) -> list[DownMessage]:
        """The messages that waited for this leg, in the order they came."""
        parked = self._parked.pop(seq, None)
        return [] if parked is None else list(parked.messages)

    def next_deadline(self) -> float | None:
        times = [*_first(self._tombstones), *_first(self._parked)]
        return min(times, default=None)

    def expire(self, now: float) -> list[DownMessage]:
        """Forget what is old; returns the parked messages whose start never came."""
        while self._tombstones and next(iter(self._tombstones.values())).expires <= now:
            del self._tombstones[next(iter(self._tombstones))]
        given_up: list[DownMessage] = []
        while self._parked and next(iter(self._parked.values())).expires <= now:
            given_up.extend(self.unpark(next(iter(self._parked))))
        return given_up


def _first(queue: Mapping[SeqId, Tombstone | _Parked]) -> list[float]:
    return [next(iter(queue.values())).expires] if queue else []
