"""Names of KV content: a hash chain over canonical blocks of 16 tokens.

A name is the same in every process and on every machine, whatever the pool's block size, and
differs as soon as the model, the cache salt or any earlier token differs.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

CANONICAL_TOKENS = 16
_DIGEST_BYTES = 16
_IDS = struct.Struct(f"<{CANONICAL_TOKENS}I")


@lru_cache(maxsize=1024)
def root_key(fingerprint: str, cache_salt: str) -> bytes:
    """The parent of a first canonical block."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"pdd-kv-root")
    for text in (fingerprint, cache_salt):
        raw = text.encode()
        digest.update(struct.pack("<Q", len(raw)))
        digest.update(raw)
    return digest.digest()


def next_key(parent: bytes, ids: Sequence[int]) -> bytes:
    """The name of the canonical block `ids` (16 token ids) after `parent`."""
    return blake2b(parent + _IDS.pack(*ids), digest_size=_DIGEST_BYTES).digest()


def block_names(fingerprint: str, cache_salt: str, tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The names of all whole canonical blocks of `tokens`."""
    chain: list[bytes] = []
    extend_chain(chain, root_key(fingerprint, cache_salt), tokens, len(tokens))
    return tuple(chain)


def extend_chain(chain: list[bytes], root: bytes, tokens: Sequence[int], count: int) -> None:
    """Append to `chain` the names of the canonical blocks of `tokens[:count]` it lacks."""
    for block in range(len(chain), count // CANONICAL_TOKENS):
        start = block * CANONICAL_TOKENS
        parent = chain[-1] if chain else root
        chain.append(next_key(parent, tokens[start : start + CANONICAL_TOKENS]))
