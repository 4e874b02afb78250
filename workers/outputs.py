"""What a worker's pure core asks its server to do."""

from dataclasses import dataclass
from typing import NamedTuple

from transport.base import StreamId
from workers.api.messages import UpMessage
from workers.engines.base import SeqId


class Up(NamedTuple):
    """Send a message up the token stream of one gateway; None: of every gateway."""

    gateway: str | None
    message: UpMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Send KV of `seq` for tokens [start, stop) to the worker at `address`, as it is computed."""

    stream: StreamId
    seq: SeqId
    address: str
    start: int
    stop: int
    codec: str
    weight: float  # above 0, see `SendKV`
    cache_salt: str
    blocks: tuple[bytes, ...]  # names of the content of tokens [0, stop), see workers.kv.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream:
    """End a stream this worker sends: its source or its target is gone."""

    stream: StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropImport:
    """Refuse what still arrives of a stream this worker receives."""

    stream: StreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBlocks:
    """Put blocks of the site's stores into a leg's open import, as far as that pays.

    `tokens` begin the sequence; the first `have` are here. What the others cost otherwise: prefill
    at `prefill_tokens_per_s` (None: not known), or being sent, if `sent_otherwise`.
    """

    seq: SeqId
    tokens: tuple[int, ...]
    cache_salt: str
    have: int
    prefill_tokens_per_s: float | None
    sent_otherwise: bool
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveBlocks:
    """Give the site's store what it lacks of these tokens' blocks; the engine's cache has them."""

    tokens: tuple[int, ...]
    cache_salt: str
    tenant: str


Output = Up | OpenStream | CloseStream | DropImport | LoadBlocks | SaveBlocks
