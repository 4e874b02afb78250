"""Faults of the real service, each in every phase of a request (`pdd bench chaos`).

Two sites with simulated engines under `pdd serve`: real processes, Ray, sockets and an emulated
line. For each fault and phase requests are brought into the phase, the fault is done, and it is
seen what their clients got, how much longer it took than in peace, and what stays behind.
"""

import asyncio
import os
import random
import signal
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
import psutil

from benchmarks.machine import machine
from benchmarks.reliability.asking import CUT_OFF, HANGS, WHOLE, WRONG, Answer, make_prompt
from benchmarks.reliability.deployment import (
    HAMI,
    SHENZHEN,
    Deployment,
    connected,
    serving_with_secret,
    until,
)
from benchmarks.service import Served

PROMPT_TOKENS = 448
OUTPUT_TOKENS = 120
TOGETHER = 2  # requests in each cell
FREE_S = 20.0  # from the last answer to the last block, leases included
HEALED_S = 90.0
STOPPED_S = 8.0  # a process that is held still; longer than the silence that is borne
SLOW_S = 15.0
PHASES = ("prefill", "relay", "main")
BROKEN = (HANGS, WRONG, CUT_OFF)

_POOL = {"chip": "cpu", "engine": "simulated", "slots": 16, "kv_tokens": 16384}
_SPEED = {"simulate": {"prefill_tokens_per_s": 500.0, "step": "40ms"}}
_WORKERS = _POOL | _SPEED
TOPOLOGY: dict[str, Any] = {
    "model": "smollm2-135m",
    "sites": {
        HAMI: {
            "pools": {
                "prefill": _WORKERS | {"roles": ["prefill"], "instances": 2, "count": 2},
                "relay": _WORKERS | {"roles": ["relay"]},
            }
        },
        SHENZHEN: {"pools": {"main": _WORKERS | {"roles": ["main"], "instances": 2, "count": 2}}},
    },
    "links": [
        {
            "between": [HAMI, SHENZHEN],
            "delay": "25ms",
            "bandwidth": "40Mbps",
            "jitter": "0.2ms",
            "emulate": True,
        }
    ],
    "gateway": {"site": SHENZHEN, "host": "127.0.0.1", "port": 8000},
    "policy": {"route": "relay", "deadlines": {"silence": "5s", "lease": "5s", "hold": "10s"}},
}

# Does the fault to the workers that serve a request, by role, and undoes it.
Do = Callable[[Deployment, dict[str, str]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a fault did to the requests of one phase.

    `added_s`: the median of how much longer their answers took than in peace. `left`: tokens of
    KV and legs still held by some worker `FREE_S` after the last answer. `healed_s`: until every
    worker and agent was there again; None: not within `HEALED_S`.
    """

    fault: str
    phase: str
    outcomes: dict[str, int]
    added_s: float | None
    longest_gap_s: float
    free_s: float | None
    healed_s: float | None
    left: int

    @property
    def broken(self) -> bool:
        lost = any(outcome in self.outcomes for outcome in BROKEN)
        return lost or bool(self.left) or self.healed_s is None


def run(
    *, faults: Sequence[str], phases: Sequence[str], seed: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Every fault of `faults` (of NAMES) in every phase. Raises ServeFailed."""
    measured_on = machine()
    cells: list[Cell] = []
    if of_one := [fault for fault in faults if fault in FAULTS]:
        with serving_with_secret(TOPOLOGY, tell) as (served, secret):
            cells += asyncio.run(_matrix(served, secret, of_one, phases, seed, tell))
    if GATEWAY_KILLED in faults:
        two = TOPOLOGY | {"gateway": TOPOLOGY["gateway"] | {"processes": 2}}
        with serving_with_secret(two, tell) as (served, secret):
            cells += asyncio.run(_gateways(served, secret, phases, seed, tell))
    return {
        "machine": measured_on,
        "seed": seed,
        "cells": [
            {
                "fault": cell.fault,
                "phase": cell.phase,
                "outcomes": cell.outcomes,
                "added_s": cell.added_s,
                "longest_gap_s": cell.longest_gap_s,
                "free_s": cell.free_s,
                "healed_s": cell.healed_s,
                "left": cell.left,
            }
            for cell in cells
        ],
        "broken": [f"{cell.fault} in {cell.phase}" for cell in cells if cell.broken],
    }


async def _matrix(
    served: Any,
    secret: str,
    faults: Sequence[str],
    phases: Sequence[str],
    seed: int,
    tell: Callable[[str], None],
) -> list[Cell]:
    rng = random.Random(seed)
    cells = []
    async with connected(served, secret) as deployment:
        calm = [answer.seconds for _ in range(2) for answer in await _together(deployment, rng)]
        tell(f"in peace an answer takes {statistics.median(calm):.1f} s")
        for fault in faults:
            for phase in phases:
                cell = await _cell(deployment, fault, phase, rng, statistics.median(calm))
                tell(f"{fault} in {phase}: {cell.outcomes}, left {cell.left}")
                cells.append(cell)
    return cells


async def _together(
    deployment: Deployment,
    rng: random.Random,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> list[Answer]:
    asked = [
        asyncio.create_task(
            deployment.asker.ask(make_prompt(rng, PROMPT_TOKENS), OUTPUT_TOKENS, pdd_route="relay")
        )
        for _ in range(TOGETHER)
    ]
    if meanwhile is not None:
        await meanwhile()
    return list(await asyncio.gather(*asked))


async def _cell(
    deployment: Deployment, fault: str, phase: str, rng: random.Random, calm_s: float
) -> Cell:
    async def meanwhile() -> None:
        victims = await _in_phase(deployment, phase)
        await FAULTS[fault](deployment, victims)

    answers = await _together(deployment, rng, meanwhile)
    healed = await until(deployment.all_up, HEALED_S)
    return await _seen(deployment, fault, phase, answers, healed, calm_s)


async def _seen(
    deployment: Deployment,
    fault: str,
    phase: str,
    answers: Sequence[Answer],
    healed: float | None,
    calm_s: float,
) -> Cell:
    async def free() -> bool:
        return await deployment.held() == 0

    free_s = await until(free, FREE_S)
    whole = [answer for answer in answers if answer.outcome == WHOLE]
    return Cell(
        fault=fault,
        phase=phase,
        outcomes=dict(Counter(answer.outcome for answer in answers)),
        added_s=statistics.median(a.seconds - calm_s for a in whole) if whole else None,
        longest_gap_s=max(answer.longest_gap_s for answer in answers),
        free_s=free_s,
        healed_s=healed,
        left=0 if free_s is not None else await deployment.held(),
    )


async def _in_phase(deployment: Deployment, phase: str) -> dict[str, str]:
    """Wait until some request is in the phase: who serves it, by role."""
    there: dict[str, str] = {}

    async def somebody() -> bool:
        for request in (await deployment.page())["open"]:
            if request["phase"] == phase:
                there.update({leg["role"]: leg["worker"] for leg in request["legs"]})
                return True
        return False

    if await until(somebody, 30.0) is None:
        raise LookupError(f"no request was ever in phase {phase}")
    return there


# ---------------------------------------------------------------- one of two gateways

GATEWAY_KILLED = "one of two gateways killed"
WITH_GATEWAY = "ended with its gateway"


async def _gateways(
    served: Served, secret: str, phases: Sequence[str], seed: int, tell: Callable[[str], None]
) -> list[Cell]:
    """The first is killed when requests of its own are in the phase; the other has as many."""
    rng = random.Random(seed)
    shared = httpx.URL(served.url)
    assert shared.port is not None
    own = [replace(served, url=str(shared.copy_with(port=shared.port + n))) for n in (1, 2)]
    cells = []
    async with connected(own[0], secret) as first, connected(own[1], secret) as other:
        calm = [a.seconds for of in await _at_both(first, other, rng) for a in of]
        for phase in phases:

            async def kill(phase: str = phase) -> None:
                await _in_phase(first, phase)
                _listener(first, shared.port + 1).kill()

            ended, went_on = await _at_both(first, other, rng, kill)
            for answer in ended:
                if answer.outcome == CUT_OFF:
                    answer.outcome = WITH_GATEWAY
            healed = await until(partial(_knows_all, first, other), HEALED_S)
            answers = [*ended, *went_on]
            calm_s = statistics.median(calm)
            cell = await _seen(other, GATEWAY_KILLED, phase, answers, healed, calm_s)
            tell(f"{GATEWAY_KILLED} in {phase}: {cell.outcomes}, left {cell.left}")
            cells.append(cell)
    return cells


async def _at_both(
    first: Deployment,
    other: Deployment,
    rng: random.Random,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> tuple[list[Answer], list[Answer]]:
    return await asyncio.gather(_together(first, rng, meanwhile), _together(other, rng))


async def _knows_all(new: Deployment, old: Deployment) -> bool:
    """Whether a gateway has every worker up that another knows: it serves with the first."""
    there = {worker["name"] for worker in (await old.status())["workers"]}
    up = {w["name"] for w in (await new.status())["workers"] if w["state"] == "up"}
    return up == there and await old.all_up()


def _listener(deployment: Deployment, port: int) -> psutil.Process:
    for process in deployment.processes("gateway_process"):
        if any(c.laddr.port == port for c in process.net_connections("tcp")):
            return process
    raise LookupError(f"no gateway has port {port}")


# ---------------------------------------------------------------- the faults

_POOLS = {"prefill": "hami/prefill/0", "relay": "hami/relay/0", "main": "shenzhen/main/0"}


def _kill(role: str) -> Do:
    async def do(deployment: Deployment, victims: dict[str, str]) -> None:
        os.kill(await deployment.pid(victims.get(role, _POOLS[role])), signal.SIGKILL)

    return do


def _hold_still(role: str) -> Do:
    async def do(deployment: Deployment, victims: dict[str, str]) -> None:
        pid = await deployment.pid(victims.get(role, _POOLS[role]))
        await _still([psutil.Process(pid)])

    return do


async def _still(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    await asyncio.sleep(STOPPED_S)
    for process in processes:
        if process.is_running():
            process.resume()


async def _kill_agents(deployment: Deployment, victims: dict[str, str]) -> None:
    for process in deployment.agents():
        process.kill()


async def _hold_agents(deployment: Deployment, victims: dict[str, str]) -> None:
    await _still(deployment.agents())


async def _kill_node(deployment: Deployment, victims: dict[str, str]) -> None:
    """The Ray node of the site where main is, and with it what runs there."""
    (node,) = deployment.processes("ray_node", "start", f"site={SHENZHEN}")
    (raylet,) = (child for child in node.children() if child.name() == "raylet")
    raylet.kill()


def _cut(seconds: float, towards: str | None = None) -> Do:
    async def do(deployment: Deployment, victims: dict[str, str]) -> None:
        async with deployment.line() as (control, line):
            await control.cut(line, towards=towards)
            await asyncio.sleep(seconds)
            await control.restore(line)

    return do


def _line(**values: float) -> Do:
    async def do(deployment: Deployment, victims: dict[str, str]) -> None:
        async with deployment.line() as (control, line):
            (directions,) = (await control.stats()).values()
            now = next(iter(directions.values()))
            await control.set(line, **values)
            await asyncio.sleep(SLOW_S)
            await control.set(line, **{name: now[name] for name in values})

    return do


FAULTS: dict[str, Do] = {
    "prefill killed": _kill("prefill"),
    "relay killed": _kill("relay"),
    "main killed": _kill("main"),
    "prefill held still": _hold_still("prefill"),
    "relay held still": _hold_still("relay"),
    "main held still": _hold_still("main"),
    "agents killed": _kill_agents,
    "agents held still": _hold_agents,
    "line cut for 1 s": _cut(1.0),
    "line cut for 5 s": _cut(5.0),
    "line cut for 30 s": _cut(30.0),
    "no way to main's site for 5 s": _cut(5.0, SHENZHEN),
    "no way from main's site for 5 s": _cut(5.0, HAMI),
    "a hundredth of the bandwidth": _line(rate_bytes_per_s=50_000.0),
    "25 to 250 ms": _line(delay_s=0.25),
    "Ray node killed": _kill_node,
}
NAMES = (*FAULTS, GATEWAY_KILLED)
