"""A workload that is generated: the same seed, the same requests."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite

from orchestrator.replay.workload.draws import (
    NARROW,
    NONE,
    SKEWED,
    Arrivals,
    Burst,
    Hits,
    Lengths,
)
from orchestrator.replay.workload.request import BadLine, TraceRequest, WorkloadError

# PDD, arXiv 2609.13161: 64K-token prompts of which nine tenths are known at main, and what fits its
# transfers' P50 and P99: 275 s at 0.88 of its 80 requests/s, then 15 s at 2.7 times that.
PDD_PROMPT = 65_536
PDD_PER_S = 70.4
PDD_CALM_S, PDD_BURST_S, PDD_BURST = 275.0, 15.0, 2.7
_TURN = Lengths(mean=64)
_NAMES_EACH = 1 << 24  # block names of one conversation or document


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Conversations that begin at `arrivals`. See `Workload`.

    The first prompt has `prompt` tokens, of which the part drawn from `hits` begins as one of
    `documents` does, so a cache that holds those documents gives just these hits. Each of `turns`
    follows `think` seconds after the one before should have ended at `tokens_per_s`, with the whole
    conversation before `turn` new tokens. It ends after `count` requests or `duration_s`, whichever
    comes first.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    count: int | None = None
    duration_s: float | None = None
    hits: Hits = NONE
    documents: int = 16
    turns: int = 1
    turn: Lengths = _TURN
    think_s: float = 10.0
    tokens_per_s: float = 20.0
    block_tokens: int = 16
    seed: int = 0
    bad: tuple[BadLine, ...] = ()

    def __post_init__(self) -> None:
        if self.count is None and self.duration_s is None:
            raise WorkloadError("a generated workload needs a count or a duration")
        for name in ("count", "documents", "turns", "block_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise WorkloadError(f"{name}: must be at least 1, got {value}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise WorkloadError(f"duration_s: must be > 0, got {self.duration_s:g}")
        if not self.tokens_per_s > 0 or not (self.think_s >= 0 and isfinite(self.think_s)):
            raise WorkloadError(
                f"turns {self.think_s:g} s after answers at {self.tokens_per_s:g} tokens/s: "
                "think_s must be at least 0, tokens_per_s > 0"
            )

    def requests(self) -> Iterator[TraceRequest]:
        return islice(self._endless(), self.count)

    def _endless(self) -> Iterator[TraceRequest]:
        draw = random.Random(self.seed)
        until = inf if self.duration_s is None else self.duration_s
        if self.turns == 1:
            for number, at in enumerate(self.arrivals.times(draw)):
                if at >= until:
                    return
                yield self._first(number, at, draw)
            return
        times = enumerate(self.arrivals.times(draw))
        number, at = next(times)
        later: list[tuple[float, int, int, TraceRequest]] = []
        while True:
            if later and later[0][0] <= at:
                now, session, turn, before = heapq.heappop(later)
                request = self._next(session, turn, now, before, draw)
            else:
                session, turn, now = number, 1, at
                request = self._first(number, at, draw)
                number, at = next(times)
            if now >= until:
                return
            if turn < self.turns:
                ended = now + request.output / self.tokens_per_s + self.think_s
                heapq.heappush(later, (ended, session, turn + 1, request))
            yield request

    def _first(self, number: int, at: float, draw: random.Random) -> TraceRequest:
        prompt = self.prompt.drawn(draw)
        whole = prompt // self.block_tokens
        known = min(whole, round(self.hits.drawn(draw) * prompt / self.block_tokens))
        document = draw.randrange(self.documents)
        seen = document * _NAMES_EACH
        own = (self.documents + number) * _NAMES_EACH
        blocks = (*range(seen, seen + known), *range(own + known, own + whole))
        return TraceRequest(
            at=at,
            prompt=prompt,
            output=self.output.drawn(draw),
            blocks=blocks,
            session=str(number) if self.turns > 1 else None,
        )

    def document(self, number: int, blocks: int) -> tuple[int, ...]:
        """The names of a document's first blocks."""
        return tuple(range(number * _NAMES_EACH, number * _NAMES_EACH + blocks))

    def _next(
        self, session: int, turn: int, at: float, before: TraceRequest, draw: random.Random
    ) -> TraceRequest:
        prompt = before.prompt + before.output + self.turn.drawn(draw)
        own = (self.documents + session) * _NAMES_EACH
        there, whole = len(before.blocks), prompt // self.block_tokens
        return TraceRequest(
            at=at,
            prompt=prompt,
            output=self.output.drawn(draw),
            blocks=(*before.blocks, *range(own + there, own + whole)),
            session=before.session,
        )


def pdd(*, narrow: bool = False, seed: int = 0) -> Generated:
    """PDD's own, as far as its paper says; what it does not say is fitted (see the figures above).

    Outputs are not given there: 256 tokens on average.
    """
    burst = Burst(PDD_CALM_S, PDD_CALM_S + PDD_BURST_S, PDD_BURST)
    return Generated(
        arrivals=Arrivals(per_s=PDD_PER_S, bursts=(burst,)),
        prompt=Lengths(mean=PDD_PROMPT),
        output=Lengths(mean=256, cv=0.7, most=4096),
        duration_s=PDD_CALM_S + PDD_BURST_S,
        hits=NARROW if narrow else SKEWED,
        block_tokens=512,
        seed=seed,
    )
