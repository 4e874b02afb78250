"""What is asked lately, as the few classes that the planner thinks in."""

from collections import deque

from orchestrator.plan.demand import Asked, RequestClass, classes_of

FEW = 50  # requests of which nothing is concluded
MOST = 1000  # that are kept
LATELY_S = 900.0
CLASSES = 4


class Window:
    """The requests that ended lately. Times are seconds on one clock, in order."""

    def __init__(self) -> None:
        self._ended: deque[Asked] = deque(maxlen=MOST)

    def ended(self, at: float, *, prompt: int, output: int, hit: int) -> None:
        """A request has ended well. `hit`: tokens of its prompt that prefill did not compute."""
        self._ended.append(Asked(at, prompt, output, hit))

    def classes(self, now: float) -> tuple[RequestClass, ...] | None:
        """None: there were too few to say."""
        while self._ended and now - self._ended[0].at > LATELY_S:
            self._ended.popleft()
        return tuple(classes_of(self._ended, CLASSES)) if len(self._ended) >= FEW else None
