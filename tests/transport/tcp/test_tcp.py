"""KV streams over real sockets: sharing, back-pressure, refusals, ends, and nothing left behind."""

import asyncio
import threading
import time

import pytest
import uvloop

from tests.transport.kv_helpers import MemorySink, make_offer, make_slice
from tests.transport.tcp.tcp_pair import (
    HEADS,
    LAYERS,
    SHAPE,
    SIZE,
    TOKEN_BYTES,
    Pair,
    make_client,
    make_server,
    open_sockets,
    run,
    send_all,
    until,
)
from transport.base import StreamId
from transport.stream.sender import StreamBroken
from transport.tcp.peer import Route


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_two_streams_at_once_over_warm_connections(loop_factory):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            one, two = await asyncio.gather(pair.open("a"), pair.open("b", stop=100))
            await asyncio.gather(send_all(one), send_all(two, stop=100))
            pair.check(one)
            pair.check(two)
            stats = pair.sink.completions[one._out.stream]
            assert stats.bytes_raw == 2 * LAYERS * 512 * HEADS * SIZE * 2
            assert 1.3 < stats.bytes_raw / stats.bytes_wire < 1.6
            assert 0 < stats.transfer_s < 5
            assert one.sent_bytes == (stats.bytes_wire, 0)
            before = open_sockets()
            third = await pair.open("c")  # on connections that are there already
            assert open_sockets() == before
            await send_all(third)
            pair.check(third)
            estimate = pair.client.estimate(pair.address)
            assert 0 < estimate.rtt_s < 1
            assert estimate.goodput_bytes_per_s > 1e6
            assert estimate.queue_bytes == 0
            assert 0 <= estimate.loss < 0.5

    run(test, loop_factory)


def test_only_tokens_the_receiver_lacks_are_sent():
    async def test() -> None:
        async with Pair(MemorySink(have=200)) as pair:
            stream = await pair.open()
            assert stream.have == 200
            await send_all(stream)
            pair.check(stream)
            assert not [at for at in pair.sink.counts if at[3] < 200]

    run(test)


@pytest.mark.parametrize("have", [0, 200])
def test_an_early_stream_does_not_wait_for_its_answer(have):
    async def test() -> None:
        async with Pair(MemorySink(have=have)) as pair:
            stream = await pair.open(early=True)
            assert stream._out.have is None
            await send_all(stream)
            pair.check(stream)
            assert stream.have == have
            assert not [at for at in pair.sink.counts if at[3] < have]

    run(test)


def test_an_early_stream_is_refused_at_its_next_verb():
    async def test() -> None:
        async with Pair(MemorySink(refusal="no room")) as pair:
            stream = await pair.open(early=True)
            with pytest.raises(StreamBroken, match="no room"):
                await send_all(stream)
            assert not pair.sink.breaks

    run(test)


def test_a_full_window_holds_the_sender_back(monkeypatch):
    monkeypatch.setattr("transport.stream.sender.STREAM_AHEAD_BYTES", 200_000)
    gate = threading.Event()

    class SlowSink(MemorySink):
        def put(self, stream, piece):
            gate.wait(10)
            super().put(stream, piece)

    async def test() -> None:
        async with Pair(SlowSink(), window_bytes=400_000) as pair:
            stream = await pair.open()
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: not stream._has_room())
            await asyncio.sleep(0.1)
            queued = pair.client.estimate(pair.address).queue_bytes
            assert pair.peer.sender._flying_bytes <= 400_000
            assert pair.server.receiver.held_bytes <= 400_000
            # Two threads may be coding what was let in just before.
            assert 400_000 <= queued < 600_000 + 3 * 200_000
            assert not sending.done()
            gate.set()
            await sending
            pair.check(stream)

    run(test)


def test_nobody_listening():
    async def test() -> None:
        client = make_client(resume_s=0.2)
        offer, nobody = make_offer(), Route(address="127.0.0.1:1")
        started = time.monotonic()
        with pytest.raises(StreamBroken, match=r"not accepted within 0\.2 s: .*Connect"):
            await client.open(nobody, offer, "raw", token_bytes=1)
        assert time.monotonic() - started < 5  # not the default of ten
        with pytest.raises(ValueError, match="host:port"):
            Route(address="nonsense")
        with pytest.raises(ValueError, match=r"codec 'int3': known are .*raw.*zstd"):
            await client.open(nobody, offer, "int3", token_bytes=1)
        assert client.estimate("127.0.0.1:2") is None
        await client.close()

    run(test)


def test_the_reason_of_a_refusal_reaches_the_sender():
    async def test() -> None:
        async with Pair(MemorySink(refusal="block 3 is y here, x there")) as pair:
            with pytest.raises(StreamBroken, match="block 3 is y here, x there"):
                await pair.open()
            assert not pair.sink.breaks

    run(test)


# ------------------------------------------------------------ ends


def test_cancel_by_the_sender():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            stream = await pair.open(rate=1e6)
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: pair.sink.counts)
            stream.cancel("the client left")
            with pytest.raises(StreamBroken, match="the client left"):
                await sending
            await until(lambda: pair.sink.breaks)
            assert pair.sink.breaks == {stream._out.stream: "the client left"}
            assert pair.client.estimate(pair.address).queue_bytes == 0
            assert pair.peer.sender._goodput.flying == 0
            await send_all(await pair.open("next", stop=64), stop=64)

    run(test)


def test_cancel_by_the_receiver():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            stream = await pair.open(rate=1e6)
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: pair.sink.counts)
            pair.server.cancel(stream._out.stream, "leg stopped")
            with pytest.raises(StreamBroken, match="leg stopped"):
                await sending
            assert not pair.sink.breaks

    run(test)


def test_a_piece_the_sink_does_not_take_breaks_the_stream():
    class PickySink(MemorySink):
        def put(self, stream, piece):
            raise ValueError(f"layer {piece.key.layer} is not mine")

    async def test() -> None:
        async with Pair(PickySink()) as pair:
            stream = await pair.open()
            with pytest.raises(StreamBroken, match="layer 0 is not mine"):
                await send_all(stream)
            assert "layer 0 is not mine" in pair.sink.breaks[stream._out.stream]

    run(test)


def test_an_offer_may_come_before_its_leg():
    async def test() -> None:
        async with Pair(MemorySink(have=None)) as pair:
            opening = asyncio.create_task(pair.open())
            await asyncio.sleep(0.1)
            assert not opening.done()
            pair.sink.have = 0
            await send_all(await opening)

    run(test)


def test_closing_either_end_breaks_its_streams():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            stream = await pair.open()
            await pair.client.close()
            with pytest.raises(StreamBroken, match="the sender is closed"):
                await stream.send(make_slice(0, "k", 0, 8, **SHAPE))
            await until(lambda: pair.sink.breaks)
            with pytest.raises(StreamBroken):
                await pair.open("late")

    run(test)

    async def other() -> None:
        async with Pair(MemorySink(), client={"resume_s": 0.2}) as pair:
            stream = await pair.open()
            await pair.server.close()
            with pytest.raises(StreamBroken):
                await send_all(stream)

    run(other)


def test_a_cancelled_open_leaves_nothing():
    async def test() -> None:
        async with Pair(MemorySink(have=None)) as pair:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await pair.open()
            await until(lambda: not pair.server.receiver.streams)

    run(test)


def test_a_stream_is_sent_once():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            await pair.open("same")
            with pytest.raises(ValueError, match="already"):
                await pair.open("same")

    run(test)


def test_a_small_stream_does_not_wait_for_a_big_one():
    async def test() -> None:
        async with Pair(MemorySink(), client={"connections": 1}) as pair:
            rate = 2e6
            big = await pair.open("big", rate=rate)
            started = time.monotonic()
            sending = asyncio.create_task(send_all(big))
            await asyncio.sleep(0.1)
            small = await pair.open("small", stop=32)
            await send_all(small, stop=32)
            assert not sending.done()
            await sending
            total_s = time.monotonic() - started
            raced = pair.sink.completions[small._out.stream].transfer_s
            assert raced < total_s / 2 + 0.3
            # Both together stayed below the rate they were given.
            wire = sum(s.bytes_wire for s in pair.sink.completions.values())
            assert wire / total_s < 1.05 * rate  # a first burst of 50 ms included

    run(test)


def test_the_port_and_double_close():
    async def test() -> None:
        server = make_server(MemorySink())
        with pytest.raises(RuntimeError, match="not been started"):
            _ = server.port
        await server.start()
        other = make_server(MemorySink(), name="main-1", port=server.port)
        with pytest.raises(OSError, match="in use"):
            await other.start()
        server.cancel(StreamId("never", 0, 1), "heard of")
        await server.close()
        await server.close()

    run(test)


def test_what_fits_no_frame_is_the_callers_mistake_and_breaks_nobody():
    async def test() -> None:
        async with Pair(MemorySink(), client={"connections": 1}) as pair:
            good = await pair.open("good")
            with pytest.raises(ValueError, match="field of 300 bytes, cap 256"):
                await pair.open("x" * 300)
            bad = await pair.open("bad")
            await bad.send(make_slice(0, "far too long", 0, 4, **SHAPE))
            with pytest.raises(ValueError, match="part 'far too long'"):
                await bad.finish()
            worse = await pair.open("worse")
            await worse.send(make_slice(1 << 17, "k", 0, 4, **SHAPE))
            with pytest.raises(ValueError, match="DATA"):
                await worse.finish()
            await send_all(good)
            pair.check(good)
            bad.cancel()
            worse.cancel()
            assert TOKEN_BYTES == 4096

    run(test)
