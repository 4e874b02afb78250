"""What flows make of an assignment: waits, batches, memory and hits, to a fixed point."""

from collections.abc import Sequence
from math import pow
from typing import NamedTuple

from orchestrator.plan.programme.paths import Ends, Net, Path
from orchestrator.plan.programme.queues import (
    averaged,
    elasticity,
    mean_residual_s,
    mean_wait_s,
    step_variance,
)
from orchestrator.plan.programme.terms import State, Terms, kv_bytes, relay_reserve, terms_of
from workers.api.messages import PREFILL
from workers.api.record import record

ROUNDS = 6
SETTLED = 2e-3  # the part by which no batch moves any more
FULL = 0.98  # more load than that waits as long: what is overloaded is judged by its load
LINE_FULL = 0.998  # where relays take what a line cannot, it is as full as can be
LEFT = 0.05  # of a worker's time for decoding, at least, whatever extends take
BRIEF = 0.01  # a load under which nobody waits
CLOSE = 0.02  # of what is left of a line: a wait is known as well


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


class _Going(NamedTuple):
    """A path that so many requests/s take."""

    path: Path
    rate: float
    terms: Terms


def settle(net: Net, flows: Flows, start: State) -> State:
    """The state that the flows lead to, from another one near it."""
    state = start
    for _ in range(ROUNDS):
        new = next_state(net, flows, state)
        moved = max(
            (abs(a - b) / max(a, b) for a, b in zip(new.batch, state.batch, strict=True) if a + b),
            default=0.0,
        )
        state = new
        if moved < SETTLED:
            break
    return state


def next_state(net: Net, flows: Flows, before: State) -> State:
    """One round: every wait, batch and hit from the last round's."""
    state = before.copy()
    _prefill(net, flows, state)
    going = [
        _Going(path, rate, terms_of(net, path, state))
        for path, rate in zip(net.paths, flows.going, strict=True)
        if rate
    ]
    _lines(net, state, going)
    _decode(net, state, going)
    _memory(net, flows, state, going)
    return state


def _prefill(net: Net, flows: Flows, state: State) -> None:
    for place, mix in net.mixes(flows.entering).items():
        count = net.groups[place].count
        mean_s, cv2 = net.service(place, mix, state.cached[place])
        state.load[place] = load = sum(rate for rate, _ in mix) * mean_s / count
        variation = (net.problem.gap_cv2 + cv2) / 2
        state.wait_s[place] = mean_wait_s(count, min(load, FULL), mean_s, variation)
    by_site: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        alone_s = net.prefill_s(kind, place, state.cached[place])
        by_site.setdefault((kind, net.groups[place].pool.site), []).append((rate, alone_s))
    for site, parts in by_site.items():
        total = sum(rate for rate, _ in parts)
        if total > 0:
            state.prefill_s[site] = sum(rate * alone_s for rate, alone_s in parts) / total


# --------------------------------------------------------------------------------------- lines


def _lines(net: Net, state: State, going: Sequence[_Going]) -> None:
    """How full each line is, and how long KV waits for it."""
    over: dict[Ends, list[_Going]] = {ends: [] for ends in net.rates}
    for part in going:
        if part.path.line is not None:
            over[part.path.line].append(part)
    for ends, parts in over.items():
        _line(net, state, ends, parts)


def _line(net: Net, state: State, ends: Ends, parts: Sequence[_Going]) -> None:
    """A relayed answer that ends before its KV had a turn sends none.

    So the fuller the line, the less it is offered; where they agree is found by halving.
    """
    speed = net.rates[ends]
    each = [kv_bytes(net, path, state) / speed for path, _, _ in parts]
    first = sum(rate * s for (_, rate, _), s in zip(parts, each, strict=True))
    second = sum(rate * s * s for (_, rate, _), s in zip(parts, each, strict=True))

    def offered(load: float) -> float:
        """What the line is asked for when it is so full; its state is then that."""
        state.line_load[ends] = load
        # Of the load, the same part of the squares.
        residual_s = mean_residual_s(second * load / first) if first else 0.0
        wait_s = residual_s / (1 - min(load, LINE_FULL)) * (1 + net.problem.gap_cv2) / 2
        state.line_wait_s[ends] = wait_s
        return sum(rate * terms_of(net, path, state).wire_bytes for path, rate, _ in parts) / speed

    if first <= BRIEF or all(path.relay is None for path, _, _ in parts):
        offered(first)
        return
    low, high = 0.0, LINE_FULL
    if (asked := offered(high)) > high:
        offered(asked)
        return
    while high - low > CLOSE * (1 - high):
        middle = (low + high) / 2
        if offered(middle) > middle:
            low = middle
        else:
            high = middle
    offered(high)


# -------------------------------------------------------------------------------------- decode


class _Wanted:
    """What is decoded in one group: tokens/s, their contexts, and seconds/s that extends take."""

    def __init__(self) -> None:
        self.tokens_per_s = self.extends = 0.0
        self._contexts = self._squares = 0.0

    def add(self, rate: float, tokens: float, context: float) -> None:
        self.tokens_per_s += rate * tokens
        self._contexts += rate * tokens * context
        self._squares += rate * tokens * context * context

    @property
    def context(self) -> float:
        """The mean over tokens."""
        return self._contexts / self.tokens_per_s

    @property
    def spread(self) -> float:
        """E[x2] / E[x]2 of the contexts."""
        return self._squares / self.tokens_per_s / (self.context * self.context)


def _decode(net: Net, state: State, going: Sequence[_Going]) -> None:
    """Batches from the tokens that are wanted of each group."""
    wanted = [_Wanted() for _ in net.groups]
    for path, rate, terms in going:
        request = net.problem.classes[path.kind]
        context = request.prompt + request.output - terms.main_tokens / 2
        wanted[path.main].add(rate, terms.main_tokens, context)
        wanted[path.main].extends += rate * terms.extend_s
        if path.relay is not None:
            context = request.prompt + terms.relay_tokens / 2
            wanted[path.relay].add(rate, terms.relay_tokens, context)
    for place, asked in enumerate(wanted):
        if net.groups[place].role is not PREFILL and asked.tokens_per_s:
            _batch(net, state, place, asked)


def _batch(net: Net, state: State, place: int, wanted: _Wanted) -> None:
    group, decoding = net.groups[place], net.decoding[place]
    context = state.context[place] = wanted.context
    left = max(LEFT, 1 - wanted.extends / group.count)
    each = wanted.tokens_per_s / group.count / left
    most = float(group.pool.slots)
    batch = decoding.batch_at(context, each, most)
    state.load[place] = each / (most / decoding.step_s(most, context))
    state.batch[place] = batch
    step_s = state.step_s[place] = decoding.step_s(batch, context) / left
    added_s = decoding.step_s(batch + 1, context) / left - step_s
    elastic = elasticity(batch, step_s, added_s)
    variance = step_variance(batch, added_s, elastic, group.count, spread=wanted.spread)
    # A life is one service, and a deviation lasts 1 / (1 - e) of those.
    state.variance[place] = averaged(variance, 1 - elastic)


# -------------------------------------------------------------------------------------- memory


class _Held:
    """What legs hold of one group: tokens of memory, slots, and seconds of legs that began."""

    def __init__(self) -> None:
        self.tokens = self.slots = 0.0
        self._seconds = self._legs = self._known = 0.0

    def add(
        self, rate: float, seconds: float, tokens: float, known: float, *, slot: bool = True
    ) -> None:
        """Legs that begin; `known`: tokens of each that others have as well."""
        self.tokens += rate * seconds * tokens
        self.slots += rate * seconds if slot else 0.0
        self._seconds += rate * seconds
        self._legs += rate
        self._known += rate * seconds * known

    @property
    def hold_s(self) -> float:
        """Of one leg, the mean."""
        return self._seconds / self._legs if self._legs else 0.0

    def shared(self, reused: float) -> float:
        """The part of so many known tokens that some leg holds: they are found there too.

        Each of n legs, n on average, has a part of them at random.
        """
        if not self._seconds:
            return 0.0
        part = min(1.0, self._known / self._seconds / reused)
        return 1.0 - pow(1.0 - part, self._seconds)


def _memory(net: Net, flows: Flows, state: State, going: Sequence[_Going]) -> None:
    """Parts of memory and slots that legs hold, from their start on; what is left are caches."""
    held = [_Held() for _ in net.groups]
    _hold_decode(net, flows, state, going, held)
    _hold_prefill(net, flows, state, going, held)
    reused = net.problem.reused_tokens
    for place, group in enumerate(net.groups):
        room = group.count * group.shape.kv_tokens
        used = held[place].tokens / room
        state.held[place] = max(used, held[place].slots / (group.count * group.pool.slots))
        state.hold_s[place] = held[place].hold_s
        if reused:
            # The router takes the worker with the longest hit, so each keeps its own part.
            free = room * max(0.0, 1 - used) / reused
            cached = min(1.0, held[place].shared(reused) + free)
            stored = min(1.0, group.pool.store_tokens / reused)
            cached += max(0.0, stored - cached) * net.loading_spares(place)
            # Half of the way: a fuller cache leaves more memory, which would swing for ever.
            state.cached[place] = (state.cached[place] + cached) / 2


def _hold_decode(
    net: Net, flows: Flows, state: State, going: Sequence[_Going], held: Sequence[_Held]
) -> None:
    """Relay's and main's legs are opened with the prefill's."""
    waits_s = _site_waits(net, flows, state)
    for path, rate, terms in going:
        request = net.problem.classes[path.kind]
        before_s = waits_s.get(path.site, 0.0) + state.prefill_s[path.kind, path.site]
        life_s = before_s + max(terms.kv_s, terms.stall_s)
        life_s += terms.main_tokens * state.step_s[path.main]
        held[path.main].add(rate, life_s, request.prompt + request.output, request.main_hit)
        if path.relay is not None:
            reserve = relay_reserve(request, terms.relay_tokens)
            held[path.relay].add(rate, before_s + terms.hold_s, reserve, request.main_hit)


def _hold_prefill(
    net: Net, flows: Flows, state: State, going: Sequence[_Going], held: Sequence[_Held]
) -> None:
    """Prefill keeps KV until it has all been sent; it takes no slot."""
    sent_s: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for path, rate, terms in going:
        after_s = max(terms.kv_s, terms.hold_s)
        sent_s.setdefault((path.kind, path.site), []).append((rate, after_s))
    for (kind, place), rate in zip(net.entries, flows.entering, strict=True):
        site = net.groups[place].pool.site
        parts = sent_s.get((kind, site), [])
        total = sum(weight for weight, _ in parts)
        after_s = sum(weight * s for weight, s in parts) / total if total else 0.0
        seconds = state.wait_s[place] + state.prefill_s[kind, site] + after_s
        request = net.problem.classes[kind]
        held[place].add(rate, seconds, request.prompt, request.hit, slot=False)


def _site_waits(net: Net, flows: Flows, state: State) -> dict[str, float]:
    """Mean seconds that prompts wait for their prefill, by site."""
    totals: dict[str, list[float]] = {}
    for (_, place), rate in zip(net.entries, flows.entering, strict=True):
        total = totals.setdefault(net.groups[place].pool.site, [0.0, 0.0])
        total[0] += rate
        total[1] += rate * state.wait_s[place] if rate else 0.0
    return {site: wait_s / rate if rate else 0.0 for site, (rate, wait_s) in totals.items()}
