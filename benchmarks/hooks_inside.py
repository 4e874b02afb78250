"""Measures the connector's hooks inside vLLM; run by the python of an environment that has it.

Arguments: the model's directory, a folder for pools, what --kv-transfer-config says, where to
write the result.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from workers.engines.vllm.inside.connector import PddConnector
from workers.engines.vllm.pool import PoolShape, SharedPool

STEPS = 60  # decode steps that are measured, of each kind
HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "request_finished",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "clear_connector_metadata",
    "get_block_ids_with_load_errors",
)
BATCHES = (1, 8)
PROMPT_TOKENS = 64
BLOCK_SIZE = 16


class Clock:
    """CPU seconds inside the hooks, and how many steps they belong to."""

    def __init__(self) -> None:
        self.hooks_s = 0.0
        self.steps = 0

    def around(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(hook)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = thread_time()
            try:
                return hook(*args, **kwargs)
            finally:
                self.hooks_s += thread_time() - began
                self.steps += name == "build_connector_meta"

        return timed


def measure(model: Path, folder: Path, transfer: dict[str, Any]) -> dict[str, Any]:
    """Plain requests, and a worker's runs, of which all KV is saved; rows by kind and batch."""
    clock = Clock()
    for name in HOOKS:
        setattr(PddConnector, name, clock.around(name, getattr(PddConnector, name)))
    llm = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=max(BATCHES),
        disable_log_stats=True,
        kv_transfer_config=KVTransferConfig(**transfer),
    )
    config = json.loads((model / "config.json").read_bytes())
    pool = SharedPool.create(folder / "pool", shape(config))
    prompts = np.random.default_rng(0).integers(100, 9000, (max(BATCHES), PROMPT_TOKENS)).tolist()

    def generate(batch: int, runs: bool, tokens: int) -> None:
        params = []
        for row in range(batch):
            extra = {"kv_transfer_params": {"pdd": run_of(pool, row)}} if runs else None
            params.append(
                SamplingParams(
                    temperature=0.0, max_tokens=tokens, ignore_eos=True, extra_args=extra
                )
            )
        inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts[:batch]]
        llm.generate(inputs, params, use_tqdm=False)

    rows = {}
    for batch in BATCHES:
        for kind, runs in (("idle", False), ("saving", True)):
            generate(batch, runs, 4)  # what is slow only once
            clock.hooks_s, clock.steps = 0.0, 0
            wall, cpu = perf_counter(), process_time()
            generate(batch, runs, STEPS)
            wall, cpu = perf_counter() - wall, process_time() - cpu
            steps = clock.steps
            rows[f"{kind}_{batch}"] = {
                "hooks_us_per_step": 1e6 * clock.hooks_s / steps,
                "step_cpu_us": 1e6 * cpu / steps,
                "step_us": 1e6 * wall / steps,
                "share": clock.hooks_s / cpu,
            }
    return {"steps": STEPS, "prompt_tokens": PROMPT_TOKENS, "rows": rows}


def shape(config: dict[str, Any]) -> PoolShape:
    heads = config["num_attention_heads"]
    blocks = -(-(PROMPT_TOKENS + STEPS) // BLOCK_SIZE)
    return PoolShape(
        layers=config["num_hidden_layers"],
        slots=max(BATCHES) * blocks * BLOCK_SIZE,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        kv_dtype="float32",
        block_size=BLOCK_SIZE,
        rows=max(BATCHES),
        ranks=1,
    )


def run_of(pool: SharedPool, row: int) -> dict[str, Any]:
    """A worker's run with a row and blocks of its own."""
    pool.claims[row] += np.uint64(1)
    pool.saved[row] = 0
    blocks = pool.shape.slots // BLOCK_SIZE // pool.shape.rows
    return {
        "pool": pool.path.name,
        "row": row,
        "run": int(pool.claims[row]),
        "have": 0,
        "blocks": list(range(row * blocks, (row + 1) * blocks)),
        "block_size": BLOCK_SIZE,
    }


if __name__ == "__main__":
    model, folder, transfer, result = sys.argv[1:5]
    measured = measure(Path(model), Path(folder), json.loads(transfer))
    Path(result).write_text(json.dumps(measured))
    os._exit(0)  # vLLM's own end takes seconds
