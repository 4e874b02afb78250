"""One choice of an answer, assembled from the core's actions."""

from dataclasses import dataclass
from typing import Any

from orchestrator.live.openai.intake import Extension
from orchestrator.live.openai.text import TextStream
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.state.actions import Emit, Finish, Summary
from orchestrator.state.events import Arrived
from workers.api.messages import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """A token's log-probabilities; `offset`: where its text begins in the answer's text."""

    id: int
    logprobs: TokenLogprobs
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a chunk carries: new text and the tokens it is made of (empty without logprobs)."""

    text: str
    entries: tuple[TokenEntry, ...]


class OutOfOrder(Exception):
    """The driver left a gap or repeated a token; the answer cannot be told truly."""


class Choice:
    """Text, logprobs and the extension's lists; the same however tokens were grouped."""

    def __init__(self, arrived: Arrived, vocabulary: Vocabulary) -> None:
        self._text = TextStream(vocabulary, arrived.stop_strings)
        self._stop_ids = frozenset(arrived.stop_ids)
        self.wants_logprobs = arrived.sampling.logprobs is not None
        self._waiting: list[TokenEntry] = []  # whose text is held back
        self._ids: list[int] = []
        self._margins: list[float] | None = []
        self.finish: Finish | None = None

    def text(self, emit: Emit) -> str:
        """The text that these tokens make certain, without logprobs. Raises OutOfOrder."""
        self._take(emit)
        return self._text.push(emit.ids)

    def emit(self, emit: Emit) -> Piece | None:
        """The same, with logprobs if they are wanted; None while no text is certain."""
        if not self.wants_logprobs:
            text = self.text(emit)
            return Piece(text=text, entries=()) if text else None
        self._take(emit)
        if emit.logprobs is None or len(emit.logprobs) != len(emit.ids):
            raise OutOfOrder("logprobs were asked for and did not come with the tokens")
        text = ""
        for id, logprobs in zip(emit.ids, emit.logprobs, strict=True):
            if id not in self._stop_ids:
                offset = self._text.length
                self._waiting.append(TokenEntry(id=id, logprobs=logprobs, offset=offset))
            text += self._text.push((id,))
        return self._piece(text) if text else None

    def end(self, finish: Finish) -> Piece | None:
        """The last piece: what was held back."""
        self.finish = finish
        text = self._text.finish()
        return self._piece(text) if text or self._waiting else None

    def _take(self, emit: Emit) -> None:
        if emit.start != len(self._ids):
            raise OutOfOrder(f"token {emit.start} came where {len(self._ids)} was expected")
        self._ids.extend(emit.ids)
        if emit.margins is None:
            self._margins = None
        elif self._margins is not None:
            self._margins.extend(emit.margins)

    def _piece(self, text: str) -> Piece:
        entries, self._waiting = tuple(self._waiting), []
        return Piece(text=text, entries=entries)

    @property
    def reason(self) -> str:
        """Why it ended, in OpenAI's words. Needs `finish`."""
        if self.finish is None:
            raise ValueError("the choice has not ended")
        return self.finish.reason

    @property
    def completion_tokens(self) -> int:
        """Accepted tokens, end-of-text included."""
        return len(self._ids)

    def extension(self, asked: Extension) -> dict[str, Any]:
        """The `pdd` object. Needs `finish`."""
        if self.finish is None:
            raise ValueError("the choice has not ended")
        told = _account(self.finish.summary)
        if asked.token_ids:
            told["token_ids"] = self._ids
        if asked.margins:
            told["margins"] = self._margins
        return told


def _account(summary: Summary) -> dict[str, Any]:
    return {
        "route": summary.route,
        "handoff": summary.handoff,
        "handoff_index": summary.handoff_index,
        "relay_tokens": summary.relay_tokens,
        "queue_s": summary.queue_s,
        "prefill_s": summary.prefill_s,
        "kv_transfer_s": summary.kv_transfer_s,
        "relay_s": summary.relay_s,
        "handoff_gap_s": summary.handoff_gap_s,
        "kv_bytes_raw": summary.kv_bytes_raw,
        "kv_bytes_wire": summary.kv_bytes_wire,
        "recoveries": summary.recoveries,
        "workers": summary.sites,
    }
