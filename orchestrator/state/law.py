"""The law of one request: its accepted output tokens, which never change."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import TokenLogprobs


@dataclass(slots=True)
class Law:
    """Accepted output ids with the history hash before each index.

    A hash is computed when it is asked for, from the last one before it, and kept if it is the
    longest so far: `hashes[i]` covers ids[:ends[i]].
    """

    ids: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by index, where reported
    margins: dict[int, float] = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0])
    hashes: list[int] = field(default_factory=lambda: [EMPTY_HISTORY])

    def __len__(self) -> int:
        return len(self.ids)

    def extend(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
        margins: Sequence[float] | None,
    ) -> None:
        """Accept `ids` at the end, with what was reported about each."""
        start = len(self.ids)
        self.ids.extend(ids)
        if logprobs is not None:
            self.logprobs.update(enumerate(logprobs, start))
        if margins is not None:
            self.margins.update(enumerate(margins, start))

    def history(self, index: int) -> int:
        """The hash of ids[:index], index <= len(self)."""
        ends, hashes = self.ends, self.hashes
        if index < ends[-1]:
            at = bisect_right(ends, index) - 1
            end, history = ends[at], hashes[at]
            return history if end == index else extend_history(history, self.ids[end:index])
        if index > ends[-1]:
            hashes.append(extend_history(hashes[-1], self.ids[ends[-1] : index]))
            ends.append(index)
        return hashes[-1]

    def agrees(self, index: int, history: int, ids: Sequence[int]) -> bool:
        """Whether a run that starts at `index` <= len(self) tells the law's own story so far."""
        if self.history(index) != history:
            return False
        if index == len(self.ids):
            return True
        known = self.ids[index : index + len(ids)]
        return list(ids[: len(known)]) == known
