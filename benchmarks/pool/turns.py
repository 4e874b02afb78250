"""Conversations that come back: what each tier has of them, and what main must be sent."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.pool.site import Bench, forget_pages, store
from workers.costs import MeasuredCosts
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.kv.prefix import CANONICAL_TOKENS
from workers.tiers.blocks import BlockForm, Tier
from workers.tiers.store import StoreConfig

CONVERSATIONS, TURNS = 24, 4
FIRST, MORE = 384, 160  # tokens of a first prompt, and what each later turn adds
ENGINE_TOKENS = 4096
MEMORY_BLOCKS, FILE_BLOCKS = 400, 4000
# So slow that loading pays on any machine, as it does for the default model: hits are what counts.
COSTS = MeasuredCosts(prefill_tokens_per_s=2000.0, decode_step_s=0.02)
LINE_BYTES_PER_S = 1.25e6
MODEL = SimulatedModel(name="bench", layers=4, kv_heads=2, head_size=16)


def run(folder: Path, *, seed: int = 1) -> dict[str, Any]:
    """Replay the conversations at one site, restart its store in the middle, and look at main."""
    form = BlockForm.of(MODEL.fingerprint)
    config = StoreConfig(
        memory_bytes=MEMORY_BLOCKS * form.nbytes,
        files=folder / "prefill",
        files_bytes=FILE_BLOCKS * form.nbytes,
        policy="s3-fifo",
    )
    asked = _asked(random.Random(seed))
    half = len(asked) // 2
    counts: Counter[str] = Counter()
    for number, part in enumerate((asked[:half], asked[half:])):  # in between it is started again
        with store(config) as (_, address):
            worker = Bench(_engine(), [address])
            cached = sum(worker.ask(prompt).cached for prompt, _ in part)
            counts.update(worker.storage.counts())
            counts[f"cached_{number}"] += cached
            worker.close()
        forget_pages(folder)
    prompts = sum(len(prompt) for prompt, _ in asked)
    loaded = {tier: counts[f"loaded_blocks_{tier}"] * CANONICAL_TOKENS for tier in Tier}
    cached = counts["cached_0"] + counts["cached_1"]
    return {
        "conversations": CONVERSATIONS,
        "turns": TURNS,
        "prompt_tokens": prompts,
        "ideal_hit": sum(known for _, known in asked) / prompts,
        "hit": cached / prompts,
        "hit_by_tier": {
            "engine": (cached - sum(loaded.values())) / prompts,
            **{tier.value: tokens / prompts for tier, tokens in loaded.items()},
        },
        "restart": {
            "ideal_hit": _ideal(asked[half:]),
            "hit": counts["cached_1"] / sum(len(prompt) for prompt, _ in asked[half:]),
        },
        "transfers": _transfers(folder, form.nbytes),
    }


def _asked(rng: random.Random) -> list[tuple[tuple[int, ...], int]]:
    """Prompts, each with what an infinite cache would have of it; conversations are mixed."""
    texts = [
        [rng.randrange(3, MODEL.vocab_size) for _ in range(FIRST + MORE * (TURNS - 1))]
        for _ in range(CONVERSATIONS)
    ]
    order = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    rng.shuffle(order)
    turns: Counter[int] = Counter()
    asked = []
    for number in order:
        turn = turns[number]
        turns[number] += 1
        known = (FIRST + MORE * (turn - 1)) // CANONICAL_TOKENS * CANONICAL_TOKENS if turn else 0
        asked.append((tuple(texts[number][: FIRST + MORE * turn]), known))
    return asked


def _ideal(asked: list[tuple[tuple[int, ...], int]]) -> float:
    return sum(known for _, known in asked) / sum(len(prompt) for prompt, _ in asked)


def _transfers(folder: Path, block_bytes: int) -> list[dict[str, int]]:
    """A conversation's turns at main, whose engine has forgotten them and whose site has not."""
    config = StoreConfig(memory_bytes=MEMORY_BLOCKS * block_bytes, files=folder / "main")
    text = tuple(random.Random(2).randrange(3, MODEL.vocab_size) for _ in range(FIRST + 3 * MORE))
    rows = []
    with store(config) as (_, address):
        for turn in range(TURNS):
            prompt = text[: FIRST + MORE * turn]
            engine = _engine()
            main = Bench(engine, [address], LINE_BYTES_PER_S)
            lacks = main.lacks(prompt)
            main.ask(prompt)  # main has it now, and its site keeps it
            main.close()
            token_bytes = engine.info.kv_bytes_per_token
            rows.append(
                {
                    "turn": turn + 1,
                    "prompt_tokens": len(prompt),
                    "sent_tokens": lacks,
                    "sent_bytes": lacks * token_bytes,
                    "everything_bytes": len(prompt) * token_bytes,
                }
            )
    return rows


def _engine() -> SimulatedEngine:
    return SimulatedEngine(MODEL, COSTS, kv_total_tokens=ENGINE_TOKENS)
