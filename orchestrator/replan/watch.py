"""When to plan anew: only a world that stays different from the one that was planned for."""

from collections.abc import Iterator

from orchestrator.plan.demand import RequestClass
from orchestrator.plan.problem import Problem
from orchestrator.replan.decide import Case
from orchestrator.replan.seen import Seen, as_told
from orchestrator.topology.units import show_rate
from workers.api.messages import MAIN, PREFILL
from workers.api.record import record

SLIGHT_S = 0.01  # a line's delay that differs by less changes no plan


@record
class Hysteresis:
    """What keeps roles from changing to and fro.

    A figure of the world counts as different when it is more than `margin` (a part) off, and the
    world when it is so for `dwell_s`. New roles must serve more by `gain` (a part).
    """

    margin: float
    dwell_s: float
    gain: float


@record
class Replanning:
    """A deployment whose roles follow: as it was planned, and how often one looks, in seconds."""

    base: Problem
    hysteresis: Hysteresis
    every_s: float


class Watch:
    """Compares what is seen with what was planned for: at first `base`, with who is there then.

    The driver looks from time to time, decides what is due, and says `planned`.
    """

    def __init__(self, base: Problem, hysteresis: Hysteresis) -> None:
        self._base = base
        self._hysteresis = hysteresis
        self._planned: Seen | None = None
        self._since: float | None = None  # the world is different

    def look(self, seen: Seen, now: float) -> Case | None:
        """What to decide now; None: nothing. With a site lost, or a role that nobody has, at once;
        else after the dwell time.
        """
        if not seen.workers:
            return None  # whoever comes up next has its roles
        if self._planned is None:
            self._planned = as_told(self._base, seen)
        urgent = tuple(_urgent(self._planned, seen))
        why = urgent or tuple(_differences(self._planned, seen, self._hysteresis.margin))
        if not why:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        if not urgent and now - self._since < self._hysteresis.dwell_s:
            return None
        gain = self._hysteresis.gain
        return Case(base=self._base, seen=seen, why=why, gain=gain, urgent=bool(urgent))

    def planned(self, case: Case) -> None:
        """A case was decided, whatever came of it: from now on its world is the usual one."""
        self._planned, self._since = case.seen, None


def _urgent(planned: Seen, seen: Seen) -> Iterator[str]:
    for site in sorted(planned.sites - seen.sites):
        yield f"site {site} is lost"
    for role in (PREFILL, MAIN):
        if not seen.has(role):
            yield f"nobody has the role {role.value}"


def _differences(planned: Seen, seen: Seen, margin: float) -> Iterator[str]:
    for name, line in seen.lines.items():
        told = planned.lines[name]
        if _differ(line.bytes_per_s, told.bytes_per_s, margin):
            now, before = show_rate(line.bytes_per_s), show_rate(told.bytes_per_s)
            yield f"line {name} gives {now}, planned for {before}"
        apart_s = abs(line.delay_s - told.delay_s)
        if apart_s > SLIGHT_S and _differ(line.delay_s, told.delay_s, margin):
            now, before = f"{line.delay_s * 1e3:.3g} ms", f"{told.delay_s * 1e3:.3g} ms"
            yield f"line {name} takes {now} one way, planned for {before}"
    there, before_there = seen.per_pool, planned.per_pool
    for pool in sorted(there.keys() | before_there.keys()):
        if _differ(there[pool], before_there[pool], margin):
            yield f"{pool} has {there[pool]} workers, planned for {before_there[pool]}"
    lately, expected = _means(seen.classes), _means(planned.classes)
    for what, tokens in lately.items():
        if _differ(tokens, expected[what], margin):
            yield f"{what} of {tokens:.0f} tokens, planned for {expected[what]:.0f}"


def _differ(now: float, before: float, margin: float) -> bool:
    """By more than a part, whichever is the larger."""
    low, high = sorted((now, before))
    return high > (1 + margin) * low


def _means(classes: tuple[RequestClass, ...]) -> dict[str, float]:
    """Tokens of a request; what of a prompt must be computed is at least one token."""
    total = sum(kind.rate for kind in classes)
    return {
        "prompts": sum(kind.rate * kind.prompt for kind in classes) / total,
        "new parts of prompts": sum(k.rate * max(1.0, k.prompt - k.hit) for k in classes) / total,
        "answers": sum(kind.rate * kind.output for kind in classes) / total,
    }
