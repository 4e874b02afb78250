"""Connections that break and bytes that change under way: all arrives, and little of it twice."""

import asyncio

import pytest
import uvloop

from tests.transport.kv_helpers import MemorySink, make_offer, make_slice, token_bytes
from tests.transport.tcp.tcp_pair import Pair, run, send_all, until
from transport.stream.sender import StreamBroken

WIDE = {"heads": 8, "size": 128}  # 2 KiB of a token in one layer and part
LAYERS = 2
TOKENS = 1024


async def send_wide(pair: Pair, request: str, step: int, rate: float | None = None) -> tuple:
    """A stream of 8 MiB in pieces of `step` tokens, as they are; what was sent and sent again."""
    offer = make_offer(request, stop=TOKENS, layers=LAYERS)
    route = pair.route(rate_bytes_per_s=rate, paced=True)
    stream = await pair.client.open(route, offer, "raw", token_bytes=token_bytes(LAYERS, **WIDE))
    for start in range(0, TOKENS, step):
        for layer in range(LAYERS):
            for part in "kv":
                await stream.send(make_slice(layer, part, start, start + step, **WIDE))
    await stream.finish()
    pair.sink.check(offer, layers=LAYERS, **WIDE)
    return stream.sent_bytes


@pytest.mark.parametrize(
    ("connections", "loop_factory"),
    [(1, None), (2, uvloop.new_event_loop)],
    ids=["asyncio", "uvloop"],
)
def test_a_broken_connection_is_resumed_and_only_the_rest_is_sent(connections, loop_factory):
    async def test() -> None:
        client = {"connections": connections}
        async with Pair(MemorySink(), proxied=True, client=client) as pair:
            stream = await pair.open(rate=2e6)
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: pair.proxy.forwarded > 300_000)
            pair.proxy.break_all()
            await until(lambda: pair.proxy.forwarded > 700_000)
            pair.proxy.break_all()
            await sending
            pair.check(stream)
            wire = pair.sink.completions[stream._out.stream].bytes_wire
            sent, again = stream.sent_bytes
            assert sent - again == wire
            # Pieces are 200 KB before coding and paced; each break costs about two at most.
            assert pair.proxy.forwarded < wire + 2 * 2 * 200_000

    run(test, loop_factory)


def test_one_of_eight_connections_dies_and_little_is_sent_twice():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, client={"connections": 8}) as pair:
            rate = 20e6
            sending = [
                asyncio.create_task(send_wide(pair, request, 32, rate)) for request in "abcd"
            ]
            await until(lambda: pair.proxy.forwarded > 8 << 20)
            assert pair.proxy.accepted == 8
            pair.proxy.break_one()
            counts = await asyncio.gather(*sending)
            sent = sum(count[0] for count in counts)
            again = sum(count[1] for count in counts)
            assert sent - again == 32 << 20
            assert again < 0.02 * sent
            assert pair.proxy.accepted == 9  # and there are eight again
            assert len(pair.peer.sender.connections) == 8

    run(test)


def test_a_body_in_a_hundred_is_damaged_and_only_those_are_sent_twice():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, client={"connections": 2}) as pair:
            pair.proxy.damage_every = 100
            sent, again = await send_wide(pair, "r", 4)
            assert pair.proxy.pieces == 1024 + 10
            assert pair.proxy.damaged == 10
            assert sent == (8 << 20) + again
            assert again == 10 * 4 * 2048
            assert again < 0.02 * sent
            assert pair.proxy.accepted == 2  # no connection was given up for it

    run(test)


def test_a_receiver_that_stays_away_breaks_the_stream():
    async def test() -> None:
        async with Pair(MemorySink(), proxied=True, client={"resume_s": 0.3}) as pair:
            stream = await pair.open(rate=2e6)
            sending = asyncio.create_task(send_all(stream))
            await until(lambda: pair.proxy.forwarded > 100_000)
            await pair.proxy.close()
            with pytest.raises(StreamBroken, match=r"not accepted within 0\.3 s"):
                await sending
            assert pair.client.estimate(pair.address).queue_bytes == 0

    run(test)


def test_the_receiver_gives_up_on_a_sender_that_stays_away():
    async def test() -> None:
        client = {"resume_s": 0.2}
        async with Pair(MemorySink(), proxied=True, client=client, resume_s=0.2) as pair:
            stream = await pair.open()
            await pair.proxy.close()
            await until(lambda: pair.sink.breaks)
            assert pair.sink.breaks[stream._out.stream] == "not resumed within 0.2 s"

    run(test)
