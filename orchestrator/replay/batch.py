"""Continuous batching in closed form (a step takes A(b) + B S, and S grows by b).

With S the sum of contexts of a batch of b, n steps that also compute c prompt tokens each take

    E(n) = n p + B b n^2 / 2,   p = c / rate + A(b) + B (S - b / 2)

and e seconds hold n = 2 e / (p + sqrt(p^2 + 2 B b e)) steps. Legs join and leave at whole steps.
"""

import heapq
from math import ceil, sqrt

from orchestrator.replay.leg import ModelLeg
from workers.costs import MeasuredCosts

# A boundary that is missed by less than this part of a step was met.
SLACK = 1e-9


class Batch:
    """The legs that decode together, on an integer clock of steps.

    A leg's context is `offset` + clock + prompt: no leg is touched while the clock runs.
    """

    def __init__(self, costs: MeasuredCosts) -> None:
        self.clock = 0
        self.size = 0
        self.context = 0  # tokens, of all legs together
        self._chunk_token_s = 1 / costs.prefill_tokens_per_s
        self._fixed_s = costs.decode_step_s
        self._leg_s = costs.sequence_s
        self._context_s = costs.context_s
        self._leaving: list[tuple[int, int, ModelLeg]] = []
        self._order = 0

    # ------------------------------------------------------------ who is in it

    def join(self, leg: ModelLeg, goal: int) -> None:
        """From the next step on this leg decodes, until its output has the length `goal`."""
        leg.offset = leg.own - self.clock
        self.size += 1
        self.context += leg.prompt + leg.own
        self.aim(leg, goal)

    def aim(self, leg: ModelLeg, goal: int) -> None:
        """A leg that decodes has another goal."""
        leg.leaves_at = goal - leg.offset
        self._order += 1
        heapq.heappush(self._leaving, (leg.leaves_at, self._order, leg))

    def leave(self, leg: ModelLeg) -> None:
        """A leg decodes no longer; all its tokens but the last have KV."""
        leg.own = leg.offset + self.clock
        leg.computed = leg.prompt + leg.own - 1
        leg.leaves_at = None
        self.size -= 1
        self.context -= leg.prompt + leg.own

    def next_leaving(self) -> int | None:
        """Steps until the first leg reaches its goal; None: there is no leg."""
        leaving = self._leaving
        while leaving:
            at, _, leg = leaving[0]
            if leg.leaves_at == at:
                return at - self.clock
            heapq.heappop(leaving)
        return None

    def advance(self, steps: int) -> list[ModelLeg]:
        """Every leg decodes so many tokens; those that reach their goal leave."""
        clock = self.clock = self.clock + steps
        self.context += steps * self.size
        left = []
        leaving = self._leaving
        while leaving and leaving[0][0] <= clock:
            at, _, leg = heapq.heappop(leaving)
            if leg.leaves_at == at:
                self.leave(leg)
                left.append(leg)
        return left

    # ------------------------------------------------------------ how long it takes

    def step_s(self, chunk: int = 0, after: int = 0) -> float:
        """Seconds of the step that follows `after` steps from now, with `chunk` prompt tokens."""
        size = self.size
        seconds = chunk * self._chunk_token_s
        if size:
            seconds += self._fixed_s + self._leg_s * size
            seconds += self._context_s * (self.context + size * after)
        return seconds

    def elapsed_s(self, steps: int, chunk: int = 0) -> float:
        """Seconds of the next `steps` steps."""
        first_s = self.step_s(chunk)
        return steps * (first_s + self._context_s * self.size * (steps - 1) / 2)

    def steps_until(self, seconds: float, chunk: int = 0) -> int:
        """Whole steps, at least one, after which `seconds` have passed."""
        if seconds <= 0:
            return 1
        growth_s = self._context_s * self.size
        p = self.step_s(chunk) - growth_s / 2
        steps = ceil(2 * seconds / (p + sqrt(p * p + 2 * growth_s * seconds)) - SLACK)
        return steps or 1
