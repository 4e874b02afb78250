"""What a user feels when decode changes hands 4000 km apart, per route (`pdd bench handoff`)."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import httpx
from tokenizers import Tokenizer

from benchmarks.equality import Verdict, compare
from benchmarks.machine import machine
from benchmarks.service import Served, serving
from workers.engines.models import resolve_model

PROMPT_TOKENS = 600
OUTPUT_TOKENS = 128
SAMPLED_TEMPERATURE = 0.8
# The first requests after a start meet cold caches of code and memory; they are not counted.
WARM_UP = 1
START_S = 1800.0  # with vLLM, which is slow to start
ANSWER_S = 300.0  # without a byte for so long, a request hangs

ROUTES: dict[str, dict[str, str]] = {
    "local": {"pdd_route": "local"},
    "direct": {"pdd_route": "direct"},
    "relay_catch_up": {"pdd_route": "relay", "pdd_handoff": "catch-up"},
    "relay_one_shot": {"pdd_route": "relay", "pdd_handoff": "one-shot"},
    "relay_auto": {"pdd_route": "relay", "pdd_handoff": "auto"},
}
# What each request is measured by; medians are reported.
NUMBERS = (
    "ttft_s",
    "second_token_s",
    "e2e_s",
    "itl_p50_s",
    "max_gap_s",
    "handoff_gap_s",
    "kv_bytes_raw",
    "kv_bytes_wire",
    "transfer_s",
    "relay_tokens",
)


# What else is done with the service: before a route of ROUTES is tried with a prompt, and (None)
# after the last of them.
Aside = Callable[[Served, str | None], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One request as its client saw it; `times`: seconds to each piece of text."""

    times: tuple[float, ...]
    ids: tuple[int, ...]
    margins: tuple[float, ...] | None
    numbers: dict[str, float | None]
    told: dict[str, Any]


def run(
    topology: Path,
    *,
    gateway_site: str | None,
    requests: int,
    logs: Path | None,
    tell: Callable[[str], None],
    aside: Aside = lambda served, route: None,
) -> dict[str, Any]:
    """Bring the topology up and measure every route; medians over `requests` each."""
    measured_on = machine()
    options = [] if gateway_site is None else ["--gateway-site", gateway_site]
    options += [] if logs is None else ["--logs", str(logs)]
    with serving(topology, *options, timeout_s=START_S, tell=tell) as served:
        prompts = make_prompts(served.model, requests + WARM_UP)
        for number, prompt in enumerate(prompts[:WARM_UP]):
            for name, fields in ROUTES.items():
                tell(f"warm-up {name}")
                measure(served, prompt, {**fields, "cache_salt": f"warm {name} {number}"})
        greedy = _measure_all(served, prompts[WARM_UP:], ROUTES, {}, tell, aside)
        sampling = {"temperature": SAMPLED_TEMPERATURE, "seed": 1234}
        pair = {name: ROUTES[name] for name in ("local", "relay_auto")}
        sampled = _measure_all(served, prompts[WARM_UP:], pair, sampling, tell)
        site = served.status()["gateway"]["site"]
    return {
        "gateway_site": site,
        "requests": requests,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "machine": measured_on,
        "routes": {name: _row(runs, greedy["local"]) for name, runs in greedy.items()},
        "sampled": {
            "temperature": SAMPLED_TEMPERATURE,
            **_equality(sampled["relay_auto"], sampled["local"]),
        },
    }


def _measure_all(
    served: Served,
    prompts: Sequence[tuple[int, ...]],
    routes: dict[str, dict[str, str]],
    sampling: dict[str, Any],
    tell: Callable[[str], None],
    aside: Aside = lambda served, route: None,
) -> dict[str, list[Measured]]:
    """Every prompt on every route, in turn, so that a machine that drifts drifts for all."""
    runs: dict[str, list[Measured]] = {name: [] for name in routes}
    for number, prompt in enumerate(prompts):
        for name, fields in routes.items():
            aside(served, name)
            salt = f"{name} {number} {sorted(sampling)}"
            runs[name].append(measure(served, prompt, {**fields, **sampling, "cache_salt": salt}))
            kind = "sampled" if sampling else "greedy"
            tell(f"{kind} {name} {number + 1}/{len(prompts)}")
        aside(served, None)
    return runs


def make_prompts(model: str, count: int, *, tokens: int = PROMPT_TOKENS) -> list[tuple[int, ...]]:
    """Distinct prompts of exactly so many tokens of English prose about Python."""
    tokenizer = Tokenizer.from_file(str(resolve_model(model) / "tokenizer.json"))
    prompts = []
    for name in sorted(topics, key=lambda topic: (-len(topics[topic]), topic)):
        ids = tokenizer.encode(topics[name], add_special_tokens=False).ids
        if len(ids) >= tokens:
            prompts.append(tuple(ids[:tokens]))
        if len(prompts) == count:
            return prompts
    raise ValueError(f"only {len(prompts)} prompts of {tokens} tokens, {count} are needed")


def measure(served: Served, prompt: Sequence[int], fields: dict[str, Any]) -> Measured:
    """One streamed completion, timed at the client."""
    body = {
        "model": served.model,
        "prompt": list(prompt),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "pdd_timings": True,
        "pdd_token_ids": True,
        "pdd_margins": True,
        **fields,
    }
    times: list[float] = []
    told: dict[str, Any] | None = None
    began = time.monotonic()
    url = f"{served.url}/completions"
    with httpx.stream("POST", url, json=body, timeout=ANSWER_S, trust_env=False) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {answer.read().decode()[:300]}")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"the stream failed: {chunk['error']['message']}")
            if chunk["choices"] and chunk["choices"][0]["text"]:
                times.append(time.monotonic() - began)
            told = chunk.get("pdd", told)
    if told is None or len(times) < 2:
        raise RuntimeError("the stream ended without its account")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    numbers: dict[str, float | None] = {
        "ttft_s": times[0],
        "second_token_s": times[1],
        "e2e_s": times[-1],
        "itl_p50_s": statistics.median(gaps),
        "max_gap_s": max(gaps),
        "handoff_gap_s": told["handoff_gap_s"],
        "kv_bytes_raw": told["kv_bytes_raw"],
        "kv_bytes_wire": told["kv_bytes_wire"],
        "transfer_s": told["kv_transfer_s"],
        "relay_tokens": told["relay_tokens"],
    }
    margins = told.get("margins")
    return Measured(
        times=tuple(times),
        ids=tuple(told["token_ids"]),
        margins=None if margins is None else tuple(margins),
        numbers=numbers,
        told=told,
    )


def _row(runs: Sequence[Measured], local: Sequence[Measured]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    spread: dict[str, list[float]] = {}
    for key in NUMBERS:
        values = [v for run in runs if (v := run.numbers[key]) is not None]
        row[key] = statistics.median(values) if values else None
        if values:
            spread[key] = [min(values), max(values)]
    waits = [
        second - first
        for run in runs
        if (second := run.numbers["second_token_s"]) is not None
        and (first := run.numbers["ttft_s"]) is not None
    ]
    row["second_minus_first_s"] = statistics.median(waits)
    row["recoveries"] = sum(run.told["recoveries"] for run in runs)
    return {**row, **_equality(runs, local), "spread": spread}


def _equality(runs: Sequence[Measured], local: Sequence[Measured]) -> dict[str, Any]:
    verdicts = [
        compare(run.ids, reference.ids, reference.margins)
        for run, reference in zip(runs, local, strict=True)
    ]
    return {
        "tokens_equal": Verdict.DIFFERENT not in verdicts,
        "near_ties": verdicts.count(Verdict.NEAR_TIE),
    }
