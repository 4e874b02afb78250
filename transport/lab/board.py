"""The memory that the lab and its shuttle share: the line's values, and what was counted.

Every cell is one aligned 8-byte word with one writer, so neither side ever waits for the other.
"""

import mmap
import os

import numpy as np

from transport.lab.line import DirectionStats, LabLine

# The line's values: written by the lab, float64.
DELAY_S, RATE, LOSS, JITTER_S, LIMIT_BYTES, MEMORY_BYTES, IS_CUT, STOP = range(8)
VALUES = 8
# The counters of each direction: written by the shuttle, int64.
PACKETS, NBYTES, LOST, NO_ROOM, CUT, REFUSED, QUEUE_BYTES = range(7)

COUNTERS = 7
DIRECTIONS = 2  # 0: near to far, 1: far to near
_COUNTERS_AT = VALUES * 8
_NBYTES = _COUNTERS_AT + DIRECTIONS * COUNTERS * 8

# Address space of one direction's ring; pages that no packet ever touched take no memory.
RING_BYTES = 512 << 20
# Packets are kept somewhat longer than they fly when the shuttle waits for a core.
_SPARE = 2
_SPARE_BYTES = 8 << 20


class Board:
    """The shared memory of one lab. `values`: float64 [8]; `counters`: int64 [2, 7]."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _NBYTES)
        self.values = np.frombuffer(self._map, np.float64, VALUES)
        self.counters = np.frombuffer(
            self._map, np.int64, DIRECTIONS * COUNTERS, offset=_COUNTERS_AT
        ).reshape(DIRECTIONS, COUNTERS)

    @staticmethod
    def create() -> int:
        """A descriptor of fresh shared memory, all zeros."""
        fd = os.memfd_create("pdd-lab")
        os.ftruncate(fd, _NBYTES)
        return fd

    def stats(self, direction: int) -> DirectionStats:
        counted = [int(count) for count in self.counters[direction]]
        return DirectionStats(
            packets=counted[PACKETS],
            nbytes=counted[NBYTES],
            lost=counted[LOST],
            no_room=counted[NO_ROOM],
            cut=counted[CUT],
            refused=counted[REFUSED],
            queue_bytes=counted[QUEUE_BYTES],
        )


def write_line(values: np.ndarray, line: LabLine) -> None:
    """The line's values from now on; `values`: a board's, float64 [8]."""
    values[DELAY_S] = line.delay_s
    values[RATE] = line.rate_bytes_per_s
    values[LOSS] = line.loss
    values[JITTER_S] = line.jitter_s
    values[LIMIT_BYTES] = line.queue_limit_bytes
    values[MEMORY_BYTES] = memory_bytes(line)


def memory_bytes(line: LabLine) -> int:
    """Room for the packets of one direction."""
    return line.under_way_bytes * _SPARE + _SPARE_BYTES
