"""vLLM's own runs, as LLMServingSim's authors measured them, against engines that are modelled.

The constants of a card come from one run and are used for others on that card, whose models enter
by their shape only. How fast cards talk to each other is what the authors say of their machine.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.validate.fit import Constants, errors, fitted, search
from benchmarks.validate.skipping import event_skipping
from benchmarks.validate.stepping import Ask, step_by_step
from benchmarks.validate.table import Row
from benchmarks.validate.vllm import Limits, Timing
from orchestrator.catalogue import (
    BYTES_PER_ACTIVATION,
    Chip,
    ModelFacts,
    kv_memory_bytes,
    load_catalogue,
    roofline,
)
from orchestrator.replay.memory import BLOCK
from workers.costs import RooflineCosts

FOLDER = Path("llmservingsim/bench")
# Where a search begins: of the catalogue's own, an engine's overhead is taken by its layers.
START = {"mfu": 0.7, "mbu": 0.9, "serial": 0.5, "layer_s": 40e-6}
NO_OVERHEAD = {"overhead_s": 1e-6}
# NCCL sends small messages with a flag beside every four bytes: 25 to 50 % of the bandwidth (Hu and
# others, arXiv 2507.04786), here the middle. All-reduces of two cards are taken to be vLLM's own,
# which do not go through it. Both were chosen when the runs that they are judged by were known.
NCCL_SMALL = 0.375
METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was asked of an engine and when its tokens came; seconds from the first request."""

    name: str
    chip: str
    model: str
    parallel: int  # chips of an engine
    ranks: int  # engines that keep in step
    limits: Limits
    asks: tuple[Ask, ...]
    measured: tuple[Timing, ...]


FIT_ON = ("RTXPRO6000/Llama-3.1-8B", "rtx-pro-6000", "llama-3.1-8b")
JUDGED = (
    ("RTXPRO6000/Qwen3-32B", "rtx-pro-6000", "qwen3-32b"),
    ("RTXPRO6000/Qwen3-30B-A3B-Instruct-2507", "rtx-pro-6000", "qwen3-30b-a3b"),
)
OTHER_CARD = ("RTX4090/Llama-3.1-8B", "rtx4090", "llama-3.1-8b")


def read_run(data: Path, folder: str, chip: str, model: str) -> Run:
    """A run's folder. The clocks of front end and engine are taken to differ by the least delay."""
    place = data / FOLDER / folder
    meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
    lines = (place / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = [json.loads(line) for line in lines]
    clock = min(r["queued_ts"] - r["arrival_time"] for r in requests)
    start = requests[0]["arrival_time"] + clock
    asks = tuple(
        Ask(r["arrival_time"] + clock - start, r["input_toks"], r["output_toks"]) for r in requests
    )
    engine = meta["engine_kwargs"]
    limits = Limits(
        budget=engine["max_num_batched_tokens"],
        slots=engine["max_num_seqs"],
        kv_blocks=meta.get("kv_cache", {}).get("num_gpu_blocks"),
    )
    run = Run(
        name=folder,
        chip=chip,
        model=model,
        parallel=engine["tensor_parallel_size"],
        ranks=engine["data_parallel_size"],
        limits=limits,
        asks=asks,
        measured=tuple(
            Timing(
                asked_at=ask.at,
                output=ask.output,
                first_at=r["first_token_ts"] - start,
                last_at=r["last_token_ts"] - start,
            )
            for ask, r in zip(asks, requests, strict=True)
        ),
    )
    return run if limits.kv_blocks else replace(run, limits=_with_kv(run))


def _with_kv(run: Run) -> Limits:
    """KV for the run that does not say how much it had; None where it cannot become short."""
    known = load_catalogue()
    chip, model = known.chips[run.chip], known.models[run.model]
    weights = model.weight_bytes if run.ranks == 1 else _own_weights(model, run.ranks)
    spare = model.weight_bytes - weights
    tokens = (kv_memory_bytes(chip, model, run.parallel) + spare) / model.kv_bytes_per_token.value
    largest = sorted(ask.prompt + ask.output + BLOCK for ask in run.asks)[-run.limits.slots :]
    most = sum(largest)
    return run.limits if tokens >= most else replace(run.limits, kv_blocks=int(tokens) // BLOCK)


def costs_of(run: Run, constants: Constants) -> RooflineCosts:
    known = load_catalogue()
    chip = fitted(known.chips[run.chip], NO_OVERHEAD | constants)
    model = known.models[run.model]
    costs = roofline(chip, model, run.parallel)
    return costs if run.ranks == 1 else spread(costs, chip, model, run.ranks)


def spread(costs: RooflineCosts, chip: Chip, model: ModelFacts, ranks: int) -> RooflineCosts:
    """One of `ranks` engines with a part of the experts each.

    Before the experts of a layer each gathers the tokens of the others and gives results back after
    them; their tokens touch its experts as its own do.
    """
    shape = model.architecture
    assert shape is not None
    assert chip.link_gb_s is not None
    each_way = chip.link_gb_s.value * 1e9 / 2 * chip.link_mbu.value
    sent = (ranks - 1) * shape.hidden * BYTES_PER_ACTIVATION
    token_s = 2 * shape.layers * sent / each_way
    experts = costs.weight_bytes - costs.shared_bytes
    return replace(
        costs,
        weight_bytes=costs.shared_bytes + experts / ranks,
        alike=ranks,
        overhead_s=costs.overhead_s + 2 * shape.layers * chip.link_latency_s.value,
        token_s=token_s,
        sequence_s=token_s / NCCL_SMALL,
    )


def _own_weights(model: ModelFacts, ranks: int) -> float:
    shape = model.architecture
    assert shape is not None
    shared = shape.shared_params * model.weight_bytes / model.params.value
    return shared + (model.weight_bytes - shared) / ranks


def modelled(run: Run, constants: Constants) -> list[Timing]:
    costs = costs_of(run, constants)
    if run.ranks > 1:
        return step_by_step(run.asks, costs, run.limits, run.ranks)
    return event_skipping(run.asks, costs, run.limits)


def fit(run: Run, judged_by: slice = slice(None)) -> Constants:
    """The card's constants that this run (or these of its requests) tells of."""

    def loss(constants: Constants) -> float:
        found = modelled(run, constants)[judged_by]
        ttft, tpot, e2e = (
            errors(_values(found, metric), _values(run.measured[judged_by], metric)).mean
            for metric in METRICS
        )
        return ttft / 3 + tpot + e2e  # the goals are 15, 5 and 5 %

    return search(START, loss)


def rows(run: Run, constants: Constants, fit_on: str, judged_by: slice = slice(None)) -> list[Row]:
    """Of each metric the error of every request, and that of their mean."""
    found, measured = modelled(run, constants)[judged_by], run.measured[judged_by]
    table = []
    for metric in METRICS:
        ours, theirs = _values(found, metric), _values(measured, metric)
        means = [sum(ours) / len(ours)], [sum(theirs) / len(theirs)]
        for name, of in (
            (f"{metric}, per request", errors(ours, theirs)),
            (f"{metric}, of the mean", replace(errors(*means), n=len(ours))),
        ):
            table.append(Row(name=f"vLLM, {run.name}", metric=name, fit_on=fit_on, errors=of))
    return table


def fast_vs_step_s(run: Run, constants: Constants) -> float:
    """The largest difference of any token's time between skipping events and single steps."""
    costs = costs_of(run, constants)
    fast = event_skipping(run.asks, costs, run.limits)
    slow = step_by_step(run.asks, costs, run.limits)
    return max(
        max(abs(a.first_at - b.first_at), abs(a.last_at - b.last_at))
        for a, b in zip(fast, slow, strict=True)
    )


def _values(timings: Sequence[Timing], metric: str) -> list[float]:
    return [getattr(timing, f"{metric}_s") for timing in timings]
