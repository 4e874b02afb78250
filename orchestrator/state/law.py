"""The law of one request: its accepted output tokens, which never change."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import TokenLogprobs


@dataclass(slots=True)
class Law:
    """Accepted output ids with the history hash before each index.

    `histories` has one more entry than `ids`: histories[i] covers ids[:i].
    """

    ids: list[int] = field(default_factory=list)
    histories: list[int] = field(default_factory=lambda: [EMPTY_HISTORY])
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
        margins: Sequence[float] | None,
    ) -> None:
        """Accept `ids` at the end, with what was reported about each."""
        for token in ids:
            self.histories.append(extend_history(self.histories[-1], (token,)))
        self.ids.extend(ids)
        self.logprobs.extend(logprobs if logprobs is not None else [None] * len(ids))
        self.margins.extend(margins if margins is not None else [None] * len(ids))

    def agrees(self, index: int, history: int, ids: Sequence[int]) -> bool:
        """Whether a run that starts at `index` <= len(self) tells the law's own story so far."""
        if self.histories[index] != history:
            return False
        known = self.ids[index : index + len(ids)]
        return list(ids[: len(known)]) == known
