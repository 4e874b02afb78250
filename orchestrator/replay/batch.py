"""Continuous batching in closed form (a step takes max(A + B S, C), and S grows by b).

With S the sum of contexts of a batch of b and c_k the seconds that the chunk of step k adds,
c_k = c + g k (attention makes each chunk of a prompt dearer than the one before), n steps take

    E(n) = n p + (B b + g) n^2 / 2,   p = c + A + B S - (B b + g) / 2

and e seconds hold n = 2 e / (p + sqrt(p^2 + 2 (B b + g) e)) steps. Where C is the larger the same
holds with A = C and B = 0, up to the step at which A + B S overtakes it: one split. Legs join and
leave at whole steps.
"""

import heapq
from math import ceil, sqrt
from typing import NamedTuple

from orchestrator.replay.leg import ModelLeg
from workers.api.budget import Budget
from workers.costs import Costs, DecodeLine

# A boundary that is missed by less than this part of a step was met.
SLACK = 1e-9
_FOR_EVER = 1 << 60  # steps


class ChunkCost(NamedTuple):
    """Seconds that prefill adds to the next step, and how many more to each one after it.

    `tokens`: that are prefilled in each of them.
    """

    first_s: float
    growth_s: float = 0.0
    tokens: int = 0


NO_CHUNK = ChunkCost(0.0)


class Batch:
    """The legs that decode together, on an integer clock of steps.

    A leg's context is `offset` + clock + prompt: no leg is touched while the clock runs.
    """

    def __init__(self, costs: Costs, keeps: Budget | None = None) -> None:
        self.clock = 0
        self._keeps = keeps
        self._thinning: list[tuple[int, int, ModelLeg]] = []
        self.size = 0
        self.context = 0  # tokens, of all legs together
        self._costs = costs
        self._lines: dict[int, DecodeLine] = {}
        self._now: DecodeLine | None = None  # of the size it has; None: to be looked up
        self._leaving: list[tuple[int, int, ModelLeg]] = []
        self._order = 0

    # ------------------------------------------------------------ who is in it

    def join(self, leg: ModelLeg, goal: int) -> None:
        """From the next step on this leg decodes, until its output has the length `goal`."""
        leg.offset = leg.own - self.clock
        self.size += 1
        self._now = None
        self.context += leg.prompt + leg.own - leg.gone
        self.aim(leg, goal)
        if self._keeps is not None:
            self._watch(leg, self._keeps)

    def aim(self, leg: ModelLeg, goal: int) -> None:
        """A leg that decodes has another goal."""
        leg.leaves_at = goal - leg.offset
        self._order += 1
        heapq.heappush(self._leaving, (leg.leaves_at, self._order, leg))

    def leave(self, leg: ModelLeg) -> None:
        """A leg decodes no longer; all its tokens but the last have KV."""
        leg.own = leg.offset + self.clock
        leg.computed = leg.prompt + leg.own - 1
        leg.leaves_at = leg.thins_at = None
        self.size -= 1
        self._now = None
        self.context -= leg.prompt + leg.own - leg.gone

    def next_leaving(self) -> int | None:
        """Steps until the first leg reaches its goal or loses tokens; None: there is no leg."""
        thins_at = self._next_thinning()
        leaving = self._leaving
        while leaving:
            at, _, leg = leaving[0]
            if leg.leaves_at == at:
                return (at if thins_at is None or at < thins_at else thins_at) - self.clock
            heapq.heappop(leaving)
        return None

    def advance(self, steps: int) -> list[ModelLeg]:
        """Every leg decodes so many tokens; those that reach their goal leave."""
        clock = self.clock = self.clock + steps
        self.context += steps * self.size
        if self._thinning:
            self._thin()
        left = []
        leaving = self._leaving
        while leaving and leaving[0][0] <= clock:
            at, _, leg = heapq.heappop(leaving)
            if leg.leaves_at == at:
                self.leave(leg)
                left.append(leg)
        return left

    # ------------------------------------------------------------ tokens that are not kept

    def _watch(self, leg: ModelLeg, keeps: Budget) -> None:
        """Find the step after which as many of a leg's tokens are to go as go at a time."""
        computed = leg.prompt + leg.offset + self.clock - 1
        most = leg.end - leg.offset - self.clock

        def goes(steps: int) -> bool:
            live = computed + steps - leg.gone
            return keeps.left(live, computed + steps, leg.prompt) < live

        low, high = 1, keeps.slack
        while high < most and not goes(high):
            low, high = high + 1, 2 * high
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if goes(middle) else (middle + 1, high)
        leg.thins_at = self.clock + low if low <= most and goes(low) else None
        if leg.thins_at is not None:
            self._order += 1
            heapq.heappush(self._thinning, (leg.thins_at, self._order, leg))

    def _next_thinning(self) -> int | None:
        thinning = self._thinning
        while thinning:
            at, _, leg = thinning[0]
            if leg.thins_at == at:
                return at
            heapq.heappop(thinning)
        return None

    def _thin(self) -> None:
        """Tokens of the legs whose time it is die; what they take of memory stays as it was."""
        keeps = self._keeps
        assert keeps is not None, "somebody is to lose tokens"
        while (at := self._next_thinning()) is not None and at <= self.clock:
            leg = heapq.heappop(self._thinning)[2]
            computed = leg.prompt + leg.offset + self.clock - 1
            live = computed - leg.gone
            dead = live - keeps.left(live, computed, leg.prompt)
            leg.gone += dead
            self.context -= dead
            self._watch(leg, keeps)
            if leg.goal - leg.offset != leg.leaves_at:
                self.aim(leg, leg.goal)  # there is room for as many more

    # ------------------------------------------------------------ how long it takes

    def step_s(self, chunk_s: float = 0.0, after: int = 0) -> float:
        """Seconds of the step that follows `after` steps from now, in which chunks take so long."""
        fixed_s, per_context_s, least_s = self._now or self._line()
        seconds = fixed_s + per_context_s * (self.context + self.size * after)
        return chunk_s + (seconds if seconds > least_s else least_s)

    def elapsed_s(self, steps: int, chunk: ChunkCost = NO_CHUNK) -> float:
        """Seconds of the next `steps` steps."""
        line = self._line(chunk.tokens) if chunk.tokens else self._now or self._line()
        fixed_s, per_context_s, least_s = line
        first_s = fixed_s + per_context_s * self.context
        if first_s >= least_s:
            growth_s = per_context_s * self.size + chunk.growth_s
            return steps * (first_s + chunk.first_s + growth_s * (steps - 1) / 2)
        seconds = steps * chunk.first_s + chunk.growth_s * steps * (steps - 1) / 2
        flat = min(steps, self._flat_steps(line))
        rest = steps - flat
        if rest:
            growth_s = per_context_s * self.size
            first_s = fixed_s + per_context_s * (self.context + self.size * flat)
            seconds += rest * (first_s + growth_s * (rest - 1) / 2)
        return seconds + flat * least_s

    def steps_until(self, seconds: float, chunk: ChunkCost = NO_CHUNK) -> int:
        """Whole steps, at least one, after which `seconds` have passed."""
        if seconds <= 0:
            return 1
        line = self._line(chunk.tokens) if chunk.tokens else self._now or self._line()
        fixed_s, per_context_s, least_s = line
        growth_s = per_context_s * self.size + chunk.growth_s
        first_s = fixed_s + per_context_s * self.context
        if first_s >= least_s:
            return _steps(seconds, first_s + chunk.first_s, growth_s)
        flat = self._flat_steps(line)
        flat_s = flat * (least_s + chunk.first_s) + chunk.growth_s * flat * (flat - 1) / 2
        if seconds <= flat_s:
            return _steps(seconds, least_s + chunk.first_s, chunk.growth_s)
        first_s += per_context_s * self.size * flat + chunk.first_s + chunk.growth_s * flat
        return flat + _steps(seconds - flat_s, first_s, growth_s)

    def _line(self, prefilled: int = 0) -> DecodeLine:
        if prefilled:
            return self._costs.decode_line(self.size, prefilled)
        line = self._lines.get(self.size)
        if line is None:
            line = self._lines[self.size] = self._costs.decode_line(self.size)
        self._now = line
        return line

    def _flat_steps(self, line: tuple[float, float, float]) -> int:
        """How many of the next steps take what the line takes at least; at least one does."""
        fixed_s, per_context_s, least_s = line
        missing_s = least_s - fixed_s - per_context_s * self.context
        growth_s = per_context_s * self.size
        return ceil(missing_s / growth_s) if growth_s else _FOR_EVER


def _steps(seconds: float, first_s: float, growth_s: float) -> int:
    """Whole steps that hold `seconds`, at least one; each takes `growth_s` more than the last."""
    p = first_s - growth_s / 2
    steps = ceil(2 * seconds / (p + sqrt(p * p + 2 * growth_s * seconds)) - SLACK)
    return steps if steps > 0 else 1
