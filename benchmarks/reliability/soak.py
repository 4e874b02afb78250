"""Mixed traffic with faults for long (`pdd bench soak`): does anything grow, is anything left?

Clients ask one request after the other, short and long ones, some leaving before the end; now and
then a worker or an agent dies, or the line is cut. What the gateway's process holds is sampled all
the while; its slopes are fitted by least squares over what comes after the first fifth.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import psutil

from benchmarks.machine import machine
from benchmarks.reliability.asking import CUT_OFF, HANGS, WRONG, make_prompt
from benchmarks.reliability.chaos import FAULTS, TOPOLOGY
from benchmarks.reliability.deployment import (
    Deployment,
    connected,
    serving_with_secret,
    until,
)
from benchmarks.service import Served

CLIENTS = 32
LEAVING = 0.1
LEAVES_WITHIN_S = 2.0
LENGTHS = ((16, 8), (16, 8), (32, 8), (48, 12), (64, 4), (256, 24))  # prompt, output tokens
FAULT_EVERY_S = 45.0  # on average
FAULTS_HERE = (
    "prefill killed",
    "relay killed",
    "main killed",
    "agents killed",
    "line cut for 1 s",
    "line cut for 5 s",
    "no way to main's site for 5 s",
)
BANDWIDTH = "400Mbps"  # so that the line is not what bounds the rate
SAMPLES = 60  # of a soak, however long it is
SETTLED = 0.2  # of the time: caches are full then
FREE_S = 60.0
SPEED = {"simulate": {"prefill_tokens_per_s": 8000.0, "step": "30ms"}, "slots": 32}
BROKEN = (HANGS, WRONG, CUT_OFF)
# Per thousand requests, in a soak of at least so many: names of tokens and prompts are cached.
MOST = {"rss_bytes": 2e6, "files": 1.0, "threads": 0.2, "tasks": 1.0}
GROWING = (*MOST, "workers_rss_bytes", "workers_files", "held", "open")
ENOUGH_REQUESTS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the gateway's process holds; `at` in seconds since the begin."""

    at: float
    requests: int  # that have ended
    rss_bytes: int
    files: int
    threads: int
    tasks: int
    workers_rss_bytes: int  # of all worker processes that are up
    workers_files: int
    held: int  # tokens of KV and legs at the workers; -1: one of them was down
    open: int  # requests


def run(*, minutes: float, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Traffic for so many minutes, then quiet. Raises ServeFailed."""
    measured_on = machine()
    sites = {
        name: {"pools": {pool: what | SPEED for pool, what in site["pools"].items()}}
        for name, site in TOPOLOGY["sites"].items()
    }
    links = [TOPOLOGY["links"][0] | {"bandwidth": BANDWIDTH}]
    topology = TOPOLOGY | {"sites": sites, "links": links}
    with serving_with_secret(topology, tell) as (served, secret):
        told = asyncio.run(Soak(served, secret, seed, tell).run(60.0 * minutes))
    return {"machine": measured_on, "seed": seed, "minutes": minutes} | told


class Soak:
    """One soak. Where clients and faults draw from, each draws of its own."""

    def __init__(self, served: Served, secret: str, seed: int, tell: Callable[[str], None]) -> None:
        self._served, self._secret = served, secret
        self._seed, self._tell = seed, tell
        self._outcomes: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._samples: list[Sample] = []
        self.no_samples = 0  # the gateway did not answer in time

    async def run(self, seconds: float) -> dict[str, Any]:
        async with connected(self._served, self._secret) as deployment:
            end = time.monotonic() + seconds
            troubles = asyncio.create_task(self._troubles(deployment, end))
            samples = asyncio.create_task(self.sampled(deployment, seconds))
            clients = [self._client(deployment, number, end) for number in range(CLIENTS)]
            await asyncio.gather(troubles, samples, *clients)
            healed = await until(deployment.all_up, FREE_S)

            async def free() -> bool:
                return await deployment.held() == 0

            free_s = await until(free, FREE_S)
            requests = (await deployment.status())["requests"]
            left = 0 if free_s is not None else await deployment.held()
        return {
            "requests": self._outcomes.total(),
            "outcomes": dict(self._outcomes),
            "faults": dict(self._faults),
            "healed_s": healed,
            "free_s": free_s,
            "left": left,
            "open": requests["open"] + requests["queued"],
            "slopes": slopes(self._samples),
            "no_samples": self.no_samples,
            "samples": [asdict(sample) for sample in self._samples],
            "broken": [what for what in BROKEN if self._outcomes[what]]
            + ["KV is left"] * bool(left)
            + ["requests are open"] * bool(requests["open"] + requests["queued"])
            + ["not all came back"] * (healed is None)
            + grown(self._samples),
        }

    async def _client(self, deployment: Deployment, number: int, end: float) -> None:
        rng = random.Random(self._seed * 1000 + number)
        while time.monotonic() < end:
            prompt, output = rng.choice(LENGTHS)
            leaves = rng.random() < LEAVING
            answer = await deployment.asker.ask(
                make_prompt(rng, prompt),
                output,
                leave_s=rng.uniform(0.0, LEAVES_WITHIN_S) if leaves else None,
                pdd_route=rng.choice(("auto", "relay", "direct")),
            )
            self._outcomes[answer.outcome] += 1
            if answer.status in (429, 503):
                await asyncio.sleep(float(answer.retry_after or 1.0))

    async def _troubles(self, deployment: Deployment, end: float) -> None:
        rng = random.Random(self._seed)
        while (pause := rng.expovariate(1.0 / FAULT_EVERY_S)) < end - time.monotonic():
            await asyncio.sleep(pause)
            if await until(deployment.all_up, FREE_S) is None:
                continue  # one trouble at a time; the end tells if it stays
            fault = rng.choice(FAULTS_HERE)
            try:
                await FAULTS[fault](deployment, {})
            except (LookupError, httpx.HTTPError, psutil.Error, ProcessLookupError) as error:
                self._tell(f"{fault}: not done ({error})")
            else:
                self._faults[fault] += 1

    async def _sample(self, deployment: Deployment, at: float) -> Sample:
        status = await deployment.status()
        process = psutil.Process(self._served.process.pid)
        workers_rss = workers_files = 0
        for told in status["workers"]:
            if told["state"] == "up":
                with contextlib.suppress(psutil.Error):
                    worker = psutil.Process(int(told["pid"]))
                    workers_files += worker.num_fds()
                    workers_rss += worker.memory_info().rss
        return Sample(
            at=at,
            requests=self._outcomes.total(),
            rss_bytes=process.memory_info().rss,
            files=process.num_fds(),
            threads=process.num_threads(),
            tasks=status["tasks"],
            workers_rss_bytes=workers_rss,
            workers_files=workers_files,
            held=await deployment.held(),
            open=status["requests"]["open"] + status["requests"]["queued"],
        )

    async def sampled(self, deployment: Deployment, seconds: float) -> None:
        began = time.monotonic()
        for number in range(1, SAMPLES + 1):
            await asyncio.sleep(max(0.0, began + number * seconds / SAMPLES - time.monotonic()))
            try:
                sample = await self._sample(deployment, time.monotonic() - began)
            except (httpx.HTTPError, ValueError) as error:
                self.no_samples += 1
                self._tell(f"no sample: {type(error).__name__} of the gateway's /status")
                continue
            self._samples.append(sample)
            if number % 6 == 0:
                self._tell(
                    f"{sample.at:.0f} s: {sample.requests} requests, "
                    f"{sample.rss_bytes / 1e6:.0f} MB, {sample.files} files; "
                    f"{self._faults.total()} faults"
                )


def grown(samples: Sequence[Sample]) -> list[str]:
    """What has grown beyond MOST, if there were requests enough to tell."""
    if not samples or samples[-1].requests < ENOUGH_REQUESTS:
        return []
    told = slopes(samples)
    return [f"{what} grow" for what, most in MOST.items() if (told[what] or 0) > most]


def slopes(samples: Sequence[Sample]) -> dict[str, float | None]:
    """What the gateway's process gains with each thousand requests, once it has settled.

    None: there are too few samples to tell.
    """
    settled = [s for s in samples if s.at >= SETTLED * samples[-1].at] if samples else []
    requests = [sample.requests / 1000 for sample in settled]
    if len(set(requests)) < 3:
        return dict.fromkeys(GROWING)
    return {
        what: statistics.linear_regression(
            requests, [getattr(sample, what) for sample in settled]
        ).slope
        for what in GROWING
    }
