"""The loop that carries packets between two devices, compiled: no Python per packet.

A direction keeps its packets in a ring of bytes, read into once and written from once. While
packets come the loop looks every 0.1 ms rather than at each of them, which costs far less
processor time and moves a packet by no more than that; otherwise it sleeps until one comes.
"""

from typing import Any

import numba
import numpy as np
from numba.core import types

from transport.lab.board import (
    CUT,
    DIRECTIONS,
    IS_CUT,
    LOST,
    MEMORY_BYTES,
    NBYTES,
    NO_ROOM,
    PACKETS,
    QUEUE_BYTES,
    REFUSED,
    RING_BYTES,
    STOP,
)
from transport.lab.packets import (
    MAX_HEADERS_BYTES,
    MAX_RECORD_BYTES,
    VNET_BYTES,
    extract,
    segments,
)
from transport.lab.queue import LOST as IS_LOST
from transport.lab.queue import PASSED, admit, drain

RECORDS = 1 << 18  # of one direction at a time

_TICK_S = 1e-4
_BUSY_S = 2e-3  # how long after the last packet the loop still looks every tick
_IDLE_S = 0.1  # how late a sleeping loop sees STOP
_BATCH = 256  # reads of one direction before the other gets its turn

_CLOCK_MONOTONIC = np.int32(1)
_POLLIN = 1

# A direction's places: bytes [head, ...) are free; records [first, first + count) are held.
HEAD, FIRST, COUNT = range(3)

# The C library's, found by name when the loop is loaded; unlike ctypes' they can be cached.
_read: Any = types.ExternalFunction("read", types.intp(types.int32, types.uintp, types.uintp))
_write: Any = types.ExternalFunction("write", types.intp(types.int32, types.uintp, types.uintp))
_ppoll: Any = types.ExternalFunction(
    "ppoll", types.int32(types.uintp, types.uintp, types.uintp, types.uintp)
)
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


@numba.njit(cache=True, nogil=True)
def _now(timespec):  # type: ignore[no-untyped-def]
    _clock_gettime(_CLOCK_MONOTONIC, timespec.ctypes.data)
    return timespec[0] + timespec[1] * 1e-9


@numba.njit(cache=True, nogil=True)
def _sleep(polls, count, timespec, seconds):  # type: ignore[no-untyped-def]
    """Until one of the first `count` descriptors can be read, at most `seconds`."""
    timespec[0] = int(seconds)
    timespec[1] = int((seconds - int(seconds)) * 1e9)
    _ppoll(polls.ctypes.data, count, timespec.ctypes.data, 0)


@numba.njit(cache=True, nogil=True)
def place(places, starts, limit):  # type: ignore[no-untyped-def]
    """Where the next record can be read to, or -1 while the ring is full."""
    head = places[HEAD]
    if places[COUNT] == 0:
        return 0
    if places[COUNT] >= starts.size:
        return -1
    tail = starts[places[FIRST]]
    if head >= tail:  # free: behind the head up to the limit, and before the tail
        if head + MAX_RECORD_BYTES <= limit:
            return head
        head = 0
    return head if head + MAX_RECORD_BYTES < tail else -1


@numba.njit(cache=True, nogil=True)
def _hold(places, starts, sizes, packets, arrivals, start, nbytes, count, arrival):  # type: ignore[no-untyped-def]
    at = (places[FIRST] + places[COUNT]) % starts.size
    starts[at] = start
    sizes[at] = nbytes
    packets[at] = count
    arrivals[at] = arrival
    places[COUNT] += 1


@numba.njit(cache=True, nogil=True)
def take(  # type: ignore[no-untyped-def]
    values, counters, state, chances, ring, places, records, arrivals, original, at, nbytes, now
):
    """Decide on the packets of the record of `nbytes` that was read to `at`; hold what passes.

    `records`: int64 [3, RECORDS] of start, size, packets; `arrivals`: float64 [RECORDS].
    """
    count, headers, payload = segments(ring, at, nbytes)
    if values[IS_CUT] != 0.0:
        counters[CUT] += count
        return
    if count > 1:
        original[:] = ring[at : at + MAX_HEADERS_BYTES]
    left = nbytes - VNET_BYTES - headers
    run, arrival = 0, 0.0  # packets side by side that pass, and when the last of them arrives
    for packet in range(count):
        verdict, when = admit(values, state, chances, now, headers + min(payload, left))
        left -= payload
        if verdict == PASSED:
            run += 1
            arrival = when
        elif verdict == IS_LOST:
            counters[LOST] += 1
        else:
            counters[NO_ROOM] += 1
        if run and (verdict != PASSED or packet == count - 1):
            first = packet + 1 - run if verdict == PASSED else packet - run
            start, size = at, nbytes
            if run < count:
                start, size = extract(ring, at, nbytes, first, run, original)
            _hold(places, records[0], records[1], records[2], arrivals, start, size, run, arrival)
            run = 0
    places[HEAD] = at + nbytes


@numba.njit(cache=True, nogil=True)
def _deliver(values, counters, ring, places, records, arrivals, fd, now):  # type: ignore[no-untyped-def]
    """Write what has arrived by `now`."""
    while places[COUNT] > 0 and arrivals[places[FIRST]] <= now:
        at = places[FIRST]
        start, nbytes, count = records[0, at], records[1, at], records[2, at]
        places[FIRST] = (at + 1) % arrivals.size
        places[COUNT] -= 1
        if values[IS_CUT] != 0.0:
            counters[CUT] += count
        elif _write(fd, ring[start:].ctypes.data, nbytes) == nbytes:
            _, headers, _ = segments(ring, start, nbytes)
            counters[PACKETS] += count
            counters[NBYTES] += nbytes - VNET_BYTES + (count - 1) * headers
        else:
            counters[REFUSED] += count


@numba.njit(cache=True, nogil=True)
def carry(fds, values, counters, states, chances, rings):  # type: ignore[no-untyped-def]
    """Carry packets both ways until STOP.

    `fds`: int32 [2], the near and the far device, non-blocking. `values`, `counters`: the
    board's. `states` [2, ...] and `chances` [2, 2]: the queue's. `rings`: uint8 [2, RING_BYTES].
    """
    timespec = np.zeros(2, np.int64)
    polls = np.zeros(2 * DIRECTIONS, np.int32)  # struct pollfd: fd, then events and revents
    for direction in range(DIRECTIONS):
        polls[2 * direction] = fds[direction]
        polls[2 * direction + 1] = _POLLIN
    places = np.zeros((DIRECTIONS, 3), np.int64)
    records = np.zeros((DIRECTIONS, 3, RECORDS), np.int64)
    arrivals = np.zeros((DIRECTIONS, RECORDS))
    original = np.zeros(MAX_HEADERS_BYTES, np.uint8)
    scratch = np.zeros(MAX_RECORD_BYTES, np.uint8)
    busy_until = 0.0

    while values[STOP] == 0.0:
        now = _now(timespec)
        wake = now + _IDLE_S
        limit = min(int(values[MEMORY_BYTES]), RING_BYTES)
        for direction in range(DIRECTIONS):
            ring = rings[direction]
            for _ in range(_BATCH):
                at = place(places[direction], records[direction, 0], limit)
                if at < 0:
                    nbytes = _read(fds[direction], scratch.ctypes.data, MAX_RECORD_BYTES)
                    if nbytes > 0:
                        counters[direction, NO_ROOM] += segments(scratch, 0, nbytes)[0]
                else:
                    nbytes = _read(fds[direction], ring[at:].ctypes.data, MAX_RECORD_BYTES)
                    if nbytes > 0:
                        take(
                            values,
                            counters[direction],
                            states[direction],
                            chances[direction],
                            ring,
                            places[direction],
                            records[direction],
                            arrivals[direction],
                            original,
                            at,
                            nbytes,
                            now,
                        )
                if nbytes <= 0:
                    break
                busy_until = now + _BUSY_S
            _deliver(
                values,
                counters[direction],
                ring,
                places[direction],
                records[direction],
                arrivals[direction],
                fds[1 - direction],
                _now(timespec),
            )
            counters[direction, QUEUE_BYTES] = int(drain(values, states[direction], now))
            if places[direction, COUNT] > 0:
                wake = min(wake, arrivals[direction, places[direction, FIRST]])
        now = _now(timespec)
        if now < busy_until:
            _sleep(polls, 0, timespec, _TICK_S)
        elif now < wake:
            _sleep(polls, DIRECTIONS, timespec, wake - now)
