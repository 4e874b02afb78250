"""How a slice is coded for the wire: one table of named, versioned codecs.

Both ends look a codec up in CODECS; a name or a version that the receiver does not have breaks
the stream, it never guesses.
"""

import numpy as np

from transport.base import Slice, SliceKey, StreamId
from transport.codecs.codec import Codec, CodecError
from transport.codecs.exact import RAW, ZSTD, as_they_are
from transport.codecs.huffman import HUFFMAN
from transport.codecs.lossy import INT4, INT8, INT8_ZSTD, K8V4
from transport.stream.frames import MAX_BODY_BYTES, Data, expand_runs, runs_of

CODECS: dict[str, Codec] = {
    "raw": RAW,
    "zstd": ZSTD,
    "huffman": HUFFMAN,
    "int8": INT8,
    "int8+zstd": INT8_ZSTD,
    "k8v4": K8V4,
    "int4": INT4,
}
_ANY_WIDTH = "zstd"  # what codes a piece that is not bfloat16, whatever was asked for
_DTYPES: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def encode_slice(stream: StreamId, piece: Slice, codec: str) -> Data:
    """A frame of `piece`, whose data must not change as long as it is held. Raises ValueError.

    A codec for bfloat16 leaves other widths to zstd, and a piece that it cannot make smaller to
    raw: the frame names the codec that was used. Callable from several threads, which run side by
    side.
    """
    tokens, heads, size = piece.data.shape
    if tokens > piece.key.stop - piece.key.start or len(piece.positions) != tokens:
        raise ValueError(f"{piece.key}: data of {tokens} tokens, {len(piece.positions)} positions")
    if piece.data.nbytes > MAX_BODY_BYTES:
        raise ValueError(f"{piece.key}: {piece.data.nbytes} bytes in one piece")
    dtype = _DTYPES.get(piece.data.dtype.itemsize)
    if dtype is None or piece.data.dtype.kind != "u":
        raise ValueError(f"{piece.key}: {piece.data.dtype}, must be bits as uint8, 16 or 32")
    bits = piece.data
    if not (bits.flags.c_contiguous and bits.flags.aligned and bits.dtype == dtype):
        bits = np.require(bits, dtype, ["C", "A"])
    name = codec
    if CODECS[name].bfloat16_only and dtype.itemsize != 2:
        name = _ANY_WIDTH
    body = CODECS[name].encode(bits, piece.key) if bits.size else None
    if body is None or len(body) > bits.nbytes:
        name, body = "raw", as_they_are(bits)
    return Data(
        stream=stream,
        key=piece.key,
        heads=(0, heads),
        head_size=size,
        itemsize=dtype.itemsize,
        positions=runs_of(piece.positions),
        codec=name,
        codec_version=CODECS[name].version,
        body=body,
    )


def decode_slice(frame: Data) -> Slice:
    """What was encoded: exactly, or as its codec rounds. Raises CodecError.

    Allocates no more than a few times `frame.raw_bytes`, whatever the body says. The slice may
    lie in the body. Callable from several threads, which run side by side.
    """
    chosen = CODECS.get(frame.codec)
    if chosen is None:
        raise CodecError(f"codec {frame.codec!r} is not known here, only {', '.join(CODECS)}")
    if chosen.version != frame.codec_version:
        raise CodecError(
            f"codec {frame.codec} version {frame.codec_version} there, {chosen.version} here"
        )
    if frame.heads[0] != 0:
        raise CodecError(f"heads {frame.heads}: only whole token rows are taken")
    if chosen.bfloat16_only and frame.itemsize != 2:
        raise CodecError(f"codec {frame.codec} is for bfloat16, not {frame.itemsize} bytes")
    if not frame.raw_bytes and frame.codec != "raw":
        raise CodecError(f"codec {frame.codec} of an empty piece")
    data = chosen.decode(frame.body, frame.key, frame.shape, _DTYPES[frame.itemsize])
    return Slice(key=SliceKey(*frame.key), positions=expand_runs(frame.positions), data=data)
