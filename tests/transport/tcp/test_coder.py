"""How many cores coding may count on, and pieces that no frame takes."""

import asyncio

import numpy as np
import pytest

from transport.base import Slice, SliceKey, StreamId
from transport.tcp.coder import Coder, FreeCores


def test_what_idles_is_free_and_what_coding_uses_itself() -> None:
    busy = iter((0.3, 0.75, 1.0, 0.0, 1.0))
    cores = FreeCores(4, lambda: next(busy), 100.0)
    assert cores.look(100.9) == 4, "the first answer is of the time before"
    assert cores.look(101.0) == 1.0
    assert cores.look(101.9) == 1.0, "asked too soon"
    cores.coded(1.5)
    cores.coded(1.5)
    assert cores.look(103.0) == 1.5, "all are busy, by us for 3 of 2 seconds"
    cores.coded(4.0)
    assert cores.look(104.0) == 4, "there are no more"
    assert cores.look(105.0) == 0, "what was coded before counts once"


def test_a_piece_that_no_frame_takes_is_its_callers_mistake() -> None:
    async def code(positions: np.ndarray) -> None:
        piece = Slice(
            key=SliceKey(0, "k", 0, len(positions)),
            positions=positions,
            data=np.zeros((len(positions), 1, 1), np.uint16),
        )
        data = await coder.code(StreamId("r", 0, 1), piece, "raw", None)
        assert data.body_crc is not None

    coder = Coder()
    try:
        asyncio.run(code(np.arange(3, dtype=np.int32)))
        scattered = np.arange(0, 40_000, 2, dtype=np.int32)
        with pytest.raises(ValueError, match="DATA head of"):
            asyncio.run(code(scattered))
    finally:
        coder.close()
