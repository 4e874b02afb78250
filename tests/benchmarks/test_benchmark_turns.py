"""Three turns of a conversation on a live service: only what main lacks crosses the line."""

from typing import Any

import pytest

from benchmarks.turns import FIRST_TOKENS, NEW_TOKENS, OUTPUT_TOKENS, TURNS, run
from orchestrator.topology.packaged import packaged_topology
from workers.kv.prefix import CANONICAL_TOKENS

pytestmark = pytest.mark.timeout(400)

TOKEN_BYTES = 23040  # of SmolLM2-135M's KV in bfloat16: 30 layers x K and V x 3 heads x 64 x 2


@pytest.fixture(scope="module")
def turns() -> list[dict[str, Any]]:
    result = run(packaged_topology("laptop-simulated"), route="direct", tell=print)
    rows: list[dict[str, Any]] = result["turns"]
    assert [row["turn"] for row in rows] == list(range(1, TURNS + 1))
    return rows


def test_each_turn_is_all_before_it_and_new_text(turns: list[dict[str, Any]]) -> None:
    more = OUTPUT_TOKENS["direct"] + NEW_TOKENS
    expected = [FIRST_TOKENS + turn * more for turn in range(TURNS)]
    assert [row["prompt_tokens"] for row in turns] == expected


def test_later_turns_send_what_is_new(turns: list[dict[str, Any]]) -> None:
    assert turns[0]["tokens_sent"] == FIRST_TOKENS
    for row in turns[1:]:
        # Main never computed the answer's last token, and has whole blocks only.
        known = (row["prompt_tokens"] - NEW_TOKENS - 1) // CANONICAL_TOKENS * CANONICAL_TOKENS
        assert row["tokens_sent"] == row["prompt_tokens"] - known
        assert row["kv_bytes_raw"] == row["tokens_sent"] * TOKEN_BYTES
        assert 0 < row["kv_bytes_wire"] < row["kv_bytes_raw"]


def test_another_salt_sends_everything(turns: list[dict[str, Any]]) -> None:
    for row in turns:
        assert row["all_kv_bytes_raw"] == row["prompt_tokens"] * TOKEN_BYTES
        assert row["kv_bytes_raw"] * row["all_kv_bytes_wire"] == pytest.approx(
            row["kv_bytes_wire"] * row["all_kv_bytes_raw"], rel=0.05
        )
