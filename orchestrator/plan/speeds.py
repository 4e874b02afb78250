"""How fast one worker is at prefill and at decode, from its costs. All times are seconds."""

from math import ceil

from workers.costs import Chunk, Costs, DecodeLine


def prefill_alone_s(costs: Costs, tokens: float, context: float, chunk: int) -> float:
    """Of one prompt with nobody beside it: whole steps of at most `chunk` tokens."""
    steps = ceil(tokens / chunk)
    return steps * _step_fixed_s(costs, min(chunk, ceil(tokens))) + _computing_s(
        costs, tokens, context
    )


def prefill_busy_s(costs: Costs, tokens: float, context: float, chunk: int) -> float:
    """What a prompt adds when others wait: steps are full, and it uses a part of the last one."""
    return tokens / chunk * _step_fixed_s(costs, chunk) + _computing_s(costs, tokens, context)


def extend_s(costs: Costs, tokens: int, context: int) -> float:
    """What recomputing some tokens in one go adds to a decode step."""
    return costs.chunk_s(tokens, context) if tokens > 0 else 0.0


class Decoding:
    """A worker's decode steps; batches may be fractions, and between whole ones steps are linear.

    What the costs said of a batch is kept: they are asked for the same again and again.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._lines: dict[int, DecodeLine] = {}

    def step_s(self, batch: float, context: float) -> float:
        """A step of `batch` sequences with `context` tokens each; of at least one."""
        batch = max(1.0, batch)
        low = int(batch)
        below = self._whole_s(low, context)
        if batch == low:
            return below
        return below + (batch - low) * (self._whole_s(low + 1, context) - below)

    def batch_within(self, context: float, limit_s: float, most: int) -> int:
        """The largest batch whose step takes at most `limit_s`; 0: not even one sequence."""
        if self._whole_s(1, context) > limit_s:
            return 0
        low, high = 1, max(1, most)
        while low < high:
            middle = (low + high + 1) // 2
            if self._whole_s(middle, context) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return low

    def batch_at(self, context: float, tokens_per_s: float, most: float) -> float:
        """The batch in which so many tokens are decoded each second; `most` if it cannot be."""
        low, high = 0.0, most
        if high / self.step_s(high, context) <= tokens_per_s:
            return most
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            if middle / self.step_s(middle, context) < tokens_per_s:
                low = middle
            else:
                high = middle
        return high

    def _whole_s(self, batch: int, context: float) -> float:
        line = self._lines.get(batch)
        if line is None:
            line = self._lines[batch] = self._costs.decode_line(batch)
        return max(line.fixed_s + line.per_context_s * batch * context, line.least_s)


def _step_fixed_s(costs: Costs, tokens: int) -> float:
    """Of a step that only prefills: what it takes beside its chunk."""
    return costs.step_s((Chunk(tokens, 0),), 0, 0) - costs.chunk_s(tokens, 0)


def _computing_s(costs: Costs, tokens: float, context: float) -> float:
    """Linear in context, quadratic in tokens: one chunk takes what its parts take together."""
    return costs.chunk_s(round(tokens), round(context))
