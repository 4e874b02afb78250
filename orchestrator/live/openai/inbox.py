"""Everything an answer waits for, in one queue: its choices' actions and the client's leaving."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import NamedTuple, Self

from starlette.types import Receive

from orchestrator.live.openai.service import Service
from orchestrator.metrics.requests import RequestMeter, RequestMetrics
from orchestrator.state.actions import Emit, Fail, Failure, Finish
from orchestrator.state.events import Arrived

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class ClientLeft(Exception):
    """The client closed its connection, or reads nothing any more."""


class Item(NamedTuple):
    """One action of one choice, by its index."""

    choice: int
    action: Emit | Finish | Fail


class Inbox:
    """Submits every choice on entry; on exit whatever still runs is cancelled on every leg."""

    def __init__(
        self,
        service: Service,
        arrivals: Sequence[Arrived],
        receive: Receive,
        metrics: RequestMetrics,
        arrived_at: float,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._service = service
        self._arrivals = arrivals
        self._receive = receive
        self._metrics = metrics
        self._arrived_at = arrived_at
        self._clock = clock
        self._queue: asyncio.Queue[Item | None] = asyncio.Queue()  # None: the client left
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for index, arrived in enumerate(self._arrivals):
            meter = self._metrics.arrived(len(arrived.prompt_ids), self._arrived_at)
            self._tasks.append(asyncio.create_task(self._pump(index, arrived, meter)))
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, timeout_s: float | None = None) -> list[Item]:
        """Everything that is there, at least one; empty after `timeout_s`. Raises ClientLeft."""
        try:
            async with asyncio.timeout(timeout_s):
                taken = [await self._queue.get()]
        except TimeoutError:
            return []
        while not self._queue.empty():
            taken.append(self._queue.get_nowait())
        items = [item for item in taken if item is not None]
        if len(items) < len(taken):
            raise ClientLeft
        return items

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(None)

    async def _pump(self, index: int, arrived: Arrived, meter: RequestMeter) -> None:
        try:
            async with aclosing(self._service.submit(arrived)) as actions:
                async for action in actions:
                    meter.saw(action, self._clock())
                    self._queue.put_nowait(Item(index, action))
                    if not isinstance(action, Emit):
                        return
            log.error("request %s ended without a result", arrived.request)
        except Exception:
            log.exception("request %s broke", arrived.request)
        finally:
            meter.gone()
        fail = Fail(request=arrived.request, failure=Failure.INTERNAL, message="internal error")
        self._queue.put_nowait(Item(index, fail))
