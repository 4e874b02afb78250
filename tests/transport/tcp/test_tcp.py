"""KV streams over real sockets: sharing, back-pressure, cuts, refusals, and nothing left behind."""

import asyncio
import contextlib
import threading
import time

import pytest
import uvloop

from tests.transport.kv_helpers import MemorySink, make_offer, make_slice
from tests.transport.tcp.tcp_pair import (
    HEADS,
    LAYERS,
    SECRET,
    SHAPE,
    SIZE,
    Pair,
    open_sockets,
    run,
    send_all,
    until,
)
from transport.base import StreamId
from transport.stream import frames, framing
from transport.stream.sender import StreamBroken
from transport.tcp.client import KVClient
from transport.tcp.server import KVServer
from transport.tcp.wire import Wire


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_two_streams_at_once_over_warm_connections(loop_factory):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            one, two = await asyncio.gather(pair.open("a"), pair.open("b", stop=100))
            await asyncio.gather(send_all(one), send_all(two, stop=100))
            pair.check(one)
            pair.check(two)
            stats = pair.sink.completions[one.stream]
            assert stats.bytes_raw == 2 * LAYERS * 512 * HEADS * SIZE * 2
            assert 1.3 < stats.bytes_raw / stats.bytes_wire < 1.6
            assert 0 < stats.transfer_s < 5
            before = open_sockets()
            third = await pair.open("c")  # on a connection that is there already
            assert open_sockets() == before
            await send_all(third)
            pair.check(third)
            estimate = pair.client.estimate(pair.address)
            assert 0 < estimate.rtt_s < 1
            assert estimate.goodput_bytes_per_s > 1e6
            assert estimate.queue_bytes == 0

    run(test, loop_factory)


def test_only_tokens_the_receiver_lacks_are_sent():
    async def test() -> None:
        async with Pair(MemorySink(have=200)) as pair:
            outgoing = await pair.open()
            assert outgoing.have == 200
            await send_all(outgoing)
            pair.check(outgoing)
            assert not [at for at in pair.sink.counts if at[3] < 200]

    run(test)


def test_a_full_window_holds_the_sender_back():
    gate = threading.Event()

    class SlowSink(MemorySink):
        def put(self, stream, piece):
            gate.wait(10)
            super().put(stream, piece)

    async def test() -> None:
        async with Pair(SlowSink(), window_bytes=400_000) as pair:
            outgoing = await pair.open()
            sending = asyncio.create_task(send_all(outgoing))
            await until(lambda: not outgoing.machine.has_room)
            await asyncio.sleep(0.1)
            queued = pair.client.estimate(pair.address).queue_bytes
            assert 400_000 <= queued < 400_000 + 300_000
            assert not sending.done()
            gate.set()
            await sending
            pair.check(outgoing)

    run(test)


@pytest.mark.parametrize(
    ("connections", "loop_factory"),
    [(1, None), (2, uvloop.new_event_loop)],
    ids=["asyncio", "uvloop"],
)
def test_a_broken_connection_is_resumed_and_only_the_rest_is_sent(connections, loop_factory):
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, connections=connections) as pair:
            outgoing = await pair.open(link_rate_bytes_per_s=2e6)
            sending = asyncio.create_task(send_all(outgoing))
            await until(lambda: pair.proxy.forwarded > 300_000)
            pair.proxy.break_all()
            await until(lambda: pair.proxy.forwarded > 700_000)
            pair.proxy.break_all()
            await sending
            pair.check(outgoing)
            wire = pair.sink.completions[outgoing.stream].bytes_wire
            # Pieces are 200 KB before coding and paced; each break costs about two at most.
            assert pair.proxy.forwarded < wire + 2 * 2 * 200_000

    run(test, loop_factory)


def test_a_damaged_byte_is_asked_for_again():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True) as pair:
            outgoing = await pair.open()
            pair.proxy.flip = True
            await send_all(outgoing)
            assert not pair.proxy.flip
            pair.check(outgoing)

    run(test)


def test_a_receiver_that_stays_away_breaks_the_stream():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, resume_s=0.3) as pair:
            outgoing = await pair.open(link_rate_bytes_per_s=2e6)
            sending = asyncio.create_task(send_all(outgoing))
            await until(lambda: pair.proxy.forwarded > 100_000)
            await pair.proxy.close()
            with pytest.raises(StreamBroken, match=r"not accepted within 0\.3 s"):
                await sending
            assert pair.client.estimate(pair.address).queue_bytes == 0

    run(test)


def test_the_receiver_gives_up_on_a_sender_that_stays_away():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, resume_s=0.2) as pair:
            pair.server._receiver._resume_s = 0.2
            outgoing = await pair.open()
            await pair.proxy.close()
            await until(lambda: pair.sink.breaks)
            assert "not resumed within 0.2 s" in pair.sink.breaks[outgoing.stream]

    run(test)


def test_nobody_listening():
    async def test() -> None:
        client = KVClient(name="prefill-0", secret=SECRET, resume_s=0.2)
        started = time.monotonic()
        with pytest.raises(StreamBroken, match=r"not accepted within 0\.2 s: .*Connect"):
            await client.open("127.0.0.1:1", make_offer(), "raw")
        assert time.monotonic() - started < 5  # not the default of ten
        with pytest.raises(ValueError, match="host:port"):
            await client.open("nonsense", make_offer(), "raw")
        with pytest.raises(ValueError, match="known are raw, zstd"):
            await client.open("127.0.0.1:1", make_offer(), "int3")
        await client.close()

    run(test)


def test_the_reason_of_a_refusal_reaches_the_sender():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            offer = make_offer()
            offer = type(offer)(
                **{f: getattr(offer, f) for f in offer.__slots__ if f != "fingerprint"},
                fingerprint='{"tensors":"other"}',
            )
            with pytest.raises(StreamBroken) as caught:
                await pair.client.open(pair.address, offer, "raw")
            assert '"t0"' in str(caught.value)
            assert '"other"' in str(caught.value)
            assert not pair.sink.breaks

    run(test)


def test_another_secret_gets_nothing():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            stranger = KVClient(name="stranger", secret="guess")
            with pytest.raises(StreamBroken, match="main-0 has another secret than stranger"):
                await stranger.open(pair.address, make_offer(), "raw")
            await stranger.close()
            assert not pair.sink.offers

    run(test)


def test_a_server_of_another_deployment_gets_nothing():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            other = KVServer(pair.sink, name="impostor", secret="guess")
            await other.start()
            with pytest.raises(StreamBroken, match="impostor has another secret"):
                await pair.client.open(f"127.0.0.1:{other.port}", make_offer(), "raw")
            await other.close()
            assert not pair.sink.offers

    run(test)


def test_a_server_that_takes_any_proof_gets_nothing():
    heard: list[frames.Frame] = []

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        heard.append((await wire.read_head())[1])
        await wire.write(frames.Hello("impostor", b"n" * 16))
        heard.append((await wire.read_head())[1])
        await wire.write(frames.Proof(b"d" * 32))
        with contextlib.suppress(EOFError, OSError):
            heard.append((await wire.read_head())[1])
        wire.abort()

    async def test() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = KVClient(name="prefill-0", secret=SECRET)
        with pytest.raises(StreamBroken, match="impostor does not know this deployment's secret"):
            await client.open(f"127.0.0.1:{port}", make_offer(), "raw")
        await client.close()
        server.close()
        assert [type(frame) for frame in heard] == [frames.Hello, frames.Proof]

    run(test)


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        b"".join(map(bytes, framing.encode(frames.Offering(make_offer())))),
        b"".join(map(bytes, framing.encode(frames.Proof(b"x" * 32)))),
        b"PDKV\x01\x07" + b"\xff" * 40,
    ],
    ids=["http", "offer", "proof", "lengths"],
)
def test_a_stranger_is_dropped(bytes_sent: bytes):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.server.port)
            writer.write(bytes_sent)
            try:
                heard = await reader.read()
            except ConnectionResetError:
                heard = b""
            assert len(heard) < 100
            writer.close()
            assert not pair.sink.offers
            await send_all(await pair.open())  # and others are served

    run(test)


def test_cancel_by_the_sender():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            outgoing = await pair.open(link_rate_bytes_per_s=1e6)
            sending = asyncio.create_task(send_all(outgoing))
            await until(lambda: pair.sink.counts)
            outgoing.cancel("the client left")
            with pytest.raises(StreamBroken, match="the client left"):
                await sending
            await until(lambda: pair.sink.breaks)
            assert pair.sink.breaks == {outgoing.stream: "the client left"}
            assert pair.client.estimate(pair.address).queue_bytes == 0
            assert outgoing._channel.peer.goodput.flying == 0
            await send_all(await pair.open("next", stop=64), stop=64)

    run(test)


def test_cancel_by_the_receiver():
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            outgoing = await pair.open(link_rate_bytes_per_s=1e6)
            sending = asyncio.create_task(send_all(outgoing))
            await until(lambda: pair.sink.counts)
            pair.server.cancel(outgoing.stream, "leg stopped")
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
            outgoing = await pair.open()
            with pytest.raises(StreamBroken, match="layer 0 is not mine"):
                await send_all(outgoing)
            assert "layer 0 is not mine" in pair.sink.breaks[outgoing.stream]

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
            outgoing = await pair.open()
            await pair.client.close()
            with pytest.raises(StreamBroken, match="the sender is closed"):
                await outgoing.send(make_slice(0, "k", 0, 8, **SHAPE))
            await until(lambda: pair.sink.breaks)
            with pytest.raises(StreamBroken):
                await pair.open("late")

    run(test)

    async def other() -> None:
        async with Pair(MemorySink(), resume_s=0.2) as pair:
            outgoing = await pair.open()
            await pair.server.close()
            with pytest.raises(StreamBroken):
                await send_all(outgoing)

    run(other)


def test_a_cancelled_open_leaves_nothing():
    async def test() -> None:
        async with Pair(MemorySink(have=None)) as pair:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await pair.open()
            await until(lambda: not pair.server._receiver.streams)

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
        async with Pair(MemorySink(), connections=1) as pair:
            rate = 2e6
            big = await pair.open("big", link_rate_bytes_per_s=rate)
            started = time.monotonic()
            sending = asyncio.create_task(send_all(big))
            await asyncio.sleep(0.1)
            small = await pair.open("small", stop=32, link_rate_bytes_per_s=rate)
            await send_all(small, stop=32)
            assert not sending.done()
            await sending
            total_s = time.monotonic() - started
            raced = pair.sink.completions[small.stream].transfer_s
            assert raced < total_s / 2 + 0.3
            # Both together stayed below the rate they were given.
            wire = sum(s.bytes_wire for s in pair.sink.completions.values())
            assert wire / total_s < 1.05 * rate  # a first burst of 50 ms included

    run(test)


def test_the_port_and_double_close():
    async def test() -> None:
        server = KVServer(MemorySink(), name="main-0", secret=SECRET)
        with pytest.raises(RuntimeError, match="not been started"):
            _ = server.port
        await server.start()
        other = KVServer(MemorySink(), name="main-1", secret=SECRET, port=server.port)
        with pytest.raises(OSError, match="in use"):
            await other.start()
        server.cancel(StreamId("never", 0, 1), "heard of")
        await server.close()
        await server.close()

    run(test)


def test_what_fits_no_frame_is_the_callers_mistake_and_breaks_nobody():
    async def test() -> None:
        async with Pair(MemorySink(), connections=1) as pair:
            good = await pair.open("good")
            with pytest.raises(ValueError, match="field of 300 bytes, cap 256"):
                await pair.open("x" * 300)
            bad = await pair.open("bad")
            with pytest.raises(ValueError, match="part 'far too long'"):
                await bad.send(make_slice(0, "far too long", 0, 4, **SHAPE))
            with pytest.raises(ValueError, match="DATA"):
                await bad.send(make_slice(1 << 17, "k", 0, 4, **SHAPE))
            await send_all(good)
            pair.check(good)
            bad.cancel()

    run(test)
