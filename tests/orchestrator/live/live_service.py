"""What tests of the whole running service share: streaming, counting blocks, killing workers."""

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


def blocks(served: Served) -> dict[str, dict[str, int]]:
    """Every worker's own count of legs and held tokens, asked now."""
    headers = {"authorization": f"Bearer {SECRET}"}
    counted = {}
    with httpx.Client(headers=headers, timeout=10.0) as http:
        for worker in served.status()["workers"]:
            answered = http.get(f"{worker['control']}/blocks")
            answered.raise_for_status()
            counted[worker["name"]] = answered.json()
    return counted


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


def kill(served: Served, worker: str) -> int:
    """SIGKILL one worker's process; its process id."""
    pid: int = served.worker(worker)["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def prompts(count: int, length: int) -> Iterator[list[int]]:
    """Distinct prompts of ordinary token ids."""
    for number in range(count):
        yield [1000 + (number * 7919 + i * 37) % 20_000 for i in range(length)]
