"""Simulated engines, sequences, and running them to their end."""

from dataclasses import replace

from workers.api.messages import Sampling
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel

MODEL = SimulatedModel(layers=3, kv_heads=2, head_size=6)
COSTS = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02, context_s=1e-5)
PROMPT = tuple(range(100, 150))
A, B = SeqId("a", 1), SeqId("b", 1)


def engine(model: SimulatedModel = MODEL, **changes: int) -> SimulatedEngine:
    sizes = {"kv_total_tokens": 1024, "block_size": 16, "chunk_tokens": 32, **changes}
    return SimulatedEngine(model, COSTS, **sizes)


def spec(tokens: tuple[int, ...] = PROMPT, **changes: object) -> SequenceSpec:
    whole = SequenceSpec(
        tokens=tokens, prompt_len=len(tokens), reserve=len(tokens) + 40, sampling=Sampling()
    )
    return replace(whole, **changes)


def run(engine: SimulatedEngine) -> dict[SeqId, list[int]]:
    said: dict[SeqId, list[int]] = {}
    while (step := engine.begin()) is not None:
        for sample in engine.finish(step).samples:
            said.setdefault(sample.seq, []).append(sample.token)
    return said


def say(engine: SimulatedEngine, count: int, seq: SeqId = A, **changes: object) -> list[int]:
    engine.open(seq, spec(**changes), reuse=False)  # type: ignore[arg-type]
    engine.set_goal(seq, engine.length(seq) + count)
    return run(engine)[seq]


def computed(tokens: tuple[int, ...] = PROMPT, model: SimulatedModel = MODEL) -> SimulatedEngine:
    """An engine that has computed `tokens` as sequence A."""
    source = engine(model)
    source.open(A, spec(tokens), reuse=False)
    source.set_goal(A, len(tokens))
    run(source)
    return source


TEXT = say(engine(), 20)
