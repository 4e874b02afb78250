"""A real vLLM, if there is one here: `make test-vllm` makes an environment for it."""

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import httpx
import pytest

from workers.api.messages import Sampling
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.vllm.engine import VllmEngine
from workers.engines.vllm.inside.wanted import Wanted

NEAR_TIE = 0.05  # logits

# What a vLLM on this machine's cores needs beside the connector: one thread, no compiling.
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def vllm_python() -> str:
    """The python of an environment with vLLM; the test is skipped where there is none."""
    own = Path(__file__).parents[4] / "build" / "vllm" / "bin" / "python"
    python = os.environ.get("PDD_VLLM_PYTHON", str(own))
    look = [
        python,
        "-c",
        "import importlib.util, sys; sys.exit(not importlib.util.find_spec('vllm'))",
    ]
    try:
        found = subprocess.run(look, check=False, timeout=60).returncode == 0
    except OSError:
        found = False
    if not found:
        pytest.skip("no vLLM here: make test-vllm installs one, or name its python PDD_VLLM_PYTHON")
    return python


@dataclass
class Heard:
    """What a sequence sampled, and by how much each token won."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)


def run(engine: VllmEngine, goals: dict[SeqId, int], limit_s: float = 300.0) -> dict[SeqId, Heard]:
    """Until all sequences have reached their goals, and nothing of their runs is left."""
    heard = {seq: Heard() for seq in goals}
    for seq, goal in goals.items():
        engine.set_goal(seq, goal)
    end = monotonic() + limit_s
    while (step := engine.begin()) is not None:
        result = engine.finish(step)
        assert not result.lost
        for sample in result.samples:
            heard[sample.seq].tokens.append(sample.token)
            heard[sample.seq].margins.append(sample.margin)
            if engine.length(sample.seq) >= goals[sample.seq]:
                engine.set_goal(sample.seq, None)
        assert monotonic() < end, "vLLM is too slow, or hangs"
    return heard


def client_of(engine: VllmEngine) -> httpx.Client:
    """To ask an engine's vLLM beside it."""
    door = engine._server._door
    transport = httpx.HTTPTransport(uds=door.uds)
    return httpx.Client(base_url=door.url, headers=door.headers, transport=transport, timeout=600.0)


def uninterrupted(http: httpx.Client, prompts: Sequence[list[int]], count: int, sampling: Sampling):
    """What vLLM itself says to each prompt, all asked at once, without the connector."""

    def ask(prompt: list[int]) -> list[int]:
        body = {
            "model": "pdd",
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": "reference",
        }
        if sampling != Sampling():
            wanted = Wanted(sampling=sampling, prompt_len=len(prompt), pool="", row=0, run=0)
            body["vllm_xargs"] = {"pdd": wanted.text}
        answer = http.post("/v1/completions", json=body).raise_for_status()
        return answer.json()["choices"][0]["token_ids"]

    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(ask, prompts))


def check_equal(heard: Heard, expected: list[int]) -> int:
    """Equal, or first different at a near tie (1)."""
    assert len(heard.tokens) == len(expected)
    for token, margin, other in zip(heard.tokens, heard.margins, expected, strict=True):
        if token != other:
            assert margin is not None
            assert margin <= NEAR_TIE, f"{token}, not {other}, by {margin}"
            return 1
    return 0


def metric(http: httpx.Client, name: str) -> float:
    text = http.get("/metrics").text
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    assert values, f"vLLM has no metric {name}"
    return sum(map(float, values))


def spec(tokens: list[int], prompt_len: int, new: int, sampling: Sampling) -> SequenceSpec:
    return SequenceSpec(
        tokens=tokens, prompt_len=prompt_len, reserve=prompt_len + new, sampling=sampling
    )
