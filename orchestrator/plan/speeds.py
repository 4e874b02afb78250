"""How fast one worker is at prefill and at decode, from its costs. All times are seconds."""

from math import ceil

from workers.costs import Chunk, Costs, DecodeLine


class Prefilling:
    """A worker's prefills of one prompt each, in steps of at most `chunk_tokens`.

    `tokens` are computed after `context` that a cache has. Times are kept: a plan asks for the same
    again and again.
    """

    def __init__(self, costs: Costs, chunk_tokens: int) -> None:
        self._costs, self._chunk = costs, chunk_tokens
        self._alone_s: dict[tuple[int, int], float] = {}
        self._busy_s: dict[tuple[int, int], float] = {}

    def alone_s(self, tokens: int, context: int) -> float:
        """With nobody beside it: whole steps."""
        seconds = self._alone_s.get((tokens, context))
        if seconds is None:
            steps = ceil(tokens / self._chunk)
            seconds = steps * self._fixed_s(min(self._chunk, tokens))
            seconds += self._costs.chunk_s(tokens, context)
            self._alone_s[tokens, context] = seconds
        return seconds

    def busy_s(self, tokens: int, context: int) -> float:
        """What it adds when others wait: steps are full, and it uses a part of the last one."""
        seconds = self._busy_s.get((tokens, context))
        if seconds is None:
            seconds = tokens / self._chunk * self._fixed_s(self._chunk)
            seconds += self._costs.chunk_s(tokens, context)
            self._busy_s[tokens, context] = seconds
        return seconds

    def _fixed_s(self, tokens: int) -> float:
        """Of a step that only prefills: what it takes beside its chunk.

        Computing itself is linear in context and quadratic in tokens, so that all chunks of a
        prompt together take what one of its whole length takes.
        """
        return self._costs.step_s((Chunk(tokens, 0),), 0, 0) - self._costs.chunk_s(tokens, 0)


class Decoding:
    """A worker's decode steps; batches may be fractions, and between whole ones steps are linear.

    What the costs said of a batch is kept, as above.
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

    def extend_s(self, tokens: int, context: int) -> float:
        """What computing some tokens after `context` in one go adds to a step."""
        return self._costs.chunk_s(tokens, context) if tokens > 0 else 0.0

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
