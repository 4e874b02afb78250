"""How fast a replay is at scale: Mooncake's trace, a million generated requests, and in between.

CPU seconds of this process, beside a fixed loop that only adds (`loop_ns` per addition): the
machine's speed at the time. Peak memory is that of the replay alone, in a process of its own.
"""

import gc
import multiprocessing
import resource
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.machine import machine
from compiled.finder import is_compiled
from orchestrator.children import end_with_parent
from orchestrator.replay.driver import Replay
from orchestrator.replay.outcome import Outcome
from orchestrator.replay.prompt import Prompt
from orchestrator.replay.setup import ReplaySetup
from orchestrator.replay.workload.draws import SKEWED, Arrivals, Lengths
from orchestrator.replay.workload.generated import Generated
from orchestrator.replay.workload.request import Workload
from orchestrator.replay.workload.traces import read_trace
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, Route

TRACE = Path(__file__).parents[2] / "shared/traces/mooncake/conversation_trace.jsonl.gz"
MIXED = (None, Route.LOCAL, Route.DIRECT, Route.RELAY)
# Mooncake's prompts are long: pools of cards with room for them.
KV_TOKENS, SLOTS = 2_000_000, 256
SIZES = (10_000, 100_000)
# Log-normal lengths whose load the four workers of each role bear.
GENERATED = Generated(
    arrivals=Arrivals(per_s=10.0),
    prompt=Lengths(mean=500, cv=0.95, least=16, most=32_000),
    output=Lengths(mean=200, cv=0.87, least=2, most=4_000),
    hits=SKEWED,
    count=1,
)


def run(
    *, requests: int, trace: Path = TRACE, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Replay the trace (null: it is not there), then generated workloads up to `requests`."""
    measured_on = machine()
    mooncake = without = None
    if trace.exists():
        read = read_trace(trace)
        tell(f"{len(read.rows)} requests of {trace.name}")
        mooncake = _apart(read, True)
        tell("again, without prefix caches")
        without = _apart(read, False)
    else:
        tell(f"{trace} is not there: left out")
    scaling = []
    for size in [*(size for size in SIZES if size < requests), requests]:
        tell(f"{size} generated requests")
        scaling.append(_apart(replace(GENERATED, count=size), True))
    return {
        "mooncake": mooncake,
        "mooncake_without_caches": without,
        "million": scaling[-1],
        "scaling": scaling,
        "compiled": is_compiled(),
        "loop_ns": 1e9 * driver.loop_s() / driver.LOOP_ADDITIONS,
        "machine": measured_on,
    }


def _apart(workload: Workload, caches: bool) -> dict[str, Any]:
    """In a new process, whose memory is the replay's."""
    with multiprocessing.get_context("spawn").Pool(1, end_with_parent) as pool:
        return pool.apply(measure, (workload, caches))


def measure(workload: Workload, caches: bool) -> dict[str, Any]:
    """Replay a workload on mixed routes, four workers per role. RuntimeError if one fails."""
    took = array("d")
    routes: dict[str, int] = {}

    def ended(outcome: Outcome) -> None:
        end = outcome.end
        if not isinstance(end, Finish) or outcome.last_at is None:
            raise RuntimeError(f"request {outcome.name} did not finish: {end}")
        took.append(outcome.last_at - outcome.asked_at)
        route = end.summary.route.value
        routes[route] = routes.get(route, 0) + 1

    replay = Replay(setup(workload.block_tokens if caches else None), ended)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.collect()
    gc.disable()  # nothing here makes cycles
    began, began_cpu = time.perf_counter(), time.process_time()
    replay.run(asks(workload))
    cpu_s, wall_s = time.process_time() - began_cpu, time.perf_counter() - began
    gc.enable()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "requests": len(took),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "s_per_1000": 1000 * cpu_s / len(took),
        "events_per_request": replay.events / len(took),
        "peak_MiB": peak_kib / 1024,
        "before_MiB": before_kib / 1024,
        "virtual_s": replay.ended_at,
        "mean_end_to_end_s": sum(took) / len(took),
        "routes": routes,
    }


def setup(block_tokens: int | None) -> ReplaySetup:
    """`benchmarks.driver`'s deployment with larger cards."""
    small = driver.setup()
    workers = tuple(replace(w, kv_tokens=KV_TOKENS, slots=SLOTS) for w in small.workers)
    return replace(small, workers=workers, block_tokens=block_tokens)


def asks(workload: Workload) -> Iterator[tuple[float, Arrived]]:
    """What clients ask, every route in turn."""
    for number, (request, route) in enumerate(zip(workload.requests(), cycle(MIXED), strict=False)):
        prompt = Prompt(request.prompt, request.blocks)
        yield (
            request.at,
            Arrived(request=f"r{number}", prompt_ids=prompt, limit=request.output, route=route),
        )
