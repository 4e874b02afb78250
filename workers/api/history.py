"""The hash chain that says after which output tokens a token was sampled."""

import sys
import zlib
from array import array
from collections.abc import Sequence

EMPTY_HISTORY = 0


def extend_history(history: int, ids: Sequence[int]) -> int:
    """CRC-32 chain over `ids` as little-endian 32-bit words, continued from `history`."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return zlib.crc32(words, history)
