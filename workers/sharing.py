"""How gateways share one worker: each takes what is free, and who was refused comes next.

Without it the gateway that has most of the slots keeps them: it knows at once when one of its legs
ends, and fills the slot before any other has asked again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from workers.api.messages import HEARTBEAT_S, Load

# Who was refused asks again when it has heard the worker's load; later it has gone elsewhere.
KEPT_S = 2 * HEARTBEAT_S


class Taken(NamedTuple):
    """What the legs of one gateway take: slots, and reserved tokens of KV memory."""

    slots: int = 0
    tokens: int = 0


class Sharing:
    """Remembers who was refused for want of room, and keeps slots for them, one for each leg."""

    def __init__(self) -> None:
        self._refused: dict[str, deque[float]] = {}  # by gateway, when

    def refused(self, gateway: str, now: float) -> None:
        """A leg of this gateway found no room."""
        self._refused.setdefault(gateway, deque()).append(now)

    def started(self, gateway: str) -> None:
        """A leg of this gateway got its place."""
        waiting = self._refused.get(gateway)
        if waiting:
            waiting.popleft()

    def kept_from(self, gateway: str, taken: Mapping[str, Taken], now: float) -> int:
        """Slots that are not for this gateway now: those of others who have fewer than it has."""
        own = taken.get(gateway, Taken()).slots
        kept = 0
        for other, waiting in list(self._refused.items()):
            while waiting and waiting[0] + KEPT_S <= now:
                waiting.popleft()
            if not waiting:
                del self._refused[other]
            elif other != gateway:
                kept += min(len(waiting), max(0, own - taken.get(other, Taken()).slots))
        return kept


def told_to(gateway: str, load: Load, taken: Mapping[str, Taken]) -> Load:
    """A worker's load as one gateway is told it: with what the legs of all others take."""
    if len(taken) <= 1:
        return load
    others = [share for name, share in taken.items() if name != gateway]
    return replace(
        load,
        gateways=len(taken),
        others_slots=sum(share.slots for share in others),
        others_tokens=sum(share.tokens for share in others),
    )
