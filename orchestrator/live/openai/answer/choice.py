"""One choice of an answer, assembled from the core's actions."""

from dataclasses import dataclass
from typing import Any

from orchestrator.live.openai.intake import Extension
from orchestrator.live.openai.text import TextStream
from orchestrator.live.openai.tools.calls import CallDelta, CallReader
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.state.actions import Emit, Finish, FinishReason, Summary
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
    """What a chunk carries: new text and calls, the tokens made of (empty without logprobs)."""

    text: str
    calls: tuple[CallDelta, ...] = ()
    entries: tuple[TokenEntry, ...] = ()


class OutOfOrder(Exception):
    """The driver left a gap or repeated a token; the answer cannot be told truly."""


class Choice:
    """Text, logprobs and the extension's lists; the same however tokens were grouped.

    `reads_calls`: tool calls are told from text. `echo` stands before the text.
    """

    def __init__(
        self, arrived: Arrived, vocabulary: Vocabulary, *, reads_calls: bool, echo: str
    ) -> None:
        self._text = TextStream(vocabulary, arrived.stop_strings)
        self._calls = CallReader(arrived.request) if reads_calls else None
        self._echo = echo  # until it is told
        self._stop_ids = frozenset(arrived.stop_ids)
        self.wants_logprobs = arrived.sampling.logprobs is not None
        self.plain = not self.wants_logprobs and not reads_calls  # nothing but text to tell
        self._waiting: list[TokenEntry] = []  # whose text is held back
        self._ids: list[int] = []
        self._margins: list[float] | None = []
        self.finish: Finish | None = None

    def text(self, emit: Emit) -> str:
        """The text that these tokens make certain, without logprobs. Raises OutOfOrder."""
        self._take(emit)
        text = self._text.push(emit.ids)
        if self._echo:
            text, self._echo = self._echo + text, ""
        return text

    def emit(self, emit: Emit) -> Piece | None:
        """The same, with calls and logprobs if they are wanted; None while nothing is certain."""
        if not self.wants_logprobs:
            return self._piece(self.text(emit))
        self._take(emit)
        if emit.logprobs is None or len(emit.logprobs) != len(emit.ids):
            raise OutOfOrder("logprobs were asked for and did not come with the tokens")
        text = ""
        for id, logprobs in zip(emit.ids, emit.logprobs, strict=True):
            if id not in self._stop_ids:
                offset = self._text.length
                self._waiting.append(TokenEntry(id=id, logprobs=logprobs, offset=offset))
            text += self._text.push((id,))
        return self._piece(text)

    def end(self, finish: Finish) -> Piece | None:
        """The last piece: what was held back."""
        self.finish = finish
        text, self._echo = self._echo + self._text.finish(), ""
        calls: tuple[CallDelta, ...] = ()
        if self._calls is not None:
            said, rest = self._calls.push(text), self._calls.finish()
            text, calls = said.text + rest.text, said.calls + rest.calls
        if text or calls or self._waiting:
            return self._told(text, calls)
        return None

    def _take(self, emit: Emit) -> None:
        if emit.start != len(self._ids):
            raise OutOfOrder(f"token {emit.start} came where {len(self._ids)} was expected")
        self._ids.extend(emit.ids)
        if emit.margins is None:
            self._margins = None
        elif self._margins is not None:
            self._margins.extend(emit.margins)

    def _piece(self, text: str) -> Piece | None:
        calls: tuple[CallDelta, ...] = ()
        if self._calls is not None:
            text, calls = self._calls.push(text)
        return self._told(text, calls) if text or calls else None

    def _told(self, text: str, calls: tuple[CallDelta, ...]) -> Piece:
        entries, self._waiting = tuple(self._waiting), []
        return Piece(text=text, calls=calls, entries=entries)

    @property
    def reason(self) -> str:
        """Why it ended, in OpenAI's words. Needs `finish`."""
        if self.finish is None:
            raise ValueError("the choice has not ended")
        if (
            self._calls is not None
            and self._calls.count
            and self.finish.reason is FinishReason.STOP
        ):
            return "tool_calls"
        return self.finish.reason

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, how many did not have to be computed. Needs `finish`."""
        if self.finish is None:
            raise ValueError("the choice has not ended")
        return self.finish.summary.cached_tokens

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
