"""How fast counts grow and how long workers have been silent: seen only while somebody looks.

Nothing runs when nobody asks: every question is a sample, and answers come from the last few.
"""

from collections import deque
from collections.abc import Mapping

from workers.api.messages import HEARTBEAT_S, Load

# Workers report once a second: over less than this a rate would jump between none and two reports.
WINDOW_S = 5.0
GAP_S = 15.0  # a sample this old says nothing of now
SILENT_S = 3 * HEARTBEAT_S


class Rates:
    """How fast named counts have grown in the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def sample(self, counts: Mapping[str, float], now: float) -> dict[str, float | None]:
        """Per second; None: not yet known, or the count began anew."""
        samples = self._samples
        if samples and now - samples[-1][0] > GAP_S:
            samples.clear()
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()
        at, before = samples[0]
        known = now - at >= HEARTBEAT_S
        return {
            name: (count - before[name]) / (now - at)
            if known and before.get(name, count + 1) <= count
            else None
            for name, count in counts.items()
        }


class Silence:
    """How long ago each worker's last account of itself was first seen."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[Load | None, float]] = {}

    def sample(self, loads: Mapping[str, Load | None], now: float) -> dict[str, float]:
        """Seconds by worker, 0 for what is new."""
        for name in self._heard.keys() - loads.keys():
            del self._heard[name]
        for name, load in loads.items():
            known = self._heard.get(name)
            if known is None or known[0] is not load:
                self._heard[name] = (load, now)
        return {name: now - at for name, (_, at) in self._heard.items()}
