"""What flows make of an assignment: waits, batches, hits; and how many requests keep the goal."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from orchestrator.plan.problem import Burst
from orchestrator.plan.programme.paths import Ends, Net, Path, State, Terms
from orchestrator.plan.programme.queues import (
    averaged,
    chance_within,
    mean_wait_s,
    normal_below,
)
from workers.api.messages import PREFILL
from workers.api.record import record

SWEEPS = 6
SETTLED = 2e-3
FULL = 0.98  # more load than that waits as long: what is overloaded is judged by its load
LINE_FULL = 0.998  # where relays take what a line cannot, it is as full as can be
BRIEF_S = 1e-3  # a wait that nobody notices
CLOSE = 0.02  # a wait is known well enough
CROWDED = 0.6  # memory that is used less than that keeps nobody waiting


@record
class Flows:
    """Requests/s: `entering` by the net's entries, `going` by its paths."""

    entering: tuple[float, ...]
    going: tuple[float, ...]

    def times(self, factor: float) -> "Flows":
        return Flows(
            entering=tuple(rate * factor for rate in self.entering),
            going=tuple(rate * factor for rate in self.going),
        )


Going = tuple[Path, float, Terms]  # a path that is used, by how many requests/s


def settle(net: Net, flows: Flows, start: State) -> State:
    """The state that the flows lead to, from another one near it."""
    state = start
    for _ in range(SWEEPS):
        new = sweep(net, flows, state)
        moved = max(
            (abs(a - b) / max(a, b) for a, b in zip(new.batch, state.batch, strict=True) if a + b),
            default=0.0,
        )
        state = new
        if moved < SETTLED:
            break
    return state


def sweep(net: Net, flows: Flows, state: State) -> State:
    """One round: every wait, batch and hit from the last round's."""
    state = replace(
        state,
        load=state.load[:],
        batch=state.batch[:],
        context=state.context[:],
        step_s=state.step_s[:],
        variance=state.variance[:],
        wait_s=state.wait_s[:],
        held=[0.0] * len(net.groups),
        hold_s=[0.0] * len(net.groups),
        found=state.found[:],
        line_load=dict(state.line_load),
        line_wait_s=dict(state.line_wait_s),
        prefill_s=dict(state.prefill_s),
    )
    _prefill(net, flows, state)
    going = [
        (path, rate, net.terms(path, state))
        for path, rate in zip(net.paths, flows.going, strict=True)
        if rate
    ]
    _lines(net, state, going)
    _decode(net, state, going)
    _memory(net, flows, state, going)
    return state


def service(net: Net, weights: list[tuple[float, int, int]], found: float) -> tuple[float, float]:
    """Mean seconds of prefill for classes (rate, class, group), and the squared cv of them."""
    total = first = second = 0.0
    for rate, kind, place in weights:
        busy_s = net.busy_s(kind, place, found)
        total += rate
        first += rate * busy_s
        second += rate * busy_s * busy_s
    if not total:
        return 0.0, 0.0
    mean = first / total
    return mean, second / total / (mean * mean) - 1


def _prefill(net: Net, flows: Flows, state: State) -> None:
    by_group: dict[int, list[tuple[float, int, int]]] = {}
    by_site: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        by_group.setdefault(place, []).append((rate, kind, place))
        alone_s = net.prefill_s(kind, place, state.found[place])
        by_site.setdefault((kind, net.groups[place].pool.site), []).append((rate, alone_s))
    for place, weights in by_group.items():
        mean_s, cv2 = service(net, weights, state.found[place])
        rate = sum(weight for weight, _, _ in weights)
        count = net.groups[place].count
        state.load[place] = load = rate * mean_s / count
        variation = (net.problem.gap_cv2 + cv2) / 2
        state.wait_s[place] = mean_wait_s(count, min(load, FULL), mean_s, variation)
    for site, parts in by_site.items():
        total = sum(rate for rate, _ in parts)
        if total > 0:
            state.prefill_s[site] = sum(rate * alone_s for rate, alone_s in parts) / total


def _lines(net: Net, state: State, going: list[Going]) -> None:
    """M/G/1: the mean residual of what is sent, over what is left of the line.

    A relayed answer that ends before its KV had a turn sends none: the longer the wait, the smaller
    the load. Where they agree is found by halving.
    """
    over: dict[Ends, list[Going]] = {ends: [] for ends in net.lines}
    for part in going:
        if part[0].line is not None:
            over[part[0].line].append(part)
    for ends, parts in over.items():
        high = _line_wait_s(net, state, ends, parts)
        if high > BRIEF_S and any(path.relay is not None for path, _, _ in parts):
            low = 0.0
            while high - low > CLOSE * high:
                state.line_wait_s[ends] = middle = (low + high) / 2
                parts = [(path, rate, net.terms(path, state)) for path, rate, _ in parts]
                if _line_wait_s(net, state, ends, parts) > middle:
                    low = middle
                else:
                    high = middle
        state.line_wait_s[ends] = high


def _line_wait_s(net: Net, state: State, ends: Ends, parts: list[Going]) -> float:
    """The mean wait when so much is sent; notes the load."""
    speed = net.rates[ends]
    first = sum(rate * term.wire_bytes for _, rate, term in parts)
    second = sum(rate * term.wire_bytes**2 for _, rate, term in parts)
    load = state.line_load[ends] = first / speed
    residual_s = second / speed**2 / 2
    return residual_s / (1 - min(load, LINE_FULL)) * (1 + net.problem.gap_cv2) / 2


def _decode(net: Net, state: State, going: list[Going]) -> None:
    """Batches from the tokens that are wanted of each group."""
    tokens = [0.0] * len(net.groups)
    contexts = [0.0] * len(net.groups)
    squares = [0.0] * len(net.groups)
    lost_s = [0.0] * len(net.groups)  # seconds per second that go to extends

    def add(place: int, rate: float, count: float, context: float) -> None:
        tokens[place] += rate * count
        contexts[place] += rate * count * context
        squares[place] += rate * count * context * context

    for path, rate, term in going:
        what = net.problem.classes[path.kind]
        add(path.main, rate, term.main_tokens, what.prompt + what.output - term.main_tokens / 2)
        lost_s[path.main] += rate * term.extend_s
        if path.relay is not None:
            add(path.relay, rate, term.relay_tokens, what.prompt + term.relay_tokens / 2)
    for place, group in enumerate(net.groups):
        if group.role is PREFILL or not tokens[place]:
            continue
        context = state.context[place] = contexts[place] / tokens[place]
        left = max(0.05, 1 - lost_s[place] / group.count)
        each = tokens[place] / group.count / left
        most = float(group.pool.slots)
        decoding = net.decoding[place]
        batch = decoding.batch_at(context, each, most)
        state.load[place] = each / (most / decoding.step_s(most, context))
        state.batch[place] = batch
        step = state.step_s[place] = decoding.step_s(batch, context) / left
        added_s = decoding.step_s(batch + 1, context) / left - step
        elastic = min(0.99, batch * added_s / step)
        spread = squares[place] / tokens[place] / (context * context)  # 1 + cv2 of contexts
        # The number in service of a queue that slows down as it grows, and its mean over a life.
        variance = batch * added_s * added_s * spread / (1 - elastic) / group.count
        state.variance[place] = averaged(variance, 1 - elastic)


def _memory(net: Net, flows: Flows, state: State, going: list[Going]) -> None:
    """Parts of memory and slots that legs hold, from their start on; what is left are caches."""
    problem = net.problem
    used = [0.0] * len(net.groups)
    slots = [0.0] * len(net.groups)
    lives = [0.0] * len(net.groups)  # as `slots`, and what only holds memory
    rates = [0.0] * len(net.groups)
    kv_s: dict[tuple[int, str], list[tuple[float, float]]] = {}
    waits = _site_waits(net, flows, state)

    def add(place: int, rate: float, seconds: float, tokens: float) -> None:
        used[place] += rate * seconds * tokens
        slots[place] += rate * seconds
        lives[place] += rate * seconds
        rates[place] += rate

    for path, rate, term in going:
        what = problem.classes[path.kind]
        before_s = waits.get(path.site, 0.0) + state.prefill_s[path.kind, path.site]
        kv_s.setdefault((path.kind, path.site), []).append((rate, max(term.kv_s, term.hold_s)))
        life_s = before_s + max(term.kv_s, term.stall_s)
        life_s += term.main_tokens * state.step_s[path.main]
        add(path.main, rate, life_s, what.prompt + what.output)
        if path.relay is not None:
            reserve = what.prompt + min(what.output, 2 * max(16.0, term.relay_tokens))
            add(path.relay, rate, before_s + term.hold_s, reserve)
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        site = net.groups[place].pool.site
        after = kv_s.get((kind, site), [])
        total = sum(weight for weight, _ in after)
        after_s = sum(weight * s for weight, s in after) / total if total else 0.0
        seconds = state.wait_s[place] + state.prefill_s[kind, site] + after_s
        used[place] += rate * seconds * problem.classes[kind].prompt
        lives[place] += rate * seconds
        rates[place] += rate
    for place, group in enumerate(net.groups):
        room = group.count * group.shape.kv_tokens
        by_slots = slots[place] / (group.count * group.pool.slots)
        state.held[place] = max(used[place] / room, by_slots)
        state.hold_s[place] = lives[place] / rates[place] if rates[place] else 0.0
        if problem.reused_tokens:
            # The router takes the worker with the longest hit, so each keeps its own part.
            free = group.count * group.shape.kv_tokens * max(0.0, 1 - used[place] / room)
            found = min(1.0, free / problem.reused_tokens)
            state.found[place] = (state.found[place] + found) / 2


def _site_waits(net: Net, flows: Flows, state: State) -> dict[str, float]:
    totals: dict[str, list[float]] = {}
    for (_, place), rate in zip(net.entries, flows.entering, strict=True):
        total = totals.setdefault(net.groups[place].pool.site, [0.0, 0.0])
        total[0] += rate
        total[1] += rate * state.wait_s[place] if rate else 0.0
    return {site: wait / rate if rate else 0.0 for site, (rate, wait) in totals.items()}


# ------------------------------------------------------------------------- keeping the goal


def keeping(net: Net, flows: Flows, state: State) -> float:
    """The part of all requests that keep the goal; 0 where something is overloaded."""
    if not sum(flows.going) or overloaded(net, state):
        return 0.0
    burst = net.problem.burst
    calm = _kept(net, flows, state, [0.0] * len(net.groups))
    if burst is None:
        return calm
    rush = sweep(net, flows.times(burst.factor), crowded_lines(state, burst))
    waits_s = [burst.wait_s(load / burst.factor) for load in rush.load]
    rush = replace(
        crowded_lines(
            replace(rush, line_load=state.line_load, line_wait_s=state.line_wait_s), burst
        ),
        load=[min(load, before) for load, before in zip(rush.load, state.load, strict=True)],
        held=[min(held, FULL) for held in rush.held],
    )
    return (1 - burst.share) * calm + burst.share * _kept(net, flows, rush, waits_s)


def crowded_lines(state: State, burst: Burst) -> State:
    """The same with what the burst leaves waiting on every line."""
    waits_s = {
        ends: wait_s + burst.wait_s(state.line_load[ends])
        for ends, wait_s in state.line_wait_s.items()
    }
    return replace(state, line_wait_s=waits_s)


def _kept(net: Net, flows: Flows, state: State, waits_s: Sequence[float]) -> float:
    """`waits_s`: what waits before each group already."""
    entering: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        if rate:
            entering.setdefault((kind, net.groups[place].pool.site), []).append((rate, place))
    queues = _Queues(net, flows, state, waits_s)
    kept = 0.0
    for path, rate in zip(net.paths, flows.going, strict=True):
        if not rate:
            continue
        term = net.terms(path, state)
        chance = decode_chance(net, path, term, state)
        if chance > 0:
            chance *= queues.first_chance(path, term, entering[path.kind, path.site])
        kept += rate * chance
    return kept / sum(flows.going)


def overloaded(net: Net, state: State) -> bool:
    """Whether something is asked for more than it can ever give."""
    return (
        any(load >= 1 for load in state.load)
        or any(load >= 1 for load in state.line_load.values())
        or any(held >= 1 for held in state.held)
    )


def decode_chance(net: Net, path: Path, term: Terms, state: State) -> float:
    """That a request's time per token stays within the goal."""
    decoded = net.problem.classes[path.kind].output - 1
    if decoded <= 0:
        return 1.0
    alone = term.main_tokens if path.relay is None else decoded - term.relay_tokens
    seconds = term.stall_s + alone * state.step_s[path.main]
    variance = alone * alone * state.variance[path.main]
    if path.relay is not None:
        seconds += term.relay_tokens * state.step_s[path.relay]
        variance += term.relay_tokens**2 * state.variance[path.relay]
    return normal_below(net.problem.goal.tpot_s * decoded, seconds, sqrt(variance))


class _Queues:
    """What a request waits for before its first token."""

    def __init__(self, net: Net, flows: Flows, state: State, waits_s: Sequence[float]) -> None:
        self._net, self._state, self._waits_s = net, state, waits_s
        weights: dict[int, list[tuple[float, int, int]]] = {}
        for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
            weights.setdefault(place, []).append((rate, kind, place))
        self._service = {
            place: service(net, parts, state.found[place]) for place, parts in weights.items()
        }

    def first_chance(self, path: Path, term: Terms, entering: list[tuple[float, int]]) -> float:
        """That the first token (and the second, where the goal has one) is in time."""
        net, state, goal = self._net, self._state, self._net.problem.goal
        limit_s = min(goal.ttft_s, goal.second_s - term.stall_s)
        limit_s -= 2 * net.ground.home_s(path.site) + self._waits_s[path.main]
        if path.relay is not None:
            limit_s -= self._waits_s[path.relay]
        chance = total = 0.0
        for rate, place in entering:
            alone_s = net.prefill_s(path.kind, place, state.found[place]) + self._waits_s[place]
            mean_s, cv2 = self._service[place]
            variation = (net.problem.gap_cv2 + cv2) / 2
            within = chance_within(
                limit_s - alone_s, net.groups[place].count, state.load[place], mean_s, variation
            )
            within *= self._room_chance(place, limit_s - alone_s, path.kind)
            chance += rate * within
            total += rate
        chance /= total
        slack_s = limit_s - state.prefill_s[path.kind, path.site]
        chance *= self._room_chance(path.main, slack_s, path.kind)
        if path.relay is not None:
            chance *= self._room_chance(path.relay, slack_s, path.kind)
        return chance

    def _room_chance(self, place: int, slack_s: float, kind: int) -> float:
        """That memory and a slot are free in time."""
        held = self._state.held[place]
        if held < CROWDED:
            return 1.0
        group, what = self._net.groups[place], self._net.problem.classes[kind]
        legs = min(group.pool.slots, group.shape.kv_tokens / (what.prompt + what.output))
        servers = max(1, int(group.count * legs))
        hold_s, variation = self._state.hold_s[place], (1 + self._net.problem.gap_cv2) / 2
        return chance_within(slack_s, servers, held, hold_s, variation)
