"""From which prompt length on a store pays: tiers as measured, prefill as the catalogue says.

By the choice alone, and by the first token of the simulated engine that makes it.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pool.modelled import ask
from benchmarks.pool.site import SECRET, forget_pages, store
from orchestrator.catalogue import load_catalogue, roofline
from workers.costs import Costs
from workers.kv.prefix import CANONICAL_TOKENS
from workers.tiers.blocks import KEY_BYTES, Block, Tier, checksum
from workers.tiers.choice import Place, Speeds, spared_s, worth_loading
from workers.tiers.client import StoreClient
from workers.tiers.store import StoreConfig

MEASURED_BYTES = 128 << 20
LENGTHS = tuple(1 << n for n in range(7, 18))
ASKED = tuple(1 << n for n in range(9, 16, 2))  # of the simulated engine
# From where loading always pays to where it seldom does: a model, a chip, and how many of them.
PAIRS = (
    ("smollm2-135m", "cpu", 1),
    ("llama-3.1-70b", "h20", 2),
    ("deepseek-v3", "h20", 8),
    ("qwen3-8b", "l40s", 1),
    ("qwen3-8b", "h100", 1),
)
PATIENCE_S = 60.0


def run(folder: Path, *, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """For each model on its chips: how fast its blocks come from each tier, and what then pays."""
    catalogue, rows = load_catalogue(), []
    for name, chip_name, parallel in PAIRS:
        model, chip = catalogue.models[name], catalogue.chips[chip_name]
        nbytes = round(model.kv_bytes_per_token.value) * CANONICAL_TOKENS
        speeds = _measured(folder / f"{name} {chip_name}", nbytes)
        costs = roofline(chip, model, parallel)
        row: dict[str, Any] = {"model": name, "chip": f"{parallel} x {chip_name}"}
        for tier in Tier:
            now, place = time.monotonic(), Place(0, tier)
            row[f"{tier}_bytes_per_s"] = speeds.bytes_per_s(place, now)
            row[f"{tier}_loads"] = [
                {"tokens": n, "loaded": CANONICAL_TOKENS * _worth(n, place, nbytes, speeds, costs)}
                for n in LENGTHS
            ]
            row[f"{tier}_from_tokens"] = _first(row[f"{tier}_loads"])
        row["ttft"] = [_ttft(n, nbytes, speeds, costs) for n in ASKED]
        told = ", ".join(f"{tier} {_told(row[f'{tier}_from_tokens'])}" for tier in Tier)
        tell(f"{name} on {row['chip']}: {told}")
        rows.append(row)
    return rows


def _ttft(tokens: int, nbytes: int, speeds: Speeds, costs: Costs) -> dict[str, Any]:
    """On the simulated engine, which takes what the choice says: see `modelled`."""
    now, answer_s = time.monotonic(), speeds.latency_s(0)
    row: dict[str, Any] = {"tokens": tokens}
    for tier in Tier:
        rate = speeds.bytes_per_s(Place(0, tier), now)
        asked = ask(costs, tokens, block_bytes=nbytes, bytes_per_s=rate, answer_s=answer_s)
        row[f"{tier}_s"], row[f"{tier}_tokens"] = asked
    alone = ask(costs, tokens, block_bytes=nbytes, bytes_per_s=None, answer_s=answer_s)
    return row | {"recompute_s": alone.seconds}


def _worth(tokens: int, place: Place, nbytes: int, speeds: Speeds, costs: Costs) -> int:
    blocks = tokens // CANONICAL_TOKENS
    return worth_loading(
        [place] * blocks,
        nbytes,
        speeds,
        time.monotonic(),
        lambda n: spared_s(costs, tokens + 1, 0, n * CANONICAL_TOKENS),
    )


def _first(loads: list[dict[str, int]]) -> int | None:
    """The shortest prompt that is loaded whole; None: none of them is."""
    return next((load["tokens"] for load in loads if load["loaded"] == load["tokens"]), None)


def _told(tokens: int | None) -> str:
    return "never" if tokens is None else f"from {tokens} tokens on"


def _measured(folder: Path, nbytes: int) -> Speeds:
    """How fast blocks of this size come from memory, and from files that the kernel has not."""
    count = max(4, MEASURED_BYTES // nbytes)
    rng = random.Random(nbytes)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(count)]
    data = rng.randbytes(nbytes)
    blocks = [(key, Block(data, checksum(key, data))) for key in keys]
    room = 2 * MEASURED_BYTES + 8 * nbytes
    config = StoreConfig(memory_bytes=room, files=folder, files_bytes=room, unwritten_bytes=room)
    speeds = Speeds()
    with store(config) as (_, address):
        client = StoreClient(address, SECRET)
        client.put("bench", blocks, time.monotonic() + PATIENCE_S)
        _load(client, keys, Tier.MEMORY, nbytes, speeds)
    forget_pages(folder)
    with store(config) as (_, address):
        _load(StoreClient(address, SECRET), keys, Tier.FILES, nbytes, speeds)
    return speeds


def _load(client: StoreClient, keys: list[bytes], tier: Tier, nbytes: int, speeds: Speeds) -> None:
    began = time.monotonic()
    assert client.find(keys, began + PATIENCE_S) == [tier] * len(keys)
    asked = time.monotonic()
    speeds.asked(0, asked - began)
    client.get(keys, asked + PATIENCE_S, _check(keys))
    now = time.monotonic()
    speeds.loaded(Place(0, tier), nbytes * len(keys), now - asked, now)
    client.close()


def _check(keys: list[bytes]) -> Callable[[int, Block, Tier], None]:
    """Looks at what came, as a worker does."""

    def take(number: int, block: Block, tier: Tier) -> None:
        assert checksum(keys[number], block.data) == block.crc

    return take
