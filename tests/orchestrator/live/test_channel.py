"""The gateway's side of one worker, against a real HTTP server that misbehaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from orchestrator.live import channel as channels
from orchestrator.live.channel import Place, WorkerChannel
from orchestrator.membership import outbox, reach
from orchestrator.membership.reach import CameUp, Lost, News
from tests.orchestrator.live.channel_peer import NAME, WAIT_S, Peer, line, messages_line, serving
from workers.api.messages import Feed, Pause, Resync, Stop, UpMessage
from workers.api.messages import Landed as LandedMessage

UNREACHABLE_S = 0.6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, wait in ((reach, "RECONNECT_S"), (outbox, "RETRY_S"), (channels, "RENEW_S")):
        monkeypatch.setattr(where, wait, 0.05)


class Ear:
    """Notes what the channel tells, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.breaks = False

    def learn(self, worker: str, news: News) -> None:
        if isinstance(news, CameUp):
            self.told.put_nowait(("up", news.hello.pid))
        elif isinstance(news, Lost):
            self.told.put_nowait(("lost", news.reason))
        else:
            self.told.put_nowait(("back", None))

    def heard(self, worker: str, messages: list[UpMessage]) -> None:
        if self.breaks:
            self.breaks = False
            raise LookupError("a defect of the listener")
        self.told.put_nowait(("heard", messages))

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(WAIT_S):
            return await self.told.get()


@contextlib.asynccontextmanager
async def connected(peer: Peer, ear: Ear) -> AsyncIterator[WorkerChannel]:
    url = f"http://127.0.0.1:{peer.port}"
    channel = WorkerChannel(
        NAME,
        Place(control=url, tokens=url),
        site="hami",
        gateway="gw-1",
        secret="s3cret",
        tls=None,
        unreachable_s=UNREACHABLE_S,
        listener=ear,
    )
    try:
        yield channel
    finally:
        await channel.close()


Scenario = Callable[[Peer, Ear, WorkerChannel], Coroutine[Any, Any, None]]


def play(scenario: Scenario) -> None:
    """Run a scenario on a channel that has just come up."""

    async def whole() -> None:
        ear = Ear()
        async with serving() as peer, connected(peer, ear) as channel:
            assert await ear.next() == ("up", 100)
            assert channel.up
            await scenario(peer, ear, channel)

    uvloop.run(whole())


def landed(request: str) -> LandedMessage:
    return LandedMessage(request=request, epoch=1, covered=7)


def stop(request: str) -> Stop:
    return Stop(request=request, epoch=1)


def test_what_the_worker_says_is_heard_in_order_however_it_is_cut_up() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        writer = await peer.stream()
        text = messages_line(landed("a"), landed("b")) + messages_line(landed("c"))
        for at in range(0, len(text), 7):
            writer.write(text[at : at + 7])
            await writer.drain()
        assert await ear.next() == ("heard", [landed("a"), landed("b")])
        assert await ear.next() == ("heard", [landed("c")])

    play(scenario)


def test_a_broken_stream_is_opened_again_and_the_worker_is_back() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        (await peer.stream()).close()
        assert await ear.next() == ("back", None)
        (await peer.stream()).write(messages_line(landed("a")))
        assert await ear.next() == ("heard", [landed("a")])

    play(scenario)


def test_another_pid_is_a_restart() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.pid = 200
        (await peer.stream()).close()
        assert await ear.next() == ("lost", "it restarted")
        assert await ear.next() == ("up", 200)

    play(scenario)


def test_refused_twice_is_lost_and_up_again_when_it_answers() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        await peer.stream()
        await peer.stop()
        kind, reason = await ear.next()
        assert (kind, reason) == ("lost", "not reachable (connection refused)")
        assert not channel.up
        await peer.start()
        assert await ear.next() == ("up", 100)

    play(scenario)


def test_closed_without_a_hello_is_lost_too() -> None:
    """A line takes the connection before it knows whether the worker is there."""

    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.greets = False
        for _ in range(3):
            (await peer.stream()).close()
        assert await ear.next() == ("lost", "its token stream ended")

    play(scenario)


def test_silence_is_lost() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        assert await ear.next() == ("lost", f"silent for {UNREACHABLE_S} s")
        # It greets again: whether it will be heard from, the next silence tells.
        assert await ear.next() == ("up", 100)

    play(scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n",
        b"[]\n",
        b"7\n",
        line({"messages": 7}),
        line({"messages": [{"kind": "start"}]}),
        line({"messages": [{"kind": "landed", "request": "a", "epoch": -1, "covered": 0}]}),
    ],
)
def test_a_line_that_cannot_be_read_costs_the_stream_not_the_worker(garbage: bytes) -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        (await peer.stream()).write(garbage)
        assert await ear.next() == ("back", None)
        (await peer.stream()).write(messages_line(landed("a")))
        assert await ear.next() == ("heard", [landed("a")])

    play(scenario)


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_LINE_BYTES", 1000)

    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        (await peer.stream()).write(b"x" * 1001)
        assert await ear.next() == ("back", None)

    play(scenario)


@pytest.mark.parametrize(
    "hello",
    [
        {"worker": "somebody/else/0"},
        {"pid": "100"},
        {"slots": 0},
        {"info": None},
        {"kv_bytes_per_token": None},
    ],
)
def test_a_hello_that_is_wrong_is_nobody(hello: dict[str, Any]) -> None:
    async def whole() -> None:
        ear = Ear()
        async with serving() as peer:
            good = peer.hello
            peer.hello = lambda: good() | hello
            async with connected(peer, ear) as channel:
                await peer.stream()
                await peer.stream()
                assert not channel.up
                peer.hello = good
                assert await ear.next() == ("up", 100)

    uvloop.run(whole())


def test_a_defect_of_the_listener_does_not_end_the_reading() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        ear.breaks = True
        (await peer.stream()).write(messages_line(landed("a")))
        assert await ear.next() == ("back", None)
        (await peer.stream()).write(messages_line(landed("b")))
        assert await ear.next() == ("heard", [landed("b")])

    play(scenario)


# ---------------------------------------------------------------- out


def test_the_messages_of_one_turn_travel_together_by_plane() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        channel.send(Feed(request="a", epoch=1, law=3, start=2, ids=(5,)))
        channel.send(Pause(request="a", epoch=1, seq=1, at=None))
        channel.send(Resync(request="a", epoch=1, start=0))
        channel.send(stop("a"))
        posts = {post.path: post.kinds for post in [await peer.post() for _ in range(2)]}
        assert posts == {"/control": ["pause", "stop"], "/feed": ["feed", "resync"]}

    play(scenario)


def test_control_is_delivered_at_least_once() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.statuses = [500, 503]
        channel.send(stop("a"))
        for _ in range(3):
            assert (await peer.post("/control")).messages[0]["request"] == "a"
        await channel.settled(WAIT_S)
        assert peer.posts.empty() or (await peer.posts.get()).messages == []

    play(scenario)


def test_what_the_worker_refuses_is_not_repeated() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.statuses = [400]
        channel.send(stop("a"))
        await channel.settled(WAIT_S)
        channel.send(stop("b"))
        assert (await peer.post("/control")).messages[0]["request"] == "a"
        assert (await peer.post("/control")).messages[0]["request"] == "b"

    play(scenario)


def test_what_the_worker_refuses_does_not_take_its_companions_with_it() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.statuses = [400, 400]  # both together, then the first alone
        channel.send(Pause(request="a", epoch=1, seq=1, at=None))
        channel.send(stop("b"))
        await channel.settled(WAIT_S)
        kinds = [(await peer.post("/control")).kinds for _ in range(3)]
        assert kinds[0] == ["pause", "stop"]
        assert sorted(kinds[1:]) == [["pause"], ["stop"]]

    play(scenario)


def test_a_lost_feed_is_not_repeated() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.statuses = [500]
        channel.send(Resync(request="a", epoch=1, start=0))
        await channel.settled(WAIT_S)
        channel.send(Resync(request="b", epoch=1, start=0))
        assert (await peer.post("/feed")).messages[0]["request"] == "a"
        assert (await peer.post("/feed")).messages[0]["request"] == "b"

    play(scenario)


def test_posts_that_are_stuck_bound_the_connections_and_the_rest_follows_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "POSTS_AT_ONCE", 2)

    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        peer.statuses = [500] * 2
        for request in "abcd":
            channel.send(stop(request))
            channel._flush()  # a turn of the loop ends
        first = [await peer.post("/control") for _ in range(2)]
        assert sorted(p.messages[0]["request"] for p in first) == ["a", "b"]
        delivered: list[str] = []
        while len(delivered) < 4:
            delivered += [m["request"] for m in (await peer.post("/control")).messages]
        assert sorted(delivered) == ["a", "b", "c", "d"]

    play(scenario)


def test_an_empty_post_renews_the_lease_while_others_are_stuck() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        writer = await peer.stream()
        peer.statuses = [500] * 1000
        channel.send(stop("a"))
        renewals = 0
        async with asyncio.timeout(WAIT_S):
            while renewals < 2:
                post = await peer.posts.get()
                renewals += post.path == "/feed" and not post.messages
                writer.write(messages_line(landed("alive")))

    play(scenario)


def test_a_lost_worker_is_still_told_to_stop_and_nothing_else() -> None:
    async def scenario(peer: Peer, ear: Ear, channel: WorkerChannel) -> None:
        await peer.stream()
        await peer.stop()
        channel.send(Pause(request="a", epoch=1, seq=1, at=None))
        channel.send(stop("b"))
        while (await ear.next())[0] != "lost":
            pass
        await peer.start()
        post = await peer.post("/control")
        assert [(m["kind"], m["request"]) for m in post.messages] == [("stop", "b")]

    play(scenario)


def test_close_ends_what_is_under_way() -> None:
    async def whole() -> None:
        ear = Ear()
        async with serving() as peer:
            async with connected(peer, ear) as channel:
                assert await ear.next() == ("up", 100)
                peer.statuses = [500] * 1000
                channel.send(stop("a"))
                await peer.post("/control")
                await channel.settled(0.05)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in others if "WorkerChannel" in repr(task)]

    uvloop.run(whole())
