"""Token streams: what is kept for a gateway, and for how long, in bounds."""

import asyncio

import orjson

from workers.api.messages import Landed, TokenRun
from workers.outputs import Up
from workers.service.token_streams import BACKLOG_BYTES, TokenStreams
from workers.streams.recent import ANSWERS_S


def landed(request: str, gateway: str = "g") -> Up:
    return Up(gateway=gateway, message=Landed(request=request, epoch=1, covered=0))


def run_of(length: int) -> Up:
    message = TokenRun(request="r", epoch=1, index=0, ids=(7,) * length, hist=0, fed=0)
    return Up(gateway="g", message=message)


class Browser:
    """An ASGI peer that reads until it is told to block."""

    def __init__(self) -> None:
        self.body = b""
        self.ended = False
        self.reading = asyncio.Event()
        self.reading.set()

    async def receive(self) -> dict[str, str]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, object]) -> None:
        await self.reading.wait()
        self.body += message.get("body", b"")
        self.ended |= message["type"] == "http.response.body" and not message["more_body"]

    def messages(self) -> list[dict[str, object]]:
        lines = [orjson.loads(line) for line in self.body.splitlines()]
        return [m for line in lines for m in line.get("messages", [])]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_gateway_that_does_not_read_is_cut_off():
    async def scenario() -> None:
        streams = TokenStreams({})
        browser = Browser()
        stream = streams.open("g")
        serving = asyncio.create_task(stream({}, browser.receive, browser.send))
        await settle()
        browser.reading.clear()
        written = 0
        while not stream.closed:
            assert written < 2 * BACKLOG_BYTES
            streams.deliver([run_of(1000)])
            written += 2000
            await settle()
        await asyncio.wait_for(serving, 10.0)
        assert not browser.ended

    asyncio.run(scenario())


def test_answers_are_said_again_for_a_while_and_tokens_are_not():
    async def scenario() -> None:
        now = 0.0
        streams = TokenStreams({}, clock=lambda: now)
        streams.deliver([landed("old"), landed("other", "h")])
        now = ANSWERS_S - 1
        streams.deliver([landed("new"), run_of(3)])
        now = ANSWERS_S + 0.5
        browser = Browser()
        serving = asyncio.create_task(streams.open("g")({}, browser.receive, browser.send))
        await settle()
        assert [m["request"] for m in browser.messages()] == ["new"]
        streams.close()
        await asyncio.wait_for(serving, 10.0)
        assert browser.ended

    asyncio.run(scenario())


def test_one_step_is_one_line():
    async def scenario() -> None:
        streams = TokenStreams({})
        browser = Browser()
        stream = streams.open("g")
        serving = asyncio.create_task(stream({}, browser.receive, browser.send))
        streams.deliver([run_of(1), landed("a"), landed("b", "elsewhere")])
        await settle()
        assert [m["kind"] for m in browser.messages()] == ["step", "landed"]
        assert len(browser.body.splitlines()) == 2
        streams.closed(stream)
        streams.close()
        stream.close()
        await asyncio.wait_for(serving, 10.0)

    asyncio.run(scenario())
