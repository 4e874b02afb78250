"""Messages until they are delivered: at least once for control, once for feeds, stops always."""

import inspect
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.membership.outbox import (
    GIVE_UP_S,
    POST_TIMEOUT_S,
    POSTS_AT_ONCE,
    RETRY_MOST_S,
    RETRY_S,
    Outbox,
    Path,
    Post,
)
from workers.api.messages import DownMessage, Feed, Pause, Resync, Stop
from workers.worker import Worker


def pause(request: str) -> Pause:
    return Pause(request=request, epoch=1, seq=1)


def stop(request: str) -> Stop:
    return Stop(request=request, epoch=1)


def feed(request: str) -> Feed:
    return Feed(request=request, epoch=1, law=3, start=2, ids=(5,))


def resync(request: str) -> Resync:
    return Resync(request=request, epoch=1, start=0)


def put(outbox: Outbox, *messages: DownMessage) -> Outbox:
    for message in messages:
        outbox.put(message)
    return outbox


def only(posts: list[Post]) -> Post:
    assert len(posts) == 1
    return posts[0]


def test_the_messages_of_one_turn_travel_together_by_path() -> None:
    outbox = put(Outbox(), feed("a"), pause("a"), resync("a"), stop("a"))
    posts = {post.path: post.messages for post in outbox.due(0.0)}
    assert posts == {
        Path.CONTROL: (pause("a"), stop("a")),
        Path.FEED: (feed("a"), resync("a")),
    }
    assert outbox.due(0.0) == []


def test_control_that_fails_is_tried_again_with_back_off_then_given_up() -> None:
    outbox = put(Outbox(), pause("a"))
    now, waits, given_up = 0.0, [], ()
    while not given_up:
        post = only(outbox.due(now))
        assert post.messages == (pause("a"),)
        assert outbox.next_deadline() is None, "it is on the wire"
        given_up = outbox.failed(post, now, refused=False)
        if (due := outbox.next_deadline()) is not None:
            assert outbox.due(due - 0.001) == []
            waits.append(round(due - now, 6))
            now = due
    assert waits[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert set(waits[4:]) == {RETRY_MOST_S}
    assert GIVE_UP_S - RETRY_MOST_S < now <= GIVE_UP_S
    assert given_up == (pause("a"),)
    assert outbox.empty


def test_nothing_arrives_after_the_tombstone_of_its_leg() -> None:
    """Else a start whose answers were all lost could open a leg that was stopped long ago."""
    tombstone_s = inspect.signature(Worker).parameters["tombstone_s"].default
    assert tombstone_s >= GIVE_UP_S + POST_TIMEOUT_S


def test_a_feed_is_tried_once() -> None:
    outbox = put(Outbox(), feed("a"))
    assert outbox.failed(only(outbox.due(0.0)), 0.0, refused=False) == (feed("a"),)
    assert outbox.next_deadline() is None
    assert outbox.empty


def test_posts_under_way_or_in_back_off_are_bounded_by_path_and_the_rest_follows_together() -> None:
    outbox, posts = Outbox(), []
    for number in range(POSTS_AT_ONCE):
        posts += put(outbox, stop(str(number))).due(0.0)
    assert len(posts) == POSTS_AT_ONCE
    assert put(outbox, stop("x"), stop("y")).due(0.0) == []
    assert only(put(outbox, feed("z")).due(0.0)).path is Path.FEED
    outbox.failed(posts[0], 1.0, refused=False)
    assert outbox.due(1.0) == []
    outbox.delivered(posts[1])
    assert only(outbox.due(1.0)).messages == (stop("x"), stop("y"))


def test_a_refused_message_is_not_repeated() -> None:
    outbox = put(Outbox(), stop("a"))
    assert outbox.failed(only(outbox.due(0.0)), 0.0, refused=True) == (stop("a"),)
    assert outbox.empty


def test_a_refused_message_does_not_take_its_companions_with_it() -> None:
    messages = [stop("a"), pause("poison"), stop("b"), stop("c"), pause("d")]
    outbox = put(Outbox(), *messages)
    delivered: list[DownMessage] = []
    given_up: list[DownMessage] = []
    while posts := outbox.due(0.0):
        for post in posts:
            if pause("poison") in post.messages:
                given_up += outbox.failed(post, 0.0, refused=True)
            else:
                outbox.delivered(post)
                delivered += post.messages
    assert given_up == [pause("poison")]
    assert sorted(m.request for m in delivered) == ["a", "b", "c", "d"]
    assert outbox.empty


def test_after_a_loss_only_the_stops_stay() -> None:
    outbox = put(Outbox(), pause("a"), stop("a"))
    wire = only(outbox.due(0.0))
    failed = only(put(outbox, stop("b"), pause("b")).due(0.0))
    outbox.failed(failed, 0.1, refused=False)
    split = only(put(outbox, pause("c"), stop("c")).due(0.2))
    outbox.failed(split, 0.2, refused=True)
    put(outbox, feed("d"), pause("d"), stop("d"))
    outbox.lost()
    assert outbox.next_deadline() is None
    post = only(outbox.due(0.3))
    assert [m.request for m in post.messages] == ["a", "b", "c", "d"]
    assert all(isinstance(m, Stop) for m in post.messages)
    # What was on the wire has an outcome still: it changes nothing any more.
    outbox.delivered(wire)
    assert outbox.failed(wire, 0.3, refused=False) == ()
    assert not outbox.empty
    outbox.delivered(post)
    assert outbox.empty


# ---------------------------------------------------------------- whatever happens

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["pause", "stop", "feed", "resync"])),
        st.tuples(st.sampled_from(["delivered", "failed", "refused"]), st.integers(0, 40)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 1.0, 7.0])),
        st.tuples(st.just("lost"), st.none()),
    ),
    max_size=120,
)
MAKE = {"pause": pause, "stop": stop, "feed": feed, "resync": resync}


class World:
    """An outbox, the wire behind it, and what became of every message."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.now = 0.0
        self.put: dict[str, DownMessage] = {}
        self.wire: list[Post] = []
        self.posted: Counter[str] = Counter()
        self.first_at: dict[str, float] = {}  # posted first, or first after a loss
        self.delivered: set[str] = set()
        self.refused: set[str] = set()
        self.given_up: dict[str, float] = {}
        self.lost: set[str] = set()

    def turn(self) -> None:
        """A turn of the loop ends."""
        for post in self.outbox.due(self.now):
            for message in post.messages:
                self.posted[message.request] += 1
                self.first_at.setdefault(message.request, self.now)
            self.wire.append(post)
        for path in Path:
            assert sum(post.path is path for post in self.wire) <= POSTS_AT_ONCE
        due = self.outbox.next_deadline()
        assert due is None or due > self.now

    def step(self, kind: str, detail: object) -> None:
        if kind == "put":
            name = f"r{len(self.put)}"
            self.put[name] = MAKE[str(detail)](name)
            self.outbox.put(self.put[name])
        elif kind == "wait":
            assert isinstance(detail, float)
            self.now += detail
        elif kind == "lost":
            self.outbox.lost()
            unsettled = self.put.keys() - self.delivered - self.given_up.keys()
            self.lost |= {n for n in unsettled if not isinstance(self.put[n], Stop)}
            for name in unsettled:
                self.first_at.pop(name, None)
            for post in self.wire:  # an outcome that comes late changes nothing
                assert self.outbox.failed(post, self.now, refused=True) == ()
                self.outbox.delivered(post)
            self.wire.clear()
        elif self.wire:
            assert isinstance(detail, int)
            self.outcome(self.wire.pop(detail % len(self.wire)), kind)
        self.turn()

    def outcome(self, post: Post, kind: str) -> None:
        if kind == "delivered":
            self.outbox.delivered(post)
            self.delivered |= {message.request for message in post.messages}
            return
        given_up = self.outbox.failed(post, self.now, refused=kind == "refused")
        for message in given_up:
            self.given_up[message.request] = self.now
        if kind == "refused":
            self.refused |= {message.request for message in given_up}


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_message_is_forgotten(steps: list[tuple[str, object]]) -> None:
    world = World()
    for kind, detail in steps:
        world.step(kind, detail)
    # From here on everything arrives.
    while not world.outbox.empty:
        if world.wire:
            world.step("delivered", 0)
        else:
            due = world.outbox.next_deadline()
            assert due is not None, "messages wait, and nothing will happen"
            world.now = due
            world.turn()
    for name, message in world.put.items():
        if isinstance(message, Feed | Resync):
            assert world.posted[name] <= 1
            assert world.posted[name] == 1 or name in world.lost
        elif name in world.lost:
            assert not isinstance(message, Stop)
        elif name in world.given_up and name not in world.refused:
            # Tried as long as there was hope: one more wait would have been too long.
            tried_s = world.given_up[name] - world.first_at[name]
            assert tried_s > GIVE_UP_S - RETRY_MOST_S
        else:
            assert name in world.delivered | world.refused
