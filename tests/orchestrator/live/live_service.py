"""What tests of the whole running service share: streaming, counting blocks, killing workers."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.service import Served
from transport.emulator.control import LineControl

SECRET = "a-secret-for-tests"
WAIT_S = 90.0


@dataclass
class Streamed:
    """One streamed completion as its client saw it."""

    text: str = ""
    finish_reason: str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    done: bool = False
    status: int = 200

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.told["token_ids"]
        return ids


def body_of(served: Served, prompt: Sequence[int] | str, **fields: Any) -> dict[str, Any]:
    return {
        "model": served.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": 48,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "pdd_timings": True,
        "pdd_token_ids": True,
        "pdd_margins": True,
        **fields,
    }


def stream(
    served: Served,
    prompt: Sequence[int] | str,
    *,
    on_token: Callable[[int], None] = lambda count: None,
    **fields: Any,
) -> Streamed:
    """Stream to the end; `on_token` is told how many chunks with text have come."""
    seen, count = Streamed(), 0
    body = body_of(served, prompt, **fields)
    with httpx.stream("POST", f"{served.url}/completions", json=body, timeout=WAIT_S) as answer:
        seen.status = answer.status_code
        if answer.status_code != 200:
            seen.error = json.loads(answer.read())["error"]
            return seen
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                seen.done = True
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            seen.error = chunk.get("error", seen.error)
            for choice in chunk.get("choices", ()):
                seen.text += choice["text"]
                seen.finish_reason = choice["finish_reason"] or seen.finish_reason
                if choice["text"]:
                    count += 1
                    on_token(count)
            seen.told = chunk.get("pdd", seen.told)
    return seen


def several(jobs: Sequence[Callable[[], Streamed]]) -> list[Streamed]:
    """Run the jobs at once, each in a thread."""
    results: list[Streamed | None] = [None] * len(jobs)

    def run(index: int) -> None:
        results[index] = jobs[index]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert all(result is not None for result in results), "a stream hangs"
    return [result for result in results if result is not None]


def blocks(served: Served, *only: str) -> dict[str, dict[str, int]]:
    """The own count of legs and held tokens of every worker, or of some, asked now."""
    headers = {"authorization": f"Bearer {SECRET}"}
    counted = {}
    with httpx.Client(headers=headers, timeout=10.0) as http:
        for worker in served.status()["workers"]:
            if only and worker["name"] not in only:
                continue
            answered = http.get(f"{worker['control']}/blocks")
            answered.raise_for_status()
            counted[worker["name"]] = answered.json()
    return counted


def legs(served: Served, worker: str) -> int:
    """How many legs the worker itself says it has."""
    return blocks(served, worker)[worker]["legs"]


def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> float:
    """Seconds until the condition holds; fails when it does not in time."""
    began = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s:g} s: {what}"
        pause.wait(0.05)
    return time.monotonic() - began


def all_free(served: Served) -> bool:
    return all(
        count["held_tokens"] == 0 and count["legs"] == 0 for count in blocks(served).values()
    )


def all_up(served: Served) -> bool:
    return all(worker["state"] == "up" for worker in served.status()["workers"])


class Race:
    """KV on the emulated line against tokens: who comes first is said here, not by the machine.

    From `begin` on the line is slow, so that main has no KV, and a relay that is held still
    decodes nothing. Control and tokens go before KV, so only KV feels the line's rate.
    """

    def __init__(self, served: Served, relay: str) -> None:
        self._served = served
        self._relay = relay
        self._pids: dict[str, int] = {}
        self._held = False
        link = served.status()["links"][0]
        self._port = int(link["emulator"].rpartition(":")[2])
        ((self._name, directions),) = asyncio.run(self._stats()).items()
        self._rate = float(next(iter(directions.values()))["rate_bytes_per_s"])

    def begin(self) -> None:
        """Before the request."""
        self._pids = {worker["name"]: worker["pid"] for worker in self._served.status()["workers"]}
        asyncio.run(self._set(self._rate / 10))

    def hold_relay(self) -> None:
        """It must not take long: a relay that is silent for seconds is lost."""
        self._held = True
        os.kill(self._pids[self._relay], signal.SIGSTOP)

    def usual_line(self) -> None:
        asyncio.run(self._set(self._rate))

    def end(self) -> None:
        """Everything is as it was; harmless when repeated."""
        if self._held:
            self._held = False
            os.kill(self._pids[self._relay], signal.SIGCONT)
        self.usual_line()

    def kill(self, worker: str) -> None:
        """SIGKILL the worker's process, wait until the gateway knows, then `end`."""
        pid = self._pids[worker]
        os.kill(pid, signal.SIGKILL)

        def noticed() -> bool:
            told = self._served.worker(worker)
            return told["state"] != "up" or told["pid"] != pid

        until(noticed, f"the gateway knows that {worker} is lost", 20.0)
        self.end()

    async def _set(self, rate: float) -> None:
        control = await LineControl.connect(self._port)
        try:
            await control.set(self._name, rate_bytes_per_s=rate)
        finally:
            await control.close()

    async def _stats(self) -> dict[str, Any]:
        control = await LineControl.connect(self._port)
        try:
            return await control.stats()
        finally:
            await control.close()


def prompts(count: int, length: int) -> Iterator[list[int]]:
    """Distinct prompts of ordinary token ids."""
    for number in range(count):
        yield [1000 + (number * 7919 + i * 37) % 20_000 for i in range(length)]
