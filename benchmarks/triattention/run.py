"""`pdd bench triattention`: how well the pruner foresees, and what pruning costs and gains."""

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import tokenizers
import torch

from benchmarks import texts as passages
from benchmarks.machine import machine
from benchmarks.triattention.choosing import CHOICES, Context, freed_ratio
from benchmarks.triattention.fact import facts
from benchmarks.triattention.reading import CHUNK, Reading, go_on, read
from benchmarks.triattention.series import pearson, quartiles
from benchmarks.triattention.speed import steps
from transport.memory import keep_freed_memory
from workers.engines.models import DEFAULT_MODEL, resolve_model
from workers.engines.torch.calibrate import find_calibration
from workers.engines.torch.load import LoadedModel, load_model

SHARES = (0.5, 0.25, 0.1)
PAPER = {
    "pearson": "0.6-0.9 on Qwen3, Qwen2.5 and Llama 3",
    "kv_ratio": 10.7,
    "speedup": 2.5,
    "perplexity": "1.8 % more at half of 16K tokens of general text",
}
OURS = ("triattention", "triattention/shares")
BEATEN = ("random", "sink-recent")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. `contexts` are whole chunks; `rest`: tokens that follow each."""

    contexts: tuple[int, ...]
    rest: int
    shares: tuple[float, ...]
    batches: tuple[int, ...]
    repeats: int
    facts: Mapping[int, tuple[float, ...]]  # how deep in which context


FULL = Extent(
    (2048, 4096, 7424),
    128,
    SHARES,
    (1, 8),
    3,
    {2048: (0.1, 0.3, 0.5, 0.7, 0.9), 7424: (0.1, 0.5, 0.9)},
)
SHORT = Extent((512,), 64, (0.5,), (2,), 1, {})


def run(*, short: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Raises ModelError where there is no model or no calibration of it."""
    keep_freed_memory()
    torch.set_num_threads(1)
    about, extent = machine(), SHORT if short else FULL
    loaded = load_model(resolve_model(DEFAULT_MODEL))
    calibration = find_calibration(loaded, None)
    tokenizer = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_file))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    read_in = {name: encode(text) for name, text in _texts(short).items()}
    speeds = _speeds(loaded, extent, tell)
    rows: list[dict[str, Any]] = []
    by_key, by_distance = [], []
    for name, ids in read_in.items():
        contexts = _contexts(extent, len(ids))
        tell(f"reading {name}, {max(contexts)} tokens")
        reading = read(loaded, name, ids, contexts)
        for context in contexts:
            tell(f"{name}: what follows {context} tokens")
            seen = Context(reading, context, calibration)
            rest = list(ids[context : context + extent.rest])
            rows += _quality(reading, seen, rest, extent.shares)
            found = pearson(reading, context, rest, calibration)
            by_key.append(found[0])
            by_distance.append(found[1])
    result: dict[str, Any] = {
        "pearson": quartiles(np.concatenate(by_key)),
        "pearson_by_distance": quartiles(np.concatenate(by_distance)),
        "budgets": _means(rows, speeds),
        "texts": rows,
        "speed": speeds,
    }
    result["kl_ahead_of"] = _ahead(result["budgets"])
    result["facts"] = [
        row
        for context, depths in extent.facts.items()
        for row in facts(
            loaded, encode, read_in["code"], context, depths, extent.shares, calibration, tell
        )
    ]
    return result | {
        "paper": PAPER,
        "model": loaded.name,
        "calibration_tokens": calibration.tokens,
        "machine": about,
    }


def _texts(short: bool) -> dict[str, str]:
    """Source and documentation of the standard library, a licence, Chinese.

    None of it is what `pdd calibrate` reads. Installed packages carry no Chinese but tables and
    scraps; so it is our own manual, or, where there is no checkout, a story that is shorter than
    most contexts.
    """
    code = inspect.getsource(argparse)
    if short:
        return {"code": code}
    names = sorted(topics)
    licence = Path(np.__file__).parents[1] / f"numpy-{np.__version__}.dist-info"
    manual = Path(passages.__file__).parents[1] / "README.zh-CN.md"
    return {
        "code": code,
        "docs": "\n\n".join(topics[name] for name in names[len(names) // 2 :]),
        "licence": next(licence.rglob("LICENSE.txt")).read_text(encoding="utf-8"),
        "chinese": manual.read_text(encoding="utf-8")
        if manual.exists()
        else passages.texts()["chinese"],
    }


def _contexts(extent: Extent, tokens: int) -> list[int]:
    """Those that the text is long enough for; of a short one as many chunks as it has."""
    fits = [context for context in extent.contexts if context + extent.rest <= tokens]
    return fits or [(tokens - extent.rest) // CHUNK * CHUNK]


def _quality(
    reading: Reading, seen: Context, rest: Sequence[int], shares: Sequence[float]
) -> list[dict[str, Any]]:
    """What the model says of `rest` over what each policy keeps, against all of the context."""
    context = seen.tokens
    full = go_on(reading, context, rest, None)
    following = torch.tensor(rest[1:])[:, None]

    def perplexity(said: torch.Tensor) -> float:
        return float((-said[:-1].gather(1, following).mean()).exp())

    rows = []
    for share in shares:
        for name, choose in CHOICES.items():
            kept = choose(seen, share)
            said = go_on(reading, context, rest, kept)
            rows.append(
                {
                    "text": reading.name,
                    "context": context,
                    "budget": share,
                    "policy": name,
                    "kl": float((full.exp() * (full - said)).sum(-1).mean()),
                    "top1": float((full.argmax(-1) == said.argmax(-1)).float().mean()),
                    "perplexity": perplexity(said),
                    "perplexity_full": perplexity(full),
                    "kv_ratio": freed_ratio(kept, context),
                }
            )
    return rows


def _means(
    rows: Sequence[dict[str, Any]], speeds: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Over the texts, by context, budget and policy; a text too short for 2K counts there."""
    shortest = min(s["context"] for s in speeds)
    groups: dict[tuple[int, float, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (max(shortest, row["context"]), row["budget"], row["policy"])
        groups.setdefault(key, []).append(row)
    batch = max(s["batch"] for s in speeds)
    speedup = {(s["context"], s["budget"]): s["speedup"] for s in speeds if s["batch"] == batch}
    figures = ("kl", "top1", "kv_ratio", "perplexity", "perplexity_full")
    return [
        {"context": context, "budget": budget, "policy": policy}
        | {name: float(np.mean([row[name] for row in group])) for name in figures}
        | {"speedup": None if "-head" in policy else speedup[context, budget]}
        for (context, budget, policy), group in groups.items()
    ]


def _ahead(budgets: Sequence[dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """Whether TriAttention's KL is the smaller one at every context and budget."""
    kl = {(row["context"], row["budget"], row["policy"]): row["kl"] for row in budgets}
    places = {key[:2] for key in kl}
    return {
        ours: {
            other: all(kl[*place, ours] < kl[*place, other] for place in places) for other in BEATEN
        }
        for ours in OURS
    }


def _speeds(
    loaded: LoadedModel, extent: Extent, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Decode at each context, alone and in a batch; `speedup` is against the faster full one."""
    found = []
    for context in extent.contexts:
        for batch in extent.batches:
            tell(f"decode, batch {batch} at {context} tokens")
            took = steps(loaded, batch, context, extent.shares, extent.repeats)
            best = min(took["full"], took["contiguous"])
            found += [
                {
                    "context": context,
                    "batch": batch,
                    "budget": share,
                    "tokens_per_s": batch / took[str(share)],
                    "full_tokens_per_s": batch / best,
                    "paged_full_tokens_per_s": batch / took["full"],
                    "speedup": best / took[str(share)],
                }
                for share in extent.shares
            ]
    return found
