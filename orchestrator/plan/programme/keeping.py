"""How many requests keep the goal in a given state."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from orchestrator.plan.problem import Burst
from orchestrator.plan.programme.paths import Net, Path
from orchestrator.plan.programme.queues import chance_within, normal_below
from orchestrator.plan.programme.settle import FULL, Flows, next_state
from orchestrator.plan.programme.terms import State, Terms, terms_of

CROWDED = 0.6  # memory that is used less than that keeps nobody waiting


def keeping(net: Net, flows: Flows, state: State) -> float:
    """The part of all requests that keep the goal; 0 where something is overloaded."""
    if not sum(flows.going) or _overloaded(state):
        return 0.0
    burst = net.problem.burst
    calm = _kept(net, flows, state, [0.0] * len(net.groups))
    if burst is None:
        return calm
    rush, waits_s = _rush(net, flows, state, burst)
    return (1 - burst.share) * calm + burst.share * _kept(net, flows, rush, waits_s)


def crowded_lines(state: State, burst: Burst) -> State:
    """The same with what the burst leaves waiting on every line."""
    waits_s = {
        ends: wait_s + burst.wait_s(state.line_load[ends])
        for ends, wait_s in state.line_wait_s.items()
    }
    return replace(state, line_wait_s=waits_s)


def decode_chance(net: Net, path: Path, terms: Terms, state: State) -> float:
    """That a request's time per token stays within the goal."""
    decoded = net.problem.classes[path.kind].output - 1
    if decoded <= 0:
        return 1.0
    alone = terms.main_tokens if path.relay is None else decoded - terms.relay_tokens
    seconds = terms.stall_s + alone * state.step_s[path.main]
    variance = alone * alone * state.variance[path.main]
    if path.relay is not None:
        seconds += terms.relay_tokens * state.step_s[path.relay]
        variance += terms.relay_tokens**2 * state.variance[path.relay]
    return normal_below(net.problem.goal.tpot_s * decoded, seconds, sqrt(variance))


def _overloaded(state: State) -> bool:
    """Whether something is asked for more than it can ever give."""
    return any(part >= 1 for part in (*state.load, *state.line_load.values(), *state.held))


def _rush(net: Net, flows: Flows, state: State, burst: Burst) -> tuple[State, list[float]]:
    """The state in a burst, and what waits before each group by then.

    A burst is short: batches follow it, but queues only grow by what comes too fast, so their own
    waits stay those of calm times.
    """
    rush = next_state(net, flows.times(burst.factor), crowded_lines(state, burst))
    waits_s = [burst.wait_s(load / burst.factor) for load in rush.load]
    calm_lines = replace(rush, line_load=state.line_load, line_wait_s=state.line_wait_s)
    rush = replace(
        crowded_lines(calm_lines, burst),
        load=[min(load, before) for load, before in zip(rush.load, state.load, strict=True)],
        held=[min(held, FULL) for held in rush.held],
    )
    return rush, waits_s


def _kept(net: Net, flows: Flows, state: State, waits_s: Sequence[float]) -> float:
    """The part that keeps the goal; `waits_s`: what waits before each group already."""
    entering: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        if rate:
            entering.setdefault((kind, net.groups[place].pool.site), []).append((rate, place))
    queues = _Queues(net, flows, state, waits_s)
    kept = 0.0
    for path, rate in zip(net.paths, flows.going, strict=True):
        if not rate:
            continue
        terms = terms_of(net, path, state)
        chance = decode_chance(net, path, terms, state)
        if chance > 0:
            chance *= queues.first_chance(path, terms, entering[path.kind, path.site])
        kept += rate * chance
    return kept / sum(flows.going)


class _Queues:
    """What a request waits for before its first token."""

    def __init__(self, net: Net, flows: Flows, state: State, waits_s: Sequence[float]) -> None:
        self._net, self._state, self._waits_s = net, state, waits_s
        self._service = {
            place: net.service(place, mix, state.cached[place])
            for place, mix in net.mixes(flows.entering).items()
        }

    def first_chance(self, path: Path, terms: Terms, entering: list[tuple[float, int]]) -> float:
        """That the first token (and the second, where the goal has one) is in time.

        `entering`: requests/s by the places of the groups that prefill for this path.
        """
        net, state, goal = self._net, self._state, self._net.problem.goal
        limit_s = min(goal.ttft_s, goal.second_s - terms.stall_s)
        limit_s -= 2 * net.ground.home_s(path.site) + self._waits_s[path.main]
        if path.relay is not None:
            limit_s -= self._waits_s[path.relay]
        chance = sum(rate * self._prefill_chance(path, place, limit_s) for rate, place in entering)
        chance /= sum(rate for rate, _ in entering)
        slack_s = limit_s - state.prefill_s[path.kind, path.site]
        chance *= self._room_chance(path.main, slack_s, path.kind)
        if path.relay is not None:
            chance *= self._room_chance(path.relay, slack_s, path.kind)
        return chance

    def _prefill_chance(self, path: Path, place: int, limit_s: float) -> float:
        """That a prefill group has the first token in so many seconds."""
        net, state = self._net, self._state
        alone_s = net.prefill_s(path.kind, place, state.cached[place]) + self._waits_s[place]
        slack_s = limit_s - alone_s
        service = self._service[place]
        variation = (net.problem.gap_cv2 + service.cv2) / 2
        count, load = net.groups[place].count, state.load[place]
        within = chance_within(slack_s, count, load, service.mean_s, variation)
        return within * self._room_chance(place, slack_s, path.kind)

    def _room_chance(self, place: int, slack_s: float, kind: int) -> float:
        """That memory and a slot are free in time: they are the servers, a leg the customer."""
        held = self._state.held[place]
        if held < CROWDED:
            return 1.0
        group, request = self._net.groups[place], self._net.problem.classes[kind]
        legs = min(group.pool.slots, group.shape.kv_tokens / (request.prompt + request.output))
        servers = max(1, int(group.count * legs))
        # How long a leg holds its memory is taken to vary as an exponential time does.
        hold_s, variation = self._state.hold_s[place], (1 + self._net.problem.gap_cv2) / 2
        return chance_within(slack_s, servers, held, hold_s, variation)
