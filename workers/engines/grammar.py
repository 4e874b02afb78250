"""What a grammar allows after the tokens so far: the one place that every engine asks.

A grammar is llguidance's own text (Lark, or JSON that holds one). Its state is a pure function of
the grammar and the output tokens, so it travels from leg to leg as these tokens do.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from workers.engines.base import GrammarLost, GrammarRefused

_KEPT = 64  # compiled grammars; clients repeat theirs
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class Constraint:
    """One sequence's place in its grammar; it goes forward with the tokens and back with a cut."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._stop_ids = list(stop_ids)
        self._followed = 0  # output tokens that the matcher has taken in

    def cut(self, length: int) -> None:
        """Every output token from index `length` on is taken back."""
        if length < self._followed:
            self._matcher.rollback(self._followed - length)
            self._followed = length

    def allowed(self, outputs: Sequence[int], start: int) -> np.ndarray:
        """Which ids may come next, [vocab] bool, never none; `outputs[start:]` are the output ids.

        Where the grammar is at its end the text ends: only the stop ids are left. Raises
        GrammarLost where it cannot be followed any further: a limit, or no token fits.
        """
        ended = self._follow(outputs, start + self._followed)
        if not ended and not self._matcher.is_stopped():
            words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mask = np.unpackbits(words, count=self._vocab_size, bitorder="little").view(bool)
            # In error it allows the end, as if the text were one.
            if mask.any() and not self._matcher.is_error():
                return mask
        if self._matcher.is_error() or not (ended or self._matcher.is_accepting()):
            raise GrammarLost(self._why_lost())
        mask = np.zeros(self._vocab_size, dtype=bool)
        mask[self._stop_ids] = True
        return mask

    def _why_lost(self) -> str:
        told = self._matcher.get_error().split("\n")[0] or "no token fits"
        return f"the grammar cannot be followed after {self._followed} tokens: {told}"

    def _follow(self, ids: Sequence[int], start: int) -> bool:
        """Take in `ids[start:]` up to a stop id; True: there was one.

        The matcher never sees a stop id: it could not be rolled back over one. A token that it
        does not take is an error of its own from then on.
        """
        for at in range(start, len(ids)):
            if ids[at] in self._stop_ids:
                return True
            if not self._matcher.consume_token(ids[at]):
                return False
            self._followed += 1
        return False


class Grammars:
    """Grammars over one model's tokenizer, which is read when the first one comes (a second)."""

    def __init__(self, tokenizer: Path | None, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = tuple(stop_ids)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def constraint(self, grammar: str) -> Constraint:
        """The beginning of `grammar`. Raises GrammarRefused."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._read(), grammar, log_level=0, limits=LIMITS)
            if matcher.is_error():
                raise GrammarRefused(f"the grammar is not understood: {matcher.get_error()}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return Constraint(matcher.deep_copy(), self._vocab_size, self._stop_ids)

    def _read(self) -> LLTokenizer:
        if self._path is None or not self._stop_ids:
            raise GrammarRefused("this model takes no grammar: it has no tokenizer or no end")
        try:
            return _tokenizer(self._path, self._vocab_size, self._stop_ids)
        except (OSError, ValueError) as error:
            raise GrammarRefused(f"this model takes no grammar: {error}") from error


@lru_cache(maxsize=4)
def _tokenizer(path: Path, vocab_size: int, stop_ids: tuple[int, ...]) -> LLTokenizer:
    return LLTokenizer(path.read_text(), n_vocab=vocab_size, eos_token=[*stop_ids])
