"""The signals of commands that run until they are told to stop."""

import asyncio
import signal

import pytest

from orchestrator.cli.voice import signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_each_signal_is_heard_once_and_one_too_many_ends_nothing(number: signal.Signals) -> None:
    async def scenario() -> None:
        with signals() as another:
            stopped = another()
            signal.raise_signal(number)
            await stopped
            again = another()
            await asyncio.sleep(0)
            assert not again.done(), "the one before is not its own"
            signal.raise_signal(number)
            await again
            signal.raise_signal(number)  # while everything is ended: that goes on
            last = another()
            await asyncio.sleep(0)
            signal.raise_signal(number)
            await last

    asyncio.run(asyncio.wait_for(scenario(), 10))
