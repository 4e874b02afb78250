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
_BLOCK_BYTES = 4 * CANONICAL_TOKENS


@lru_cache(maxsize=1024)
def root_key(fingerprint: str, cache_salt: str) -> bytes:
    """The parent of a first canonical block."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"pdd-kv-root")
    for text in (fingerprint, cache_salt):
        raw = text.encode()
        digest.update(struct.pack("<Q", len(raw)))
        digest.update(raw)
    return digest.digest()


def block_names(
    fingerprint: str, cache_salt: str, tokens: Sequence[int], known: Sequence[bytes] = ()
) -> tuple[bytes, ...]:
    """The names of all whole canonical blocks of `tokens`.

    `known` are those of the first blocks, and are not computed again.
    """
    chain = list(known)
    extend_chain(chain, root_key(fingerprint, cache_salt), tokens, len(tokens))
    return tuple(chain)


def extend_chain(chain: list[bytes], root: bytes, tokens: Sequence[int], count: int) -> None:
    """Append to `chain` the names of the canonical blocks of `tokens[:count]` it lacks."""
    begun, end = len(chain) * CANONICAL_TOKENS, count // CANONICAL_TOKENS * CANONICAL_TOKENS
    if begun >= end:
        return
    words = struct.pack(f"<{end - begun}I", *tokens[begun:end])
    parent = chain[-1] if chain else root
    for at in range(0, len(words), _BLOCK_BYTES):
        block = words[at : at + _BLOCK_BYTES]
        parent = blake2b(parent + block, digest_size=_DIGEST_BYTES).digest()
        chain.append(parent)
