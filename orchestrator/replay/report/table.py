"""Policies side by side, for a terminal."""

from collections.abc import Callable, Sequence

from rich.table import Table

from orchestrator.replay.report.metrics import Goal, Spread, Summary

_LESS, _MORE, _NEITHER = -1, 1, 0  # what is better
_NONE = "-"
_TITLES = {
    "ttft_s": "TTFT",
    "second_token_s": "second token",
    "exposed_stall_s": "exposed stall",
    "tpot_s": "TPOT",
    "end_to_end_s": "end to end",
}

Row = tuple[str, int, Callable[[Summary], float | None], Callable[[float], str]]


def table(summaries: Sequence[Summary], goal: Goal) -> Table:
    """A column for each policy; the best of a row is bold."""
    shown = Table(title=None, show_lines=False, pad_edge=False)
    shown.add_column("")
    for summary in summaries:
        shown.add_column(summary.policy, justify="right", overflow="fold")
    for title, better, value, text in _rows(goal):
        found = [value(summary) for summary in summaries]
        best = _best(found, better)
        shown.add_row(
            title,
            *(
                _NONE if v is None else f"[bold]{text(v)}[/bold]" if v == best else text(v)
                for v in found
            ),
        )
    for summary in summaries:
        for reason, count in summary.failed.items():
            shown.caption = f"{shown.caption or ''}{summary.policy}: {count} {reason}  "
    return shown


def seconds(value: float) -> str:
    """Three digits, in the unit that fits: "1.23 s", "45.6 ms"."""
    if value >= 0.9995:
        return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-4 else "0"


def _rows(goal: Goal) -> list[Row]:
    rows: list[Row] = [
        ("requests finished", _MORE, lambda s: s.finished, _count),
        ("failed", _LESS, lambda s: s.requests - s.finished, _count),
    ]
    for name, title in _TITLES.items():
        for which in ("p50", "p90", "p99"):
            label = f"{title} {which.upper()}" if which == "p50" else f"  {which.upper()}"
            rows.append((label, _LESS, _spread(name, which), seconds))
    slo = f"TTFT {seconds(goal.ttft_s)}, TPOT {seconds(goal.tpot_s)}"
    return [
        *rows,
        (f"within {slo}", _MORE, lambda s: s.within_slo, _percent),
        ("goodput, requests/s", _MORE, lambda s: s.goodput_per_s, _figure),
        ("output tokens/s", _MORE, lambda s: s.output_tokens_per_s, _figure),
        ("KV over lines, GB", _LESS, lambda s: s.wire_gb, _figure),
        ("prompt found at prefill", _NEITHER, lambda s: s.prefill_hit, _percent),
        ("prompt found at main", _NEITHER, lambda s: s.main_hit, _percent),
        ("tokens by relays", _NEITHER, lambda s: s.relay_tokens, _count),
        ("cost", _LESS, lambda s: s.cost, _figure),
        ("cost per million tokens", _LESS, lambda s: s.cost_per_million_tokens, _figure),
        ("requests in SLO per cost", _MORE, lambda s: s.goodput_per_cost, _figure),
    ]


def _spread(name: str, which: str) -> Callable[[Summary], float | None]:
    def value(summary: Summary) -> float | None:
        found: Spread = summary.metrics[name]
        result: float | None = getattr(found, which)
        return result

    return value


def _best(found: Sequence[float | None], better: int) -> float | None:
    known = [value for value in found if value is not None]
    if not better or len(known) < 2 or min(known) == max(known):
        return None
    return max(known) if better == _MORE else min(known)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
