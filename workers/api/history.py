"""The hash chain that says after which output tokens a token was sampled."""

import struct
import zlib
from collections.abc import Sequence

EMPTY_HISTORY = 0


def extend_history(history: int, ids: Sequence[int]) -> int:
    """CRC-32 chain over `ids` as little-endian 32-bit words, continued from `history`."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids), history)
