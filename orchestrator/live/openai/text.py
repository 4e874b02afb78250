"""Incremental text of a token stream, and stop strings in it.

Everything works token by token, so no result depends on how tokens were grouped on their way.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Protocol

from orchestrator.live.openai.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
WINDOW = 8  # tokens decoded again per token before the window is cut
DIRTY_WINDOW = 64  # the same while the text never comes to a whole character


_Utf8 = getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Pieces of text whose concatenation is the decoding of all tokens at once.

    A piece is given when no later token can change it: never half a character.
    """

    @property
    def length(self) -> int:
        """Characters given."""

    def push(self, id: int) -> str:
        """The text that `id` makes certain."""

    def finish(self) -> str:
        """What was held back: bytes that never became a character."""


def detokenizer(vocabulary: Vocabulary) -> Detokenizer:
    """The cheapest that is exact for the vocabulary's decoder."""
    joins = vocabulary.joins_bytes
    return ByteDetokenizer(vocabulary) if joins else WindowDetokenizer(vocabulary)


class ByteDetokenizer:
    """For vocabularies whose tokens are bytes (byte-level BPE): no token is decoded twice."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._part = vocabulary.part
        self._wholes = vocabulary.wholes
        self._decoder = _Utf8(errors="replace")
        self._between = True  # characters: no byte waits for others
        self.length = 0

    def push(self, id: int) -> str:
        piece = self._wholes[id] if self._between else None
        if piece is None:
            piece = self._decoder.decode(self._part(id))
            self._between = not self._decoder.getstate()[0]
        self.length += len(piece)
        return piece

    def finish(self) -> str:
        piece = self._decoder.decode(b"", True)
        self.length += len(piece)
        return piece


class WindowDetokenizer:
    """For any decoder: the last few tokens are decoded again with each new one.

    Where bytes are spelled as tokens (byte fallback) a run of them decodes as a whole, so it
    waits for its end.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._window: list[int] = []  # begins where a character begins, and never with the
        self._given = 0  # characters of the window's text already given
        self._mark = 0  # tokens of the window up to its last whole character
        self.length = 0  # characters given

    def push(self, id: int) -> str:
        if not self._vocabulary.has_text(id):
            return ""
        self._window.append(id)
        if self._vocabulary.is_byte(id):
            return ""
        text = self._vocabulary.decode(self._window)
        whole = not text.endswith(REPLACEMENT)  # at most the last one can still become something
        stable = len(text) if whole else len(text) - 1
        piece = text[self._given : stable]
        self._given = max(self._given, stable)
        self.length += len(piece)
        if whole:
            if len(self._window) >= WINDOW:
                self._cut(text, self._mark)
            self._mark = len(self._window)
        elif len(self._window) >= DIRTY_WINDOW:
            self._cut(text, len(self._window) - 2 * WINDOW)
        return piece

    def finish(self) -> str:
        piece = self._vocabulary.decode(self._window)[self._given :]
        self._given += len(piece)
        self.length += len(piece)
        return piece

    def _cut(self, text: str, start: int) -> None:
        """Let the window begin at token `start`; UTF-8 finds its feet again within 3 bytes."""
        tail = self._vocabulary.decode(self._window[start:])
        # The first token of a window may lose its space: some text must stand before what is new.
        given = len(tail) - (len(text) - self._given)
        if given > 0:
            del self._window[:start]
            self._given = given
            self._mark = 0


class StopMatcher:
    """Finds the stop string that is complete first, the longest if several end together.

    Knuth, Morris and Pratt's automaton per string: linear, and the text that could still become
    part of a match is exactly the longest prefix reached.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._fail = [_failure_table(stop) for stop in self._stops]
        self._reached = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The part of the text so far that is certain to stand before every match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for at in range(len(self._held), len(buffer)):
            for i, stop in enumerate(self._stops):
                if self._step(i, buffer[at]) == len(stop):
                    self.matched = stop
                    self._held = ""
                    return buffer[: at + 1 - len(stop)]
        certain = len(buffer) - max(self._reached)
        self._held = buffer[certain:]
        return buffer[:certain]

    def finish(self) -> str:
        """The held text, which became no match after all."""
        held, self._held = self._held, ""
        return held

    def _step(self, i: int, char: str) -> int:
        stop, fail, k = self._stops[i], self._fail[i], self._reached[i]
        while k and stop[k] != char:
            k = fail[k - 1]
        if stop[k] == char:
            k += 1
        self._reached[i] = k
        return k


def _failure_table(stop: str) -> list[int]:
    """Length of the longest proper prefix of stop[:i+1] that is also its suffix, for every i."""
    fail = [0] * len(stop)
    k = 0
    for i in range(1, len(stop)):
        while k and stop[k] != stop[i]:
            k = fail[k - 1]
        if stop[k] == stop[i]:
            k += 1
        fail[i] = k
    return fail


class TextStream:
    """One choice's text, cut before the first stop string.

    What is held back until the end (`finish`) cannot complete a stop string.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = ()) -> None:
        self._text = detokenizer(vocabulary)
        self._matcher = StopMatcher(stops)
        self._watches = bool(stops)

    @property
    def stopped_at(self) -> str | None:
        """The stop string that was found."""
        return self._matcher.matched

    @property
    def length(self) -> int:
        """Characters of text so far that no later token can change, held ones included."""
        return self._text.length

    def push(self, ids: Sequence[int]) -> str:
        """The text that may be given out once `ids` are accepted."""
        if not self._watches:
            if len(ids) == 1:
                return self._text.push(ids[0])
            return "".join([self._text.push(id) for id in ids])
        pieces = []
        for id in ids:
            if self.stopped_at is not None:
                break
            pieces.append(self._matcher.push(self._text.push(id)))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest of the text; empty after a stop string."""
        if self.stopped_at is not None:
            return ""
        return self._matcher.finish() + self._text.finish()


class StopWatch:
    """Tells the core after which token a stop string is complete; agrees with `TextStream`."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._stream = TextStream(vocabulary, stops)
        self._tokens = 0
        self.matched: str | None = None

    def push(self, ids: Sequence[int]) -> int | None:
        """Of all tokens ever pushed, how many may be accepted: up to the one that completes a
        stop string. None while there is no match."""
        for id in ids:
            if self.matched is not None:
                break
            self._stream.push((id,))
            self._tokens += 1
            self.matched = self._stream.stopped_at
        return self._tokens if self.matched is not None else None
