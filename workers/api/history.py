"""The hash chain that says after which output tokens a token was sampled."""

import sys
import zlib
from array import array
from collections.abc import Sequence

EMPTY_HISTORY = 0


def extend_history(history: int, ids: Sequence[int]) -> int:
    """CRC-32 chain over `ids` as little-endian 32-bit words, continued from `history`."""
    if len(ids) == 1:  # what is asked for with each token, in a third of the time
        return zlib.crc32(ids[0].to_bytes(4, "little"), history)
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return zlib.crc32(words, history)
