"""Tables of single steps: Splitwise's measurements, and DistServe's fits of its own.

Splitwise timed batches of equal prompts: what the first token took and each later one on average.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.validate.fit import Constants, errors, fitted, search
from benchmarks.validate.table import Row
from orchestrator.catalogue import Chip, ModelFacts, load_catalogue, roofline
from workers.costs import Chunk, RooflineCosts

SPLITWISE = Path("splitwise/perf_model.csv")
DISTSERVE = Path("distserve/profiler-a100-80g.distserve.json")
CHIPS = {"a100-80gb": "a100", "h100-80gb": "h100", "h100-80gb-pcap": "h100"}
MODELS = {
    "llama2-70b": "llama-2-70b",
    "bloom-176b": "bloom-176b",
    "facebook/opt-13b": "opt-13b",
    "facebook/opt-66b": "opt-66b",
}
START = {"mfu": 0.5, "mbu": 0.7, "serial": 0.25, "overhead_s": 0.01, "link_mbu": 0.5}
# Every other size of each kind, from the smallest on.
FIT_PROMPTS = FIT_OUTPUTS = (128, 512, 2048, 8192)
FIT_BATCHES = (1, 4, 16, 64)
HALF = "prompts of 128, 512, 2048, 8192, batches of 1, 4, 16, 64, outputs of 128, 512, 2048, 8192"
PROBED_PROMPTS, PROBED_BATCHES, PROBED_CONTEXT = (128, 512, 1024, 2048), (1, 8, 32, 64), 512


class Worker(NamedTuple):
    """What was measured: a model on so many cards."""

    model: str
    card: str
    parallel: int


class Size(NamedTuple):
    """So many prompts of so many tokens, and the tokens that follow."""

    prompt: int
    batch: int
    output: int

    @property
    def fitted(self) -> bool:
        return (
            self.prompt in FIT_PROMPTS and self.batch in FIT_BATCHES and self.output in FIT_OUTPUTS
        )


class Measured(NamedTuple):
    """Seconds of one measurement."""

    size: Size
    prompt_s: float
    token_s: float


Measurements = dict[Worker, list[Measured]]


def read_splitwise(data: Path) -> Measurements:
    found: Measurements = defaultdict(list)
    with (data / SPLITWISE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            worker = Worker(row["model"], row["hardware"], int(row["tensor_parallel"]))
            size = Size(int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"]))
            times = float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3
            found[worker].append(Measured(size, *times))
    return dict(found)


def prompt_s(costs: RooflineCosts, size: Size) -> float:
    return costs.step_s([Chunk(size.prompt, 0)] * size.batch, 0, 0)


def token_s(costs: RooflineCosts, size: Size) -> float:
    """Of the step in the middle of its output."""
    context = size.batch * (size.prompt + size.output // 2)
    return costs.step_s([], size.batch, context)


def splitwise(data: Path) -> tuple[list[Row], dict[str, Constants]]:
    """With constants for each worker, and with one set for each card, which are given as well."""
    measured = read_splitwise(data)
    each = {worker: _fit({worker: found}) for worker, found in measured.items()}
    cards = {
        card: _fit({worker: found for worker, found in measured.items() if worker.card == card})
        for card in sorted({worker.card for worker in measured})
    }
    by_card = {worker: cards[worker.card] for worker in measured}
    return [
        *_judge("Splitwise, constants of each worker", measured, each),
        *_judge("Splitwise, constants of each card", measured, by_card),
    ], cards


def distserve(data: Path, constants: Constants) -> list[Row]:
    """Its fitted curves of an A100, by what Splitwise says of that card. A sanity check only."""
    text = (data / DISTSERVE).read_text(encoding="utf-8")
    ours: dict[str, list[float]] = {"prompt": [], "token": []}
    theirs: dict[str, list[float]] = {"prompt": [], "token": []}
    for model, by_parallel in json.loads(text).items():
        if model not in MODELS:
            continue
        for parallel, curve in by_parallel.items():
            costs = costs_of(Worker(model, "a100-80gb", int(parallel)), constants)
            a, b, c = curve["prefill"]
            for n in PROBED_PROMPTS:
                ours["prompt"].append(costs.step_s([Chunk(n, 0)], 0, 0))
                theirs["prompt"].append((a + b * n + c * n * n) / 1e3)
            for batch in PROBED_BATCHES:
                large = batch >= curve["decoding_large_small_bs_threshold"]
                a, b, c = curve["decoding_largebs" if large else "decoding_smallbs"]
                tokens = batch * PROBED_CONTEXT
                ours["token"].append(costs.step_s([], batch, tokens))
                theirs["token"].append((a + b * tokens + c * batch) / 1e3)
    return [
        Row(
            name="DistServe's fits of an A100, sanity only",
            metric=metric,
            fit_on="Splitwise, a100-80gb",
            errors=errors(ours[metric], theirs[metric]),
        )
        for metric in ours
    ]


def costs_of(worker: Worker, constants: Constants) -> RooflineCosts:
    chip, model = _known(worker)
    return roofline(fitted(chip, constants), model, worker.parallel)


def _known(worker: Worker) -> tuple[Chip, ModelFacts]:
    known = load_catalogue()
    return known.chips[CHIPS[worker.card]], known.models[MODELS[worker.model]]


def _fit(measured: Measurements) -> Constants:
    """On the half of the sizes."""

    def loss(constants: Constants) -> float:
        found = list(_pairs(measured, dict.fromkeys(measured, constants), fitted_sizes=True))
        return sum(errors([pair[0] for pair in p], [pair[1] for pair in p]).mean for p in found)

    return search(START, loss)


def _judge(name: str, measured: Measurements, constants: dict[Worker, Constants]) -> Iterator[Row]:
    for metric, pairs in zip(
        ("prompt", "token"), _pairs(measured, constants, fitted_sizes=False), strict=True
    ):
        of = errors([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        yield Row(name=name, metric=metric, fit_on=HALF, errors=of)


def _pairs(
    measured: Measurements, constants: dict[Worker, Constants], *, fitted_sizes: bool
) -> tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]:
    """Ours and theirs: of prompts, and of tokens."""
    prompts, tokens = [], []
    for worker, found in measured.items():
        costs = costs_of(worker, constants[worker])
        ours: dict[Size, tuple[float, float]] = {}
        for size, measured_prompt_s, measured_token_s in found:
            if size.fitted is not fitted_sizes:
                continue
            if size not in ours:
                ours[size] = prompt_s(costs, size), token_s(costs, size)
            prompts.append((ours[size][0], measured_prompt_s))
            tokens.append((ours[size][1], measured_token_s))
    return prompts, tokens
