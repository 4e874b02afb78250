"""Sweeps whose figures are made by a formula."""

from collections.abc import Callable
from itertools import product

from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.figures import Figures
from orchestrator.replay.sweep.swept import Swept

SPEED = Axis(key="link.bandwidth", name=None, unit="Gbps", values=(5.0, 20.0, 80.0), log=True)
DISTANCE = Axis(
    key="link.distance_km", name=None, unit="km", values=(0.0, 4000.0, 8000.0), log=False
)
PRICE = Axis(key="chip.price", name="h100", unit="/h", values=(1.0, 2.0), log=False)


def grid(
    gain: Callable[..., float],
    *,
    axes: tuple[Axis, ...] = (SPEED, DISTANCE),
    prices: bool = True,
    title: str = "Two sites",
    far: str = "relay",
) -> Swept:
    """`local` gives 100 everywhere, the far policy so much more."""

    def figures(value: float) -> Figures:
        return {
            "goodput_per_s": value,
            "goodput_per_cost": value if prices else None,
            "ttft_s.p90": 1 / value,
        }

    found = {}
    for point in product(*(axis.values for axis in axes)):
        found[point, "local"] = figures(100.0)
        found[point, far] = figures(100.0 + gain(*point))
    return Swept(
        title=title,
        facts=(("scenario", "two"),),
        axes=axes,
        policies=("local", far),
        near="local",
        figures=found,
    )
