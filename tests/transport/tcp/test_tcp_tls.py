"""KV streams under TLS: what passes, and what is refused, in one line at each end."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
import uvloop

from tests.transport.kv_helpers import MemorySink, make_offer
from tests.transport.stream.stream_world import fed, wire_bytes
from tests.transport.tcp.tcp_pair import LAYERS, TOKEN_BYTES, Pair, run, send_all, until
from tests.transport.tls_rig import Rig
from transport.stream import frames
from transport.stream.reader import FrameReader
from transport.stream.sender import StreamBroken
from transport.tls import site_hostname


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def pair_of(server: ssl.SSLContext, client: ssl.SSLContext, **options) -> Pair:
    return Pair(MemorySink(), tls=server, client={"tls": client, "connections": 2}, **options)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_two_sites_of_one_ca(rig: Rig, loop_factory, caplog):
    async def test() -> None:
        server, client = rig.server(rig.files("b"), "a", "b"), rig.client(rig.files("a"))
        async with pair_of(server, client, proxied=True) as pair:
            offer = make_offer(stop=512, layers=LAYERS)
            route = pair.route(hostname=site_hostname("b"))
            stream = await pair.client.open(route, offer, "zstd", token_bytes=TOKEN_BYTES)
            await send_all(stream)
            pair.check(stream)
            assert pair.proxy.accepted == 2
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []

    run(test, loop_factory)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("who", "here", "there"),
    [
        ("bare", "the peer showed no certificate", "ALERT_CERTIFICATE_REQUIRED"),
        ("foreign", "the peer's certificate is of another CA", "is of another CA than its own"),
        ("other name", "wants another site's", "the peer's certificate is not of c.pdd.internal"),
        ("other server", "is of another CA", "the peer's certificate is of another CA"),
    ],
)
def test_refused(rig: Rig, who: str, here: str, there: str, loop_factory, caplog):
    async def test() -> None:
        server = rig.server(rig.foreign("b") if who == "other server" else rig.files("b"), "a")
        client = {
            "bare": lambda: rig.bare(),
            "foreign": lambda: rig.client(rig.foreign("a")),
        }.get(who, lambda: rig.client(rig.files("a")))()
        async with pair_of(server, client) as pair:
            host = site_hostname("c" if who == "other name" else "b")
            route = pair.route(hostname=host)
            with pytest.raises(StreamBroken) as caught:
                await pair.client.open(route, make_offer(), "raw", token_bytes=1)
            assert there in str(caught.value)
            assert "\n" not in str(caught.value)
            assert not pair.sink.offers
            await until(lambda: lines(caplog, "tls"))
        assert all(here in line for line in lines(caplog, "tls"))
        (told,) = lines(caplog, "tcp.peer")
        assert there in told

    def lines(caplog: pytest.LogCaptureFixture, end: str) -> list[str]:
        warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert {r.name for r in warned} <= {"transport.tcp.peer", "transport.tls"}
        return [r.getMessage() for r in warned if r.name == f"transport.{end}"]

    run(test, loop_factory)


def test_a_site_that_is_not_known_here(rig: Rig, caplog):
    """TLS has no word for it once the certificate is good: the other end sees a closed door."""

    async def test() -> None:
        server, client = rig.server(rig.files("b"), "a"), rig.client(rig.files("z"))
        options = {"tls": client, "connections": 1, "resume_s": 0.3}
        async with Pair(MemorySink(), tls=server, client=options) as pair:
            with pytest.raises(StreamBroken, match=r"not accepted within 0\.3 s: .*closed"):
                await pair.client.open(
                    pair.route(hostname=site_hostname("b")), make_offer(), "raw", token_bytes=1
                )
            assert not pair.sink.offers
        assert "is of z.pdd.internal, not of a site known here" in caplog.text

    run(test)


def test_a_client_that_speaks_no_tls_is_refused(rig: Rig, caplog):
    async def test() -> None:
        async with Pair(MemorySink(), tls=rig.server(rig.files("b"))) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.server.port)
            writer.write(wire_bytes(frames.Hello("plain", b"n" * 16, b"s" * 16)))
            heard = await reader.read()
            assert b"PDKV" not in heard
            writer.transport.abort()
            await until(lambda: caplog.records)
            assert "the peer does not speak TLS" in caplog.text

    run(test)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_hello_that_comes_with_the_end_of_the_tls_handshake_is_heard(rig: Rig, loop_factory):
    """Both in one segment: the server reads it before its own end of the handshake is told."""

    async def test() -> None:
        async with Pair(MemorySink(), tls=rig.server(rig.files("b"))) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.server.port)
            into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = rig.client(rig.files("a")).wrap_bio(into, out, server_hostname=site_hostname("b"))
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(out.read())
                    into.write(await reader.read(1 << 16))
            tls.write(wire_bytes(frames.Hello("a", b"n" * 16, b"s" * 16)))
            writer.write(out.read())
            hearer = FrameReader(lambda data, nbytes: False)
            heard: list[frames.Frame] = []
            async with asyncio.timeout(3):
                while not heard:
                    try:
                        heard += [arrived.frame for arrived in fed(hearer, tls.read(1000))]
                    except ssl.SSLWantReadError:
                        into.write(await reader.read(1 << 16))
            assert isinstance(heard[0], frames.Hello)
            writer.transport.abort()
            await until(lambda: not pair.server._connections)

    run(test, loop_factory)
