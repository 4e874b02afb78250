"""What the commands share that run until they are told to stop: their voice and their signals."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from orchestrator.cli.output import Format
from workers.service.logs import log_to

T = TypeVar("T")


class Voice:
    """Tells people what happens, as text or as one JSON object a line."""

    def __init__(self, output: Format) -> None:
        self._json = output is Format.JSON
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        if self._json:
            print(orjson.dumps({"progress": text}).decode(), flush=True)
        else:
            self._console.print(f"  {text}", markup=False)

    def ready(self, told: dict[str, Any], text: str) -> None:
        """It is up: `told` as JSON, `text` for people."""
        print(orjson.dumps(told).decode() if self._json else text, flush=True)

    @contextlib.contextmanager
    def model(self) -> Iterator[None]:
        """A progress bar for the model's preparation, shown only if it takes any."""
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def model_progress(self, done: int, total: int, what: str) -> None:
        if self._json:
            self.say(f"{what} {done}/{total}")
            return
        if self._bar is None:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.0f} %"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)
            if done >= total:
                self._bar.stop()


def keep_logs(who: str, folder: Path | None) -> None:
    """This process's logs in a folder, which is made; None: only what is wrong is told."""
    if folder is None:
        log_to(who, None)
        logging.disable(logging.INFO)
        return
    folder.mkdir(parents=True, exist_ok=True)
    log_to(who, folder / f"{who}.log")


async def entered(
    manager: contextlib.AbstractAsyncContextManager[T], stopped: "asyncio.Future[None]"
) -> T | None:
    """What the manager gives; None: `stopped` came first, and it has cleaned up."""
    entering = asyncio.ensure_future(manager.__aenter__())
    await asyncio.wait((entering, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not entering.done():
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        return None
    return entering.result()


@contextlib.contextmanager
def on_hangup(stopped: "asyncio.Future[None]") -> Iterator[asyncio.Event]:
    """An event that SIGHUP sets. Where it comes of a terminal that is gone, it is the end."""
    loop, changed, terminal = asyncio.get_running_loop(), asyncio.Event(), os.isatty(0)

    def hear() -> None:
        if not terminal or os.isatty(0):
            changed.set()
        elif not stopped.done():
            stopped.set_result(None)

    loop.add_signal_handler(signal.SIGHUP, hear)
    try:
        yield changed
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextlib.contextmanager
def signals() -> Iterator[Callable[[], "asyncio.Future[None]"]]:
    """What gives a future that is done when SIGINT or SIGTERM has come since it was asked for.

    One that nobody asked for ends nothing: it must not cut short what cleans up.
    """
    loop = asyncio.get_running_loop()
    awaited: list[asyncio.Future[None]] = []

    def heard() -> None:
        for future in awaited:
            if not future.done():
                future.set_result(None)
        awaited.clear()

    def another() -> "asyncio.Future[None]":
        awaited.append(loop.create_future())
        return awaited[-1]

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    try:
        yield another
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
