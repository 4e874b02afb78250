"""Token ids to text and back, on a fast tokenizer's Rust core.

The transformers wrapper is passed by on purpose: it changes the shared core's truncation on every
call, which is not safe from two threads, and may "clean up" spaces, which no stream can undo.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from orchestrator.live.openai.service import Tokenizer


class TokenName(NamedTuple):
    """How logprobs name a token: printable text, unique per byte string, and the bytes."""

    text: str
    bytes: bytes


class Vocabulary:
    """Made once per tokenizer and shared by every request; holds no request's state.

    `stop_ids`, the model's end-of-text tokens, are no text, whether special or not.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Collection[int] = ()) -> None:
        self._core = tokenizer.backend_tokenizer
        self._core.no_truncation()
        self._core.no_padding()
        added = self._core.get_added_tokens_decoder()
        special = {id for id, token in added.items() if token.special}
        self._silent = frozenset(special.union(stop_ids))
        state = self._core.decoder.__getstate__() if self._core.decoder is not None else b"null"
        decoder = json.loads(state)
        self._decoders = frozenset(_types(decoder))
        self._names: dict[int, TokenName] = {}
        self._parts: dict[int, bytes] = {}
        self.wholes: Mapping[int, str | None] = _Wholes(self)
        # Whether a text is nothing but its tokens' bytes, one after the other.
        self.joins_bytes = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of `text`; never truncated."""
        return tuple(self._core.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens and ids the vocabulary does not know."""
        return self._core.decode(ids, skip_special_tokens=True)

    def spell(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens in their own words."""
        return self._core.decode(ids, skip_special_tokens=False)

    def token(self, id: int) -> str:
        """The token as the vocabulary writes it; empty for an id that it does not know."""
        return self._core.id_to_token(id) or ""

    def has_text(self, id: int) -> bool:
        """Whether the token is part of an answer's text at all."""
        return id not in self._silent and self._core.id_to_token(id) is not None

    def is_byte(self, id: int) -> bool:
        """Whether the token is one byte of a run that only decodes as a whole (byte fallback)."""
        if "ByteFallback" not in self._decoders:
            return False
        return _fallback_byte(self._core.id_to_token(id)) is not None

    def part(self, id: int) -> bytes:
        """The token's bytes in a text; empty when it has none. Needs `joins_bytes`."""
        found = self._parts.get(id)
        if found is None:
            found = self._parts[id] = self._bytes(id) if self.has_text(id) else b""
        return found

    def name(self, id: int) -> TokenName:
        """The token on its own. Bytes that are no whole characters read `bytes:\\x..`."""
        found = self._names.get(id)
        if found is None:
            raw = self._bytes(id)
            try:
                found = TokenName(raw.decode(), raw)
            except UnicodeDecodeError:
                found = TokenName("bytes:" + "".join(f"\\x{b:02x}" for b in raw), raw)
            self._names[id] = found
        return found

    def _bytes(self, id: int) -> bytes:
        token = self._core.id_to_token(id)
        if token is None:
            return b""
        if "ByteFallback" in self._decoders:
            byte = _fallback_byte(token)
            if byte is not None:
                return byte
        if "ByteLevel" in self._decoders and all(c in self._byte_of for c in token):
            return bytes(self._byte_of[c] for c in token)
        # Decoders treat the first token apart (they drop its space), so look at the second.
        once = self._core.decode([id], skip_special_tokens=False)
        return self._core.decode([id, id], skip_special_tokens=False)[len(once) :].encode()

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        """GPT-2's printable stand-in for each byte, read backwards."""
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        table = {chr(b): b for b in plain}
        others = (b for b in range(256) if chr(b) not in table)
        return table | {chr(0x100 + i): b for i, b in enumerate(list(others))}


class _Wholes(dict[int, str | None]):
    """A token's text where its bytes are whole characters; None: they are not. See `part`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __missing__(self, id: int) -> str | None:
        try:
            found: str | None = self._vocabulary.part(id).decode()
        except UnicodeDecodeError:
            found = None
        self[id] = found
        return found


def _types(state: Any) -> set[str]:
    """Every decoder's type name in a decoder's JSON, nested ones included."""
    if isinstance(state, dict):
        inner = set().union(*(_types(v) for v in state.values()))
        return inner | ({state["type"]} if isinstance(state.get("type"), str) else set())
    if isinstance(state, list):
        return set().union(*(_types(v) for v in state))
    return set()


def _fallback_byte(token: str | None) -> bytes | None:
    if token is None or len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    try:
        return bytes.fromhex(token[3:5])
    except ValueError:
        return None
