"""What was to be reached, what was, and which parameter stands in the way or made it so."""

from typing import Any

# PDD, arXiv 2609.13161.
REDUCTION = 0.46
GAIN = 0.375
TRANSFER = {
    "skewed": {"p50_s": 0.248, "p99_s": 18.9},
    "narrow": {"p50_s": 1.21, "p99_s": 25.5},
}
TTFT_P50_S = 4.2
NEAR = 0.35  # of the paper's


def account(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a figure: {"figure", "found", "wanted", "reached", "why"}; None: not measured."""
    rows = [
        _row(
            "p90_second_token_reduction",
            figures["p90_second_token_reduction"],
            REDUCTION,
            _second_token(figures["prefills"]),
        ),
        _row(
            "p90_ttft_reduction",
            figures["p90_ttft_reduction"],
            REDUCTION,
            "who emits the first token: here it is prefill, before any KV has crossed the line, so "
            "a relay cannot make it come sooner; in the paper it is decode. The second token is "
            "the one to compare",
        ),
        _row("bcr_gain", figures["bcr_gain"], GAIN, _worth(figures)),
    ]
    for name, parts in TRANSFER.items():
        for part, paper_s in parts.items():
            rows.append(_transfer(name, part, figures["transfer"][name][part], paper_s))
    rows.append(_ttft(figures["prefills"]))
    return rows


def _row(figure: str, found: float | None, wanted: float, why: str) -> dict[str, Any]:
    return {
        "figure": figure,
        "found": found,
        "wanted": wanted,
        "reached": found is not None and found >= wanted,
        "why": why,
    }


def _transfer(name: str, part: str, found: float | None, paper_s: float) -> dict[str, Any]:
    error = None if found is None else found / paper_s - 1
    return {
        "figure": f"transfer {name} {part}",
        "found": found,
        "wanted": paper_s,
        "reached": error is not None and abs(error) <= NEAR,
        "why": "a calibration: load, burst, connections and the rate of each were fitted to the "
        "paper's four figures"
        + ("" if error is None else f"; {error:+.0%} of the paper's, {NEAR:.0%} allowed"),
    }


def _second_token(rows: list[dict[str, Any]]) -> str:
    found = "; ".join(
        f"{row['instances']}: {_percent(row['p90_second_token_reduction'])}" for row in rows
    )
    return (
        "prefill instances decide it: the fewer, the more of the wait is for prefill, which no "
        f"relay shortens. Reduction by instances: {found}"
    )


def _worth(figures: dict[str, Any]) -> str:
    curve = "; ".join(
        f"{row['h200_over_h100']:.1f}: {_percent(row['bcr_gain'])}" for row in figures["curve"]
    )
    return (
        "the price of an H200 over an H100's decides it, and the model's weights and the outputs' "
        f"length, which the paper does not give. Gain by price ratio: {curve}"
    )


def _ttft(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = "; ".join(
        f"{row['instances']} give {_seconds(row['direct_ttft_p50_s'])} and a transfer P99 of "
        f"{_seconds(row['transfer_p99_s'])}"
        for row in rows
    )
    p50 = rows[0]["direct_ttft_p50_s"]
    return {
        "figure": "ttft p50_s",
        "found": p50,
        "wanted": TTFT_P50_S,
        "reached": p50 is not None and abs(p50 / TTFT_P50_S - 1) <= NEAR,
        "why": "prefill instances: with so few that prefill queues, the burst reaches the line "
        f"spread out and its P99 falls; the paper's own number is not known. Instances: {found}",
    }


def _percent(part: float | None) -> str:
    return "not measured" if part is None else f"{part:.0%}"


def _seconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds:.2f} s"
