"""Time to the first token when a prompt is in memory, in files, or nowhere."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pool.site import Asked, Bench, forget_pages, store
from workers.engines.models import DEFAULT_MODEL, resolve_model
from workers.engines.torch.load import build_engine, load_model
from workers.tiers.store import StoreConfig

LENGTHS = (128, 256, 512, 1024, 2048)
STORE_BYTES = 1 << 30


def run(folder: Path, *, longest: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """On the default model; each figure with an engine of its own, which has seen nothing."""
    model = load_model(resolve_model(DEFAULT_MODEL))
    lengths = [n for n in LENGTHS if n <= longest]
    rng = random.Random(5)
    prompts = {n: tuple(rng.randrange(100, 40_000) for _ in range(n)) for n in lengths}

    def ask(tokens: int, stores: list[str]) -> Asked:
        engine = build_engine(model, kv_tokens=tokens + 64, chunk_tokens=128)
        worker = Bench(engine, stores)
        try:
            return worker.ask(prompts[tokens])
        finally:
            worker.close()

    rows: dict[int, dict[str, Any]] = {n: {"tokens": n} for n in lengths}
    config = StoreConfig(memory_bytes=STORE_BYTES, files=folder / "ttft", files_bytes=STORE_BYTES)
    with store(config) as (_, address):
        for n in lengths:
            rows[n]["recompute_s"] = ask(n, [address]).seconds  # and saves it
            rows[n]["dram_s"], rows[n]["dram_tokens"] = ask(n, [address])
            tell(f"{n} tokens: {rows[n]['recompute_s']:.2f} s, {rows[n]['dram_s']:.3f} from memory")
    for n in lengths:
        forget_pages(folder)
        with store(config) as (_, address):  # its memory is empty
            rows[n]["nvme_s"], rows[n]["nvme_tokens"] = ask(n, [address])
        tell(f"{n} tokens: {rows[n]['nvme_s']:.3f} s from files")
    return {"model": DEFAULT_MODEL, "ttft": list(rows.values())}
