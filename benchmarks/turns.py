"""What a conversation's turns cost on the wire (`pdd bench turns`).

Each turn's prompt is everything before it and new text. KV blocks are named by their content, so
main should be sent only what it neither received nor computed itself; next to each turn the same
prompt goes under a cache salt of its own, which nothing may be found under: that is everything.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.handoff import ROUTES, Measured, make_prompts, measure
from benchmarks.machine import machine
from benchmarks.service import Served, serving
from workers.kv.prefix import CANONICAL_TOKENS

TURNS = 3
FIRST_TOKENS = 320  # of the first turn's prompt
NEW_TOKENS = 96  # that each later turn adds
# Main must have landed before the end, or nobody hears what was sent: relays run meanwhile.
OUTPUT_TOKENS = {"direct": 64, "relay": 400}
FRESH_OUTPUT_TOKENS = 4


def run(topology: Path, *, route: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Bring the topology up and hold one conversation over `route`, "direct" or "relay"."""
    measured_on = machine()
    with serving(topology, tell=tell) as served:
        turns = _converse(served, route, tell)
    return {
        "model": served.model,
        "route": route,
        "output_tokens": OUTPUT_TOKENS[route],
        "block_tokens": CANONICAL_TOKENS,
        "machine": measured_on,
        "turns": turns,
    }


def _converse(served: Served, route: str, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    texts = make_prompts(served.model, TURNS)
    conversation = {
        **ROUTES["direct" if route == "direct" else "relay_auto"],
        "max_tokens": OUTPUT_TOKENS[route],
        "cache_salt": "the conversation",
    }
    rows: list[dict[str, Any]] = []
    prompt: tuple[int, ...] = ()
    for number, text in enumerate(texts, start=1):
        new = text[: NEW_TOKENS if prompt else FIRST_TOKENS]
        prompt += new
        tell(f"turn {number}/{TURNS}: {len(prompt)} tokens")
        said = measure(served, prompt, conversation)
        fresh = {
            **ROUTES["direct"],
            "max_tokens": FRESH_OUTPUT_TOKENS,
            "cache_salt": f"nobody's {number}",
        }
        tell(f"turn {number}/{TURNS}: all of it under another salt")
        rows.append(_row(number, prompt, new, said, measure(served, prompt, fresh)))
        prompt += said.ids
    return rows


def _row(
    number: int, prompt: Sequence[int], new: Sequence[int], said: Measured, fresh: Measured
) -> dict[str, Any]:
    """One turn; `all_*` is the same prompt under a salt of its own."""
    row: dict[str, Any] = {
        "turn": number,
        "prompt_tokens": len(prompt),
        "new_tokens": len(new),
        "tokens_sent": _tokens_sent(len(prompt), said, fresh),
    }
    for name, of in (("", said), ("all_", fresh)):
        for key in ("kv_bytes_raw", "kv_bytes_wire", "transfer_s", "second_token_s"):
            row[f"{name}{key}"] = of.numbers[key]
    return row


def _tokens_sent(prompt_tokens: int, said: Measured, fresh: Measured) -> int | None:
    """None: the KV had not landed when the request ended, and nobody told what was sent."""
    some, everything = said.numbers["kv_bytes_raw"], fresh.numbers["kv_bytes_raw"]
    if not some or not everything:
        return None
    return round(prompt_tokens * some / everything)
