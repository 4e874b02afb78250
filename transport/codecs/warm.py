"""Compile what the codecs need, or load it from the cache: seconds no first request should pay.

`python -m transport.codecs.warm` does it once for a machine.
"""

import numpy as np

from transport.base import Slice, SliceKey, StreamId
from transport.codecs.table import CODECS, decode_slice, encode_slice

_TOKENS, _HEADS, _SIZE = 64, 2, 64


def warm() -> None:
    """Code and decode a little of each kind."""
    values = np.random.default_rng(0).standard_normal((_TOKENS, _HEADS, _SIZE), np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    for codec in CODECS:
        for part in "kv":
            piece = Slice(
                key=SliceKey(0, part, 0, _TOKENS),
                positions=np.arange(_TOKENS, dtype=np.int32),
                data=bits,
            )
            decode_slice(encode_slice(StreamId("warm", 0, 1), piece, codec))


if __name__ == "__main__":
    warm()
