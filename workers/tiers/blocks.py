"""What is stored: KV of 16 canonical tokens under a key that says all of what it depends on.

A key is a *space* (model fingerprint and layout) and a *name* (the hash chain over cache salt and
tokens, `workers.kv.prefix`), so another model, layout, salt or earlier token is another key. Every
block has a checksum that covers its key too: its bytes under another key do not pass either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from workers.api.info import BYTES_PER_ELEMENT, Fingerprint
from workers.kv.prefix import CANONICAL_TOKENS, block_names

# Whoever changes how a block's bytes lie changes this text, and no old block is found any more.
LAYOUT = "1: [layer, k or v, token, head, channel], 16 tokens, little-endian"
SPACE_BYTES = 16
KEY_BYTES = 32


class Tier(StrEnum):
    """Where a store keeps a block."""

    MEMORY = "dram"
    FILES = "nvme"


class Block(NamedTuple):
    """Bytes with the checksum that their first owner gave them."""

    data: memoryview | bytes | bytearray
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """A model's blocks: the shape of their arrays, and the space their keys are in."""

    space: bytes
    shape: tuple[int, int, int, int, int]  # layers, 2, tokens, kv_heads, head_size
    dtype: np.dtype[np.unsignedinteger]

    @classmethod
    def of(cls, fingerprint: Fingerprint, layout: str = LAYOUT) -> "BlockForm":
        digest = blake2b(digest_size=SPACE_BYTES, person=b"pdd-kv-space")
        for text in (fingerprint.canonical, layout):
            digest.update(len(text.encode()).to_bytes(8, "little"))
            digest.update(text.encode())
        f = fingerprint
        return cls(
            space=digest.digest(),
            shape=(f.layers, 2, CANONICAL_TOKENS, f.kv_heads, f.head_size),
            dtype=np.dtype(f"<u{BYTES_PER_ELEMENT[f.kv_dtype]}"),
        )

    @property
    def nbytes(self) -> int:
        """Of one block."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def keys(self, tokens: Sequence[int], cache_salt: str) -> list[bytes]:
        """The keys of all whole blocks of `tokens`, which begin a sequence."""
        return [self.space + name for name in block_names("", cache_salt, tokens)]


def checksum(key: bytes, data: memoryview | bytes | bytearray) -> int:
    """CRC-32 of the key and the bytes."""
    return zlib_ng.crc32(data, zlib_ng.crc32(key))
