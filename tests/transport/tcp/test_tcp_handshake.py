"""Who is let in: what each end says of a peer that is not of its deployment, in one line."""

import asyncio
import contextlib
import logging
import struct
import zlib

import pytest

from tests.transport.kv_helpers import MemorySink, make_offer
from tests.transport.stream.stream_world import fed, wire_bytes
from tests.transport.tcp.tcp_pair import Pair, make_client, refused, run, send_all, until
from transport.stream import frames
from transport.stream.framing import VERSION
from transport.stream.reader import FrameReader
from transport.stream.sender import StreamBroken
from transport.tcp.peer import Route


def address_of(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        while await reader.read(1000):
            pass
    writer.transport.abort()


def lines(caplog: pytest.LogCaptureFixture, end: str) -> list[str]:
    """What one end ("peer" or "server") warned of."""
    name = f"transport.tcp.{end}"
    found = [r for r in caplog.records if r.name == name and r.levelno >= logging.WARNING]
    return [record.getMessage() for record in found]


def test_another_secret_gets_nothing(caplog):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            said = await refused(pair, secret="guess")
            assert said.endswith("main-0 has another secret than stranger")
            await until(lambda: lines(caplog, "server"))
        reason = "main-0 has another secret than stranger"
        assert lines(caplog, "peer") == [f"KV connection refused: {said}"]
        assert lines(caplog, "server") == [f"KV connection from stranger refused: {reason}"]

    run(test)


def test_a_server_of_another_deployment_gets_nothing():
    async def test() -> None:
        async with Pair(MemorySink(), secret="guess", name="impostor") as pair:
            with pytest.raises(StreamBroken, match="impostor has another secret"):
                await pair.open()
            assert not pair.sink.offers

    run(test)


def test_another_model_is_named_with_ours_on_both_ends(caplog):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            said = await refused(pair, model='{"tensors":"t9"}')
            await until(lambda: lines(caplog, "server"))
        (there,), (here,) = lines(caplog, "peer"), lines(caplog, "server")
        for line in (said, there, here):
            assert '{"tensors":"t0"}' in line
            assert '{"tensors":"t9"}' in line
            assert "main-0" in line
            assert "stranger" in line
            assert "\n" not in line

    run(test)


def test_the_layout_is_told_and_may_be_another(caplog):
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with Pair(MemorySink(), client={"layout": "heads first"}) as pair:
            await send_all(await pair.open())
            said = [r.getMessage() for r in caplog.records if r.name == "transport.tcp.server"]
            assert "KV from prefill-0, its layout heads first" in said

    run(test)


# ------------------------------------------------------------ older and other protocols


def version_1(kind: int, head: bytes) -> bytes:
    """A frame as the first version of this protocol wrote it."""
    summed = b"PDKV" + struct.pack("!BBIII", 1, kind, len(head), 0, zlib.crc32(b""))
    return summed + struct.pack("!I", zlib.crc32(head, zlib.crc32(summed))) + head


HELLO_1 = version_1(1, struct.pack("!I", 9) + b"prefill-0" + struct.pack("!I", 16) + b"n" * 16)


async def heard_from(pair: Pair, sent: bytes) -> bytes:
    """All that a server answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.server.port)
    writer.write(sent)
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1000):
            answer += part
    writer.transport.abort()
    return answer


def test_an_older_sender_is_told_both_versions(caplog):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            answer = await heard_from(pair, HELLO_1)
            (goodbye,) = fed(FrameReader(lambda data, nbytes: False), answer)
            assert goodbye.frame == frames.Goodbye(f"protocol version 1 there, {VERSION} here")
            (line,) = lines(caplog, "server")
            assert line.endswith(f"protocol version 1 there, {VERSION} here")
            await send_all(await pair.open())  # and others are served

    run(test)


def test_an_older_receiver_is_named_at_once(caplog):
    """Not retried for ten seconds: it will not be newer then."""

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(version_1(1, struct.pack("!I", 4) + b"main" + struct.pack("!I", 0)))
        await until_gone(reader, writer)

    async def test() -> None:
        server = await asyncio.start_server(old, "127.0.0.1", 0)
        address = address_of(server)
        client = make_client()
        with pytest.raises(StreamBroken, match=f"protocol version 1 there, {VERSION} here"):
            await client.open(Route(address=address), make_offer(), "raw", token_bytes=1)
        await client.close()
        server.close()
        (line,) = lines(caplog, "peer")
        assert line == f"KV connection refused: {address}: protocol version 1 there, {VERSION} here"

    run(test)


@pytest.mark.parametrize(
    ("bytes_sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: main\r\n\r\n" * 4, "starts with b'GET '"),
        (wire_bytes(frames.Offering(make_offer(), 1)), "OFFER before the handshake"),
        (wire_bytes(frames.Proof(b"x" * 32)), "Proof where Hello belongs"),
        (b"PDKV%c\x07" % VERSION + b"\xff" * 40, "DATA head of 4294967295 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 60, "starts with"),
    ],
    ids=["http", "offer", "proof", "lengths", "tls"],
)
def test_a_stranger_gets_no_byte_and_one_line(bytes_sent: bytes, why: str, caplog):
    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            assert await heard_from(pair, bytes_sent) == b""
            (line,) = lines(caplog, "server")
            assert line.startswith("KV connection from a stranger dropped: ")
            assert why in line
            assert not pair.sink.offers
            await send_all(await pair.open())  # and others are served

    run(test)


def test_a_server_that_takes_any_proof_gets_nothing():
    heard: list[frames.Frame] = []

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames_in = FrameReader(lambda data, nbytes: True)
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                for arrived in fed(frames_in, data):
                    heard.append(arrived.frame)
                    if isinstance(arrived.frame, frames.Hello):
                        writer.write(wire_bytes(frames.Hello("impostor", b"n" * 16, b"s" * 16)))
                    elif isinstance(arrived.frame, frames.Proof):
                        writer.write(wire_bytes(frames.Proof(b"d" * 32)))
        writer.transport.abort()

    async def test() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        address = address_of(server)
        client = make_client(connections=1)
        with pytest.raises(StreamBroken, match="impostor does not know this deployment's secret"):
            await client.open(Route(address=address), make_offer(), "raw", token_bytes=1)
        await client.close()
        server.close()
        assert [type(frame) for frame in heard] == [frames.Hello, frames.Proof]

    run(test)


# ------------------------------------------------------------ silence


def test_a_client_that_says_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr("transport.tcp.server.HANDSHAKE_S", 0.1)

    async def test() -> None:
        async with Pair(MemorySink()) as pair:
            for sent in (b"", wire_bytes(frames.Hello("slow", b"n" * 16, b"s" * 16))):
                answer = await asyncio.wait_for(heard_from(pair, sent), 3)
                assert bool(answer) is bool(sent)

    run(test)


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("transport.tcp.peer.HANDSHAKE_S", 0.1)

    async def test() -> None:
        server = await asyncio.start_server(until_gone, "127.0.0.1", 0)
        address = address_of(server)
        client = make_client(resume_s=0.3, connections=1)
        with pytest.raises(StreamBroken, match=r"not accepted within 0\.3 s: .*TimeoutError"):
            await client.open(Route(address=address), make_offer(), "raw", token_bytes=1)
        await client.close()
        server.close()

    run(test)


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stream.connections", "tcp.server"):
        monkeypatch.setattr(f"transport.{name}.SILENCE_S", 0.4)
    monkeypatch.setattr("transport.stream.connections.PING_EVERY_S", 0.1)


def test_pings_keep_a_connection_on_which_nothing_else_is_said(monkeypatch):
    silence(monkeypatch)

    async def test() -> None:
        client = {"connections": 1}
        async with Pair(MemorySink(have=None), proxied=True, client=client) as pair:
            opening = asyncio.create_task(pair.open())
            await asyncio.sleep(1.0)
            assert not opening.done()
            pair.sink.have = 0
            await send_all(await opening)
            assert pair.proxy.accepted == 1

    run(test)


def test_a_connection_that_falls_silent_is_left_for_another(monkeypatch):
    silence(monkeypatch)

    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, client={"connections": 1}) as pair:
            stream = await pair.open(rate=2e6)
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: pair.proxy.forwarded > 200_000)
            pair.proxy.thaw.clear()
            await until(lambda: pair.proxy.accepted > 1)
            pair.proxy.thaw.set()
            await sending
            pair.check(stream)

    run(test)
