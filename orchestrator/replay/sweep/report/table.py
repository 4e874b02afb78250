"""A sweep for a terminal."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from orchestrator.replay.sweep.grid import Point
from orchestrator.replay.sweep.report.breakeven import break_evens, text
from orchestrator.replay.sweep.swept import PER_COST, PER_S, Swept

MEASURES = {PER_COST: "requests in SLO per cost", PER_S: "goodput, requests/s"}


def tables(swept: Swept) -> Iterator[tuple[str, Table]]:
    """With their titles: every point's measure, then where along each axis the far policies pay."""
    yield MEASURES[swept.measure], _points(swept)
    if swept.far:
        for place, axis in enumerate(swept.axes):
            title = f"where along {axis.title}, {axis.ends}, it pays more than {swept.near}"
            yield title, _break_even(swept, place)


def _points(swept: Swept) -> Table:
    shown = _table()
    for axis in swept.axes:
        shown.add_column(Text(axis.title), justify="right")
    for policy in swept.policies:
        shown.add_column(Text(policy), justify="right", overflow="fold")
    for point in swept.points:
        values = zip(swept.axes, point, strict=True)
        shown.add_row(*(axis.text(value) for axis, value in values), *_measured(swept, point))
    shown.caption = Text("* the best")
    return shown


def _measured(swept: Swept, point: Point) -> Iterator[str]:
    """Every policy's measure at a point; those that look like the best one are marked."""
    values = [swept.value(point, policy, swept.measure) for policy in swept.policies]
    texts = [_figure(value) for value in values]
    most = _figure(max((value for value in values if value is not None), default=None))
    alike = len(set(texts)) == 1
    for shown in texts:
        yield f"[bold]{shown}[/] *" if shown == most and not alike else f"{shown}  "


def _break_even(swept: Swept, place: int) -> Table:
    axes = swept.axes
    shown = _table()
    found = [each for each in break_evens(swept) if each.axis == place]
    others = list(dict.fromkeys(each.others for each in found))
    for number, other in enumerate(axes):
        if number != place:
            shown.add_column(Text(other.title), justify="right")
    for policy in swept.far:
        shown.add_column(Text(policy), overflow="fold")
    texts = {(each.policy, each.others): text(each, axes) for each in found}
    for at in others:
        shown.add_row(
            *(axes[number].text(value) for number, value in at),
            *(texts[policy, at] for policy in swept.far),
        )
    return shown


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
