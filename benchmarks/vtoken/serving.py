"""One simulated worker that evicts, in virtual time: what requests hold, and how long they take."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from workers.api.messages import Sampling
from workers.costs import MeasuredCosts
from workers.engines.base import NoRoom, SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.kv.evict.config import Eviction

# A model of 8B parameters on a chip of 3 TB/s: weights are read in 20 ms, and the 131 KB of KV of
# a token in 0.06 microseconds. It decodes: prompts are taken in nearly as fast as KV that comes.
COSTS = MeasuredCosts(
    prefill_tokens_per_s=200_000.0, decode_step_s=0.02, context_s=6e-8, sequence_s=5e-5
)
MODEL = SimulatedModel(layers=1, kv_heads=1, head_size=4, max_context=16_384, stop_ids=())
CHUNK = 8192


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths of prompts and outputs: median, sigma, and where they are cut.

    `count`: requests of a run, as many as bring it into a steady state.
    """

    prompt: tuple[float, float, int]
    output: tuple[float, float, int]
    count: int


# After what papers report of the two: conversations, short and of even parts, and questions to long
# documents.
LENGTHS = {
    "sharegpt": Lengths((180.0, 1.0, 1200), (180.0, 0.6, 500), 240),
    "longbench": Lengths((3000.0, 0.5, 7000), (100.0, 0.5, 300), 120),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request: when it comes, and its tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of the jobs. Means are over time and over the requests that ran.

    `latency_p95_s`: from arrival to the last token. `evicted`: tokens that died.
    """

    blocks_per_request: float
    concurrency: float
    latency_p95_s: float
    ended_at: float
    evicted: int


def jobs(lengths: Lengths, count: int, rate: float | None, seed: int) -> list[Job]:
    """`count` jobs that come at `rate` per second, Poisson; None: all at once."""
    rng = random.Random(seed)
    made, at = [], 0.0
    for _ in range(count):
        prompt, output = (
            max(16, min(longest, round(median * rng.lognormvariate(0, sigma))))
            for median, sigma, longest in (lengths.prompt, lengths.output)
        )
        made.append(Job(at, prompt, output))
        if rate is not None:
            at += rng.expovariate(rate)
    return made


def blocks_after_prompts(eviction: Eviction, count: int, prompt: int, block_size: int) -> int:
    """Blocks that so many requests hold when their prompts are computed, and some of them dead.

    Each decodes a token more for each of them: that many steps at most pack one at a time.
    """
    goal = prompt + count
    kv_tokens = count * (goal + 2 * block_size) // block_size * block_size
    engine = _engine(eviction, kv_tokens, block_size)
    for number in range(count):
        seq = SeqId(str(number), 0)
        engine.open(seq, _spec(number, prompt, goal), reuse=False)
        engine.set_goal(seq, goal)
    while (step := engine.begin()) is not None:
        engine.finish(step)
    return engine.kv_held_tokens() // block_size


def _engine(eviction: Eviction | None, kv_tokens: int, block_size: int) -> SimulatedEngine:
    return SimulatedEngine(
        MODEL,
        COSTS,
        kv_total_tokens=kv_tokens,
        block_size=block_size,
        chunk_tokens=CHUNK,
        eviction=eviction,
    )


def _spec(number: int, prompt: int, reserve: int) -> SequenceSpec:
    tokens = tuple((number * 7919 + i) % 31_000 + 5 for i in range(prompt))
    return SequenceSpec(tokens=tokens, prompt_len=prompt, reserve=reserve, sampling=Sampling())


def play(
    work: Sequence[Job], eviction: Eviction | None, *, kv_tokens: int, block_size: int
) -> Played:
    """Serve the jobs in their order, each as soon as there is room for all of it."""
    engine = _engine(eviction, kv_tokens, block_size)
    waiting, running = deque(enumerate(work)), dict[SeqId, tuple[Job, int]]()
    now = held = seqs = busy = 0.0
    latencies = []
    while waiting or running:
        while waiting and waiting[0][1].at <= now:
            number, job = waiting[0]
            seq = SeqId(str(number), 0)
            goal = job.prompt + job.output
            try:
                engine.open(seq, _spec(number, job.prompt, goal), reuse=False)
            except NoRoom:
                if not running:
                    raise
                break
            engine.set_goal(seq, goal)
            running[seq] = job, goal
            waiting.popleft()
        step = engine.begin()
        if step is None:
            now = waiting[0][1].at
            continue
        took = step.duration_s or 0.0
        result = engine.finish(step)
        now += took
        busy += took
        held += took * engine.kv_held_tokens() / block_size
        seqs += took * len(running)
        for sample in result.samples:
            job, goal = running[sample.seq]
            if engine.length(sample.seq) == goal:
                engine.close(sample.seq)
                del running[sample.seq]
                latencies.append(now - job.at)
    return Played(
        blocks_per_request=held / seqs,
        concurrency=seqs / busy,
        latency_p95_s=quantiles(latencies, n=20)[18],
        ended_at=now,
        evicted=engine.kept().evicted_tokens,
    )
