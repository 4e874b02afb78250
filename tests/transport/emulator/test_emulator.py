"""The emulated line as it is used: a process of its own, real sockets, real time."""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.transport.kv_helpers import MemorySink, make_offer, make_slice, token_bytes
from tests.transport.tcp.tcp_pair import make_client, make_server
from transport.emulator.control import LineControl, LineError, start_emulator
from transport.tcp.peer import Route

SITES = ("hami", "shenzhen")
LINE = "hami-shenzhen"
TEN_MBPS = 1.25e6


@asynccontextmanager
async def line(**spec: float) -> AsyncIterator[LineControl]:
    spec = {"delay_s": 0.025, "rate_bytes_per_s": TEN_MBPS} | spec
    process, control = await start_emulator({"lines": [{"between": SITES, **spec}]})
    try:
        async with asyncio.timeout(60):
            yield control
    finally:
        await control.close()
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0


class Target:
    """What listens at the far end: notes what it gets, and echoes it if asked."""

    def __init__(self, *, echo: bool = False) -> None:
        self._echo = echo
        self.received = 0
        self.ended: str | None = None
        self.connected_at: float | None = None
        self.writer: asyncio.StreamWriter

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.connected_at = time.monotonic()
        try:
            while data := await reader.read(64 << 10):
                self.received += len(data)
                if self._echo:
                    writer.write(data)
            self.ended = "end"
        except ConnectionResetError:
            self.ended = "reset"

    def close(self) -> None:
        self._server.close()
        self.writer.close()


async def cross(control: LineControl, target: Target, plane: str):
    port = await control.forward(await target.start(), *SITES, plane)
    return await asyncio.open_connection("127.0.0.1", port)


async def ping_s(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    started = time.monotonic()
    writer.write(b"p")
    await reader.readexactly(1)
    return time.monotonic() - started


async def until(good) -> None:
    async with asyncio.timeout(15):
        while not good():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def test_delay_rate_and_precedence():
    """No line is ever too fast; how late this machine may make it, the best of a few tries says."""

    async def test() -> None:
        async with line() as control:
            echo = Target(echo=True)
            first_s = time.monotonic()
            pings = await cross(control, echo, "control")
            assert await ping_s(*pings) > 0.095  # connecting costs a round trip more
            assert echo.connected_at - first_s > 0.024
            idle = [await ping_s(*pings) for _ in range(6)]
            while min(idle) >= 0.060 and len(idle) < 60:
                idle.append(await ping_s(*pings))
            assert 0.049 < min(idle) < 0.060
            for tries_left in range(7, -1, -1):
                took_s, busy = await bulk_beside_pings(control, pings)
                assert took_s > 0.82
                assert min(busy) > 0.049
                if took_s < 0.95 and sorted(busy)[2] < 0.080:
                    break
                assert tries_left, (took_s, busy)
            pings[1].close()
            echo.close()

    asyncio.run(test())


async def bulk_beside_pings(control: LineControl, pings) -> tuple[float, list[float]]:
    """Seconds for 1 MB of KV, and five round trips of control beside it."""
    bulk = Target()
    before = (await control.stats())[LINE]["hami->shenzhen"]["sent_bytes"]["kv"]
    _, writer = await cross(control, bulk, "kv")
    await until(lambda: bulk.connected_at)
    await asyncio.sleep(0.03)  # the set-up is not part of the measurement
    started = time.monotonic()
    writer.write(bytes(1_000_000))
    writer.write_eof()
    await asyncio.sleep(0.1)
    busy = [await ping_s(*pings) for _ in range(5)]
    await until(lambda: bulk.ended)
    took_s = time.monotonic() - started
    assert bulk.received == 1_000_000
    there = (await control.stats())[LINE]["hami->shenzhen"]
    assert there["sent_bytes"]["kv"] - before == 1_000_000
    assert there["queued_bytes"] == {"control": 0, "tokens": 0, "kv": 0}
    writer.close()
    bulk.close()
    return took_s, busy


def test_the_queue_is_bounded_and_half_close_leaves_the_way_back_open():
    async def test() -> None:
        async with line() as control:
            target = Target()
            reader, writer = await cross(control, target, "kv")
            writer.write(bytes(12_000_000))
            await until(lambda: target.received > 100_000)
            queued = (await control.stats())[LINE]["hami->shenzhen"]["queued_bytes"]["kv"]
            assert 0 < queued < 512 << 10
            assert writer.transport.get_write_buffer_size() > 500_000  # it is held back
            await control.set(LINE, rate_bytes_per_s=1.25e8, delay_s=0.001)
            writer.write_eof()
            await until(lambda: target.ended)
            assert target.received == 12_000_000
            target.writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            target.close()
            assert await reader.read() == b""
            writer.close()

    asyncio.run(test())


def test_cut_and_restore_lose_nothing():
    async def test() -> None:
        async with line() as control:
            target = Target()
            _, writer = await cross(control, target, "kv")
            writer.write(bytes(200_000))
            await until(lambda: target.received > 50_000)
            await control.cut(LINE)
            await asyncio.sleep(0.05)
            at_cut = target.received
            await asyncio.sleep(0.3)
            assert target.received == at_cut < 200_000
            assert target.ended is None
            await control.restore(LINE)
            await until(lambda: target.received == 200_000)
            writer.close()
            await until(lambda: target.ended)
            target.close()

    asyncio.run(test())


def test_resets_cross_the_line():
    async def test() -> None:
        async with line() as control:
            target = Target()
            reader, writer = await cross(control, target, "tokens")
            writer.write(b"x")
            await until(lambda: target.received)
            sock = target.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            target.writer.transport.abort()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()
            target.close()
            # Nobody listens: the connection is made here, and reset when the answer is back.
            port = await control.forward("127.0.0.1:1", *SITES, "kv")
            started = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            assert time.monotonic() - started > 0.045
            writer.close()

    asyncio.run(test())


def test_a_stream_survives_a_cut_of_the_line():
    async def test() -> None:
        async with line(jitter_s=0.001, loss=0.001) as control:
            sink = MemorySink()
            server = make_server(sink)
            await server.start()
            client = make_client()
            port = await control.forward(f"127.0.0.1:{server.port}", *SITES, "kv")
            offer = make_offer(stop=256)
            address = f"127.0.0.1:{port}"
            route = Route(address=address, rate_bytes_per_s=TEN_MBPS, rtt_s=0.05)
            outgoing = await client.open(route, offer, "zstd", token_bytes=token_bytes(3, 2, 64))

            async def send() -> None:
                for layer in range(3):
                    for part in "kv":
                        await outgoing.send(make_slice(layer, part, 0, 256, heads=2, size=64))
                await outgoing.finish()

            sending = asyncio.create_task(send())
            await until(lambda: sink.counts)
            await control.cut(LINE)
            await asyncio.sleep(0.2)
            assert not sending.done()
            await control.restore(LINE)
            await sending
            sink.check(offer, heads=2, size=64)
            assert 0.045 < client.estimate(address).rtt_s < 0.12
            assert client.estimate(address).goodput_bytes_per_s < 1.5 * TEN_MBPS
            await client.close()
            await server.close()

    asyncio.run(test())


def test_one_direction_is_cut_and_the_other_goes_on():
    async def test() -> None:
        async with line() as control:
            target = Target()
            _, writer = await cross(control, target, "kv")
            await control.cut(LINE, towards=SITES[0])
            writer.write(bytes(20_000))
            await until(lambda: target.received == 20_000)
            await control.restore(LINE)
            await control.cut(LINE, towards=SITES[1])
            writer.write(bytes(20_000))
            await asyncio.sleep(0.3)
            assert target.received == 20_000
            await control.restore(LINE)
            await until(lambda: target.received == 40_000)
            writer.close()
            await until(lambda: target.ended)
            target.close()

    asyncio.run(test())


def test_mistakes_are_answered_and_do_no_harm():
    async def test() -> None:
        async with line() as control:
            with pytest.raises(LineError, match="no line between hami and mars: hami-shenzhen"):
                await control.forward("127.0.0.1:1", "hami", "mars", "kv")
            with pytest.raises(LineError, match="plane 'gossip'"):
                await control.forward("127.0.0.1:1", *SITES, "gossip")
            with pytest.raises(LineError, match="must be host:port"):
                await control.forward("nowhere", *SITES, "kv")
            with pytest.raises(LineError, match="no line 'a-b'"):
                await control.cut("a-b")
            with pytest.raises(LineError, match="does not end at 'mars'"):
                await control.cut(LINE, towards="mars")
            with pytest.raises(LineError, match="rate_bytes_per_s: must be > 0, got 0"):
                await control.set(LINE, rate_bytes_per_s=0)
            with pytest.raises(LineError, match="colour"):
                await control.set(LINE, colour=1)
            assert LINE in await control.stats()
        with pytest.raises(LineError):
            await control.stats()
        with pytest.raises(LineError, match="lines\\[0\\]: delay_s"):
            await start_emulator(
                {"lines": [{"between": SITES, "delay_s": -1, "rate_bytes_per_s": 1}]}
            )

    asyncio.run(test())


def test_the_configuration_may_come_on_standard_input_and_its_end_is_the_end():
    command = [sys.executable, "-m", "transport.emulator"]
    config = {"lines": [{"between": SITES, "delay_s": 0, "rate_bytes_per_s": 1e6}]}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["control_port"] > 0
        process.stdin.close()
        assert process.wait(5) == 0
    result = subprocess.run(command, input=b"{}\n", capture_output=True, timeout=10, check=False)
    assert result.returncode == 2
    assert "'lines', is wanted" in json.loads(result.stdout)["error"]
