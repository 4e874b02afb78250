"""Messages to one worker, until they are delivered or no longer worth it."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from workers.api.messages import DownMessage, Feed, Resync, Stop

RETRY_S = 0.2
RETRY_MOST_S = 2.0
GIVE_UP_S = 50.0  # with the last answer awaited, before the tombstone of a stopped leg is gone
POST_TIMEOUT_S = 10.0  # an answer that takes longer has failed
POSTS_AT_ONCE = 8  # per path; what comes meanwhile travels together in the next


class Path(StrEnum):
    """Where a worker takes messages."""

    CONTROL = "/control"
    FEED = "/feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Messages to put on the wire now, together. Its outcome is told to the outbox once."""

    number: int
    path: Path
    messages: tuple[DownMessage, ...]


@dataclass(slots=True)
class _Try:
    """A post and its patience. `again_at` None: it is on the wire."""

    post: Post
    give_up_at: float
    wait_s: float
    again_at: float | None = None


class Outbox:
    """Control is delivered at least once, or given up after `GIVE_UP_S`; feeds are tried once.

    Call `due` at the end of every turn that told the outbox something, and at `next_deadline()`.
    The order of posts is not kept on the wire: messages carry what they need to be unordered.
    """

    def __init__(self) -> None:
        self._waiting: dict[Path, list[DownMessage]] = {path: [] for path in Path}
        self._tries: dict[Path, dict[int, _Try]] = {path: {} for path in Path}
        # Halves of refused control posts: (messages, when to give them up).
        self._halves: deque[tuple[tuple[DownMessage, ...], float]] = deque()
        self._again_at: float | None = None
        self._posted = 0

    @property
    def empty(self) -> bool:
        """Nothing waits and nothing is on its way."""
        return not self._halves and not any(
            self._waiting[path] or self._tries[path] for path in Path
        )

    def put(self, message: DownMessage) -> None:
        path = Path.FEED if isinstance(message, Feed | Resync) else Path.CONTROL
        self._waiting[path].append(message)

    def due(self, now: float) -> list[Post]:
        """The posts to hand to the wire now."""
        posts = []
        if self._again_at is not None and self._again_at <= now:
            for attempt in self._tries[Path.CONTROL].values():
                if attempt.again_at is not None and attempt.again_at <= now:
                    attempt.again_at = None
                    posts.append(attempt.post)
            self._set_deadline()
        while self._halves and self._room(Path.CONTROL):
            messages, give_up_at = self._halves.popleft()
            posts.append(self._begin(Path.CONTROL, messages, give_up_at))
        for path, waiting in self._waiting.items():
            if waiting and self._room(path):
                self._waiting[path] = []
                posts.append(self._begin(path, tuple(waiting), now + GIVE_UP_S))
        return posts

    def delivered(self, post: Post) -> None:
        """The worker has taken the post."""
        self._tries[post.path].pop(post.number, None)

    def failed(self, post: Post, now: float, *, refused: bool) -> tuple[DownMessage, ...]:
        """The post did not arrive, or the worker `refused` it as it is (4xx). What is given up.

        A refusal is about one message, perhaps: the others must not go down with it.
        """
        attempt = self._tries[post.path].get(post.number)
        if attempt is None:
            return ()
        if post.path is Path.CONTROL:
            if refused and len(post.messages) > 1:
                del self._tries[post.path][post.number]
                middle = len(post.messages) // 2
                for half in (post.messages[:middle], post.messages[middle:]):
                    self._halves.append((half, attempt.give_up_at))
                return ()
            if not refused and now + attempt.wait_s <= attempt.give_up_at:
                attempt.again_at = now + attempt.wait_s
                attempt.wait_s = min(2 * attempt.wait_s, RETRY_MOST_S)
                self._set_deadline()
                return ()
        del self._tries[post.path][post.number]
        return post.messages

    def next_deadline(self) -> float | None:
        """When a post that failed is due again."""
        return self._again_at

    def lost(self) -> None:
        """Forget what was meant for the lost process, but for the stops: they free memory."""
        under_way = [a.post.messages for a in self._tries[Path.CONTROL].values()]
        halves = [messages for messages, _ in self._halves]
        control = [*under_way, *halves, tuple(self._waiting[Path.CONTROL])]
        self._waiting = {path: [] for path in Path}
        self._waiting[Path.CONTROL] = [m for ms in control for m in ms if isinstance(m, Stop)]
        self._tries = {path: {} for path in Path}
        self._halves.clear()
        self._again_at = None

    def _room(self, path: Path) -> bool:
        return len(self._tries[path]) < POSTS_AT_ONCE

    def _begin(self, path: Path, messages: tuple[DownMessage, ...], give_up_at: float) -> Post:
        self._posted += 1
        post = Post(number=self._posted, path=path, messages=messages)
        self._tries[path][post.number] = _Try(post, give_up_at, RETRY_S)
        return post

    def _set_deadline(self) -> None:
        times = [a.again_at for a in self._tries[Path.CONTROL].values() if a.again_at is not None]
        self._again_at = min(times, default=None)
