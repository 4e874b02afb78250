"""Policies side by side, for a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One figure of every policy, as people read it. `best`: which of `texts` are the best."""

    title: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]


def cells(summaries: Sequence[Summary]) -> list[Cells]:
    """The rows of a table with a column for each policy."""
    rows = []
    for title, better, value, text in _rows():
        found = [value(summary) for summary in summaries]
        texts = tuple(_NONE if v is None else text(v) for v in found)
        best = _best(found, better)
        # What reads the same is as good.
        marked = tuple(best is not None and shown == text(best) for shown in texts)
        rows.append(
            Cells(title=title, texts=texts, best=tuple(m and not all(marked) for m in marked))
        )
    return rows


def table(summaries: Sequence[Summary], goal: Goal) -> Table:
    """A column for each policy; the best of a row is bold and has a star."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    shown.add_column("")
    for summary in summaries:
        shown.add_column(Text(summary.policy), justify="right", overflow="fold")
    for row in cells(summaries):
        marked = zip(row.texts, row.best, strict=True)
        shown.add_row(row.title, *(f"[bold]{t}[/] *" if best else f"{t}  " for t, best in marked))
    lines = [f"* the best; SLO: {slo(goal)}"]
    for summary in summaries:
        if summary.failed:
            reasons = ", ".join(f"{count} {reason}" for reason, count in summary.failed.items())
            lines.append(f"{summary.policy} failed: {reasons}")
    shown.caption = Text("\n".join(lines))
    return shown


def slo(goal: Goal) -> str:
    told = f"TTFT {seconds(goal.ttft_s)}, TPOT {seconds(goal.tpot_s)}"
    if goal.second_token_s is not None:
        told += f", second token {seconds(goal.second_token_s)}"
    return told


def seconds(value: float) -> str:
    """Three digits, in the unit that fits: "1.23 s", "45.6 ms"."""
    if value >= 0.9995:
        return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-4 else "0"


def _rows() -> list[Row]:
    rows: list[Row] = [
        ("requests finished", _MORE, lambda s: s.finished, _count),
        ("failed", _LESS, lambda s: s.requests - s.finished, _count),
    ]
    for name, title in _TITLES.items():
        for which in ("p50", "p90", "p99"):
            label = f"{title} {which.upper()}" if which == "p50" else f"  {which.upper()}"
            rows.append((label, _LESS, _spread(name, which), seconds))
    return [
        *rows,
        ("within SLO", _MORE, lambda s: s.within_slo, _percent),
        ("goodput, requests/s", _MORE, lambda s: s.goodput_per_s, _figure),
        ("output tokens/s", _MORE, lambda s: s.output_tokens_per_s, _figure),
        ("KV over lines, GB", _LESS, lambda s: s.wire_gb, _figure),
        ("prompt found at prefill", _NEITHER, lambda s: s.prefill_hit, _percent),
        ("  in stores' memory", _NEITHER, lambda s: s.from_memory or None, _percent),
        ("  in stores' files", _NEITHER, lambda s: s.from_files or None, _percent),
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
