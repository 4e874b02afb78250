"""A fact planted in a text: is it still there when its question comes after the pruning?"""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.triattention.choosing import CHOICES, Context
from benchmarks.triattention.reading import Reading, go_on, read
from workers.engines.torch.load import LoadedModel
from workers.kv.evict.triattention import Calibration

FACT = "\n# The secret pass key is {key}. Remember it: {key} is the secret pass key.\n"
QUESTION = "\n# What is the secret pass key? The secret pass key is"
KEYS = (71943, 20586, 94317, 36028, 58172)


def facts(
    loaded: LoadedModel,
    encode: Callable[[str], list[int]],
    filler: Sequence[int],
    context: int,
    depths: Sequence[float],
    shares: Sequence[float],
    calibration: Calibration,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """How many of the planted keys the model says, by policy and share; one is kept "in full"."""
    said: dict[tuple[str, float], int] = {}
    for depth, key in zip(depths, KEYS, strict=False):
        tell(f"a fact at {depth:.0%} of {context} tokens")
        fact = encode(FACT.format(key=key))
        at = int(depth * (context - len(fact)))
        rest = context - len(fact) - at
        ids = [*filler[:at], *fact, *filler[at : at + rest]]
        reading = read(loaded, f"key {key}", ids, [context])
        seen = Context(reading, context, calibration)
        answer = encode(f" {key}")
        asked = [*encode(QUESTION), *answer]
        said["full", 1.0] = said.get(("full", 1.0), 0) + _says(reading, context, asked, answer)
        for share in shares:
            for name, choose in CHOICES.items():
                kept = choose(seen, share)
                right = _says(reading, context, asked, answer, kept)
                said[name, share] = said.get((name, share), 0) + right
    return [
        {"context": context, "policy": name, "budget": share, "found": found, "of": len(depths)}
        for (name, share), found in said.items()
    ]


def _says(
    reading: Reading, context: int, asked: list[int], answer: list[int], kept: Any = None
) -> bool:
    """Whether the likeliest token is the answer's, one after another."""
    logits = go_on(reading, context, asked, kept)
    best = logits.argmax(-1).tolist()
    return best[-len(answer) - 1 : -1] == answer
