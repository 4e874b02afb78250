"""How far a group can be loaded before too many of its requests miss the goal."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from orchestrator.plan.programme.keeping import decode_chance
from orchestrator.plan.programme.paths import Net, Path
from orchestrator.plan.programme.queues import chance_within, elasticity, step_variance
from orchestrator.plan.programme.settle import Flows
from orchestrator.plan.programme.terms import State, Terms
from workers.api.messages import PREFILL

MOST_LOAD = 0.98  # of anything with a queue before it
HALVINGS = 12  # until a cap is known to a thousandth


class Caps(NamedTuple):
    """By place: seconds of prefill per second of a worker, and batches of decode."""

    load: dict[int, float]
    batch: dict[int, float]


class Way(NamedTuple):
    """A way to take a path, and what a request takes on it. `number`: the path's."""

    number: int
    path: Path
    terms: Terms


def caps_of(net: Net, state: State, ways: Sequence[Way], before: Flows | None) -> Caps:
    """How far each group may be loaded for the wanted share of its requests to keep the goal.

    With the mix of classes that went there `before`, or else the workload's.
    """
    load: dict[int, float] = {}
    batch: dict[int, float] = {}
    for place, group in enumerate(net.groups):
        if group.role is PREFILL:
            load[place] = _most_load(net, state, place, before)
        else:
            batch[place] = _most_batch(net, state, place, ways, before)
    return Caps(load, batch)


def _most_load(net: Net, state: State, place: int, before: Flows | None) -> float:
    mix = _mix(net, place, before)
    if not mix:
        return 0.0
    goal, group, burst = net.problem.goal, net.groups[place], net.problem.burst
    cached = state.cached[place]
    mean_s, cv2 = net.service(place, mix, cached)
    variation = (net.problem.gap_cv2 + cv2) / 2
    limit_s = min(goal.ttft_s, goal.second_s) - 2 * net.ground.home_s(group.pool.site)
    slack = [(rate, limit_s - net.prefill_s(kind, place, cached)) for rate, kind in mix]
    total = sum(rate for rate, _ in slack)

    def within(slack_s: float, load: float) -> float:
        return chance_within(slack_s, group.count, load, mean_s, variation)

    def kept(load: float) -> float:
        found = 0.0
        for rate, slack_s in slack:
            chance = within(slack_s, load)
            if burst is not None:
                rushed = within(slack_s - burst.wait_s(load), load)
                chance += burst.share * (rushed - chance)
            found += rate * chance
        return found / total

    # Those that are late even when nobody waits are the programme's to place, not the queue's.
    return _highest(kept, goal.share * kept(0.0), MOST_LOAD)


def _mix(net: Net, place: int, before: Flows | None) -> list[tuple[float, int]]:
    """(requests/s, class) of a prefill group; of the workload where nothing came before."""
    usual = [(net.problem.shares[kind], kind) for kind, where in net.entries if where == place]
    if before is None:
        return [part for part in usual if part[0]] or usual
    mix = [
        (rate, kind)
        for (kind, where), rate in zip(net.entries, before.entering, strict=True)
        if where == place and rate
    ]
    return mix or usual


def _most_batch(
    net: Net, state: State, place: int, ways: Sequence[Way], before: Flows | None
) -> float:
    mix = _decode_mix(net, place, ways, before)
    if not mix:
        return 0.0
    goal, slots = net.problem.goal, net.groups[place].pool.slots
    most = net.decoding[place].batch_within(state.context[place], goal.tpot_s, slots)
    if not most:
        return 0.0
    total = sum(rate for rate, _, _ in mix)

    def kept(batch: float) -> float:
        tried = _with_batch(net, state, place, max(1.0, batch))
        within = (rate * decode_chance(net, path, term, tried) for rate, path, term in mix)
        return sum(within) / total

    return _highest(kept, goal.share * kept(1.0), float(most), least=1.0)


def _decode_mix(
    net: Net, place: int, ways: Sequence[Way], before: Flows | None
) -> list[tuple[float, Path, Terms]]:
    """(requests/s, path, its terms) through a group; of the workload where nothing came before.

    The ways of one path count alike: which of them a request goes is not known beforehand.
    """
    through = [way for way in ways if place in (way.path.main, way.path.relay)]
    shares = net.problem.shares
    mix = [(before.going[n], path, terms) for n, path, terms in through] if before else []
    if not any(rate for rate, _, _ in mix):
        mix = [(shares[path.kind], path, terms) for _, path, terms in through]
    return [part for part in mix if part[0]]


def _with_batch(net: Net, state: State, place: int, batch: float) -> State:
    """The state in which one group decodes a batch.

    Unlike `settle`'s, its variance is of contexts that are alike, and not averaged over a life.
    """
    decoding, context = net.decoding[place], state.context[place]
    step_s = decoding.step_s(batch, context)
    added_s = decoding.step_s(batch + 1, context) - step_s
    elastic = elasticity(batch, step_s, added_s)
    tried = replace(state, step_s=state.step_s[:], variance=state.variance[:])
    tried.step_s[place] = step_s
    tried.variance[place] = step_variance(batch, added_s, elastic, net.groups[place].count)
    return tried


def _highest(
    kept: Callable[[float], float], wanted: float, most: float, *, least: float = 0.0
) -> float:
    """The largest value up to `most` at which as much is kept as wanted."""
    if kept(most) >= wanted:
        return most
    low, high = least, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if kept(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low
