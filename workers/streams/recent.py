"""What a worker keeps to say again: the answers of the last seconds, per gateway.

Tokens that a gateway misses it asks for with a resync; answers (landed, paused, refused, ...)
nobody would ask for, so a gateway that comes back is told the recent ones again.
"""

from collections import deque

from workers.api.messages import Load, TokenRun, UpMessage

ANSWERS_S = 30.0
ANSWERS = 512  # per gateway


class RecentAnswers:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, UpMessage]]] = {}

    def note(self, gateway: str, message: UpMessage, now: float) -> None:
        """A message goes up; it is kept if it is an answer."""
        if not isinstance(message, TokenRun | Load):
            answers = self._answers.setdefault(gateway, deque(maxlen=ANSWERS))
            answers.append((now, message))

    def recent(self, gateway: str, now: float) -> list[UpMessage]:
        """What to tell a gateway that opens its stream, oldest first."""
        self._forget(gateway, now)
        return [message for _, message in self._answers.get(gateway, ())]

    def forget_old(self, now: float) -> None:
        """Drop what is too old to be of use."""
        for gateway in list(self._answers):
            self._forget(gateway, now)

    def _forget(self, gateway: str, now: float) -> None:
        answers = self._answers.get(gateway)
        if answers is None:
            return
        while answers and answers[0][0] < now - ANSWERS_S:
            answers.popleft()
        if not answers:
            del self._answers[gateway]
