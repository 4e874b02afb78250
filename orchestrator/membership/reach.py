"""Whether a worker can be reached: judged by its token stream, opened again and again."""

from dataclasses import dataclass

from orchestrator.membership.reports import Hello
from workers.api.wire import WireError

# So many streams in a row that end without a hello: nobody is there, also behind a line that
# takes the connection before it knows.
REFUSALS_TO_LOSE = 2
# A stream that lasted this long ended by accident: it is opened again at once, others with
# back-off, so that a worker which greets and fails is not asked in a circle.
STEADY_S = 1.0
RECONNECT_S = 0.25
RECONNECT_MOST_S = 2.0
CONNECT_TIMEOUT_S = 10.0
# While a worker is up, an empty post this often keeps the gateway's lease on its legs; the worker
# beats as often. Below a lease, so that one stuck renewal does not cost it.
RENEW_S = 1.0
RENEW_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CameUp:
    """A process says hello that was not known: its worker holds nothing yet."""

    hello: Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class CameBack:
    """The stream was opened again by the same process; what it said meanwhile may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The worker refused, restarted or was silent too long."""

    reason: str


News = CameUp | CameBack | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the end of a stream means, and how long to wait before the next is opened."""

    news: list[News]
    wait_s: float


class Reach:
    """One worker as seen through its token stream.

    Tell it of every stream: `attempt`, then `greeted` when a hello comes, then `ended`. A stream
    that brings nothing for `unreachable_s` must be given up and ended as `silent`.
    """

    def __init__(self, worker: str, *, unreachable_s: float, now: float) -> None:
        self.worker = worker
        self._unreachable_s = unreachable_s
        self.incarnation: str | None = None  # of the process that said hello; None: lost
        self._refusals = 0
        self._wait_s = RECONNECT_S
        self._unheard_since = now
        self._opened_at = now
        self._greeted = False

    @property
    def up(self) -> bool:
        return self.incarnation is not None

    def attempt(self, now: float) -> None:
        """A stream is about to be opened."""
        self._opened_at, self._greeted = now, False

    def greeted(self, hello: Hello) -> list[News]:
        """The open stream's hello. Raises WireError when another worker answers."""
        if hello.worker != self.worker:
            raise WireError(f"{hello.worker!r} answered in place of {self.worker!r}")
        self._greeted, self._refusals = True, 0
        if self.incarnation == hello.incarnation:
            return [CameBack()]
        news: list[News] = [Lost(reason="it restarted")] if self.up else []
        self.incarnation = hello.incarnation
        return [*news, CameUp(hello=hello)]

    def ended(self, reason: str, now: float, *, silent: bool = False) -> Ended:
        """The stream is over, or could not be opened."""
        if self._greeted:
            self._unheard_since = now
        else:
            self._refusals += 1
        late = now - self._unheard_since >= self._unreachable_s
        news: list[News] = []
        if self.up and (silent or late or self._refusals >= REFUSALS_TO_LOSE):
            self.incarnation = None
            news.append(Lost(reason=reason))
        if self._greeted and now - self._opened_at >= STEADY_S:
            self._wait_s = RECONNECT_S
            return Ended(news=news, wait_s=0.0)
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, RECONNECT_MOST_S)
        return Ended(news=news, wait_s=wait_s)
