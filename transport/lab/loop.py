"""The loop that carries packets between two devices, compiled: no Python per packet.

A direction keeps its packets in a ring of bytes, read into once and written from once. While
packets come the loop looks every 0.2 ms rather than at each of them, which costs far less
processor time and moves a packet by no more than that; otherwise it sleeps until one comes.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from transport.lab.board import (
    CUT,
    IS_CUT,
    LOST,
    MEMORY_BYTES,
    NBYTES,
    NO_ROOM,
    PACKETS,
    QUEUE_BYTES,
    REFUSED,
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
from transport.lab.queue import PASSED, admit, drain, new_chances, new_state

RECORDS = 1 << 18  # of one direction at a time

_TICK_S = 2e-4
_BUSY_S = 2e-3  # how long after the last packet the loop still looks every tick
_IDLE_S = 0.1  # how late a sleeping loop sees STOP
_BATCH = 256  # reads of one direction before the other gets its turn

_CLOCK_MONOTONIC = np.int32(1)
_POLLIN = 1

# A direction's places: bytes from HEAD on are free; records [FIRST, FIRST + COUNT) are held.
HEAD, FIRST, COUNT = range(3)

# The C library's, found by name when the loop is loaded; unlike ctypes' they can be cached.
_read: Any = types.ExternalFunction("read", types.intp(types.int32, types.uintp, types.uintp))
_write: Any = types.ExternalFunction("write", types.intp(types.int32, types.uintp, types.uintp))
_ppoll: Any = types.ExternalFunction(
    "ppoll", types.int32(types.uintp, types.uintp, types.uintp, types.uintp)
)
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


class Direction(NamedTuple):
    """One direction's memory; a NamedTuple because that is what numba takes apart."""

    counters: np.ndarray  # the board's, int64
    state: np.ndarray  # the queue's
    chances: np.ndarray  # the queue's
    ring: np.ndarray  # uint8; its last MAX_RECORD_BYTES are scratch
    address: int  # of the ring
    places: np.ndarray  # int64 [3]
    starts: np.ndarray  # of each record in the ring, int64
    sizes: np.ndarray  # in bytes, int64
    packets: np.ndarray  # in each record, int64
    arrivals: np.ndarray  # of each record, float64
    original: np.ndarray  # the headers of the record being taken apart, uint8


def new_direction(
    counters: np.ndarray, seed: int, which: int, *, ring_bytes: int, records: int = RECORDS
) -> Direction:
    """A direction with nothing in it; `which` of the seed's two."""
    ring = np.zeros(ring_bytes + MAX_RECORD_BYTES, np.uint8)
    return Direction(
        counters=counters,
        state=new_state(),
        chances=new_chances(seed, which),
        ring=ring,
        address=ring.ctypes.data,
        places=np.zeros(3, np.int64),
        starts=np.zeros(records, np.int64),
        sizes=np.zeros(records, np.int64),
        packets=np.zeros(records, np.int64),
        arrivals=np.zeros(records),
        original=np.zeros(MAX_HEADERS_BYTES, np.uint8),
    )


@numba.njit(cache=True, nogil=True)
def place(direction, limit):  # type: ignore[no-untyped-def]
    """Where the next record can be read to, below `limit`, or -1 while the ring is full."""
    places, starts = direction.places, direction.starts
    if places[COUNT] == 0:
        return 0
    if places[COUNT] >= starts.size:
        return -1
    head, tail = places[HEAD], starts[places[FIRST]]
    if head >= tail:  # free: behind the head up to the limit, and before the tail
        if head + MAX_RECORD_BYTES <= limit:
            return head
        head = 0
    return head if head + MAX_RECORD_BYTES < tail else -1


@numba.njit(cache=True, nogil=True)
def hold(direction, start, nbytes, count, arrival):  # type: ignore[no-untyped-def]
    """A record waits for its arrival."""
    places = direction.places
    at = (places[FIRST] + places[COUNT]) % direction.starts.size
    direction.starts[at] = start
    direction.sizes[at] = nbytes
    direction.packets[at] = count
    direction.arrivals[at] = arrival
    places[COUNT] += 1


@numba.njit(cache=True, nogil=True)
def take(values, direction, at, nbytes, now):  # type: ignore[no-untyped-def]
    """Decide on the packets of the record of `nbytes` that was read to `at`; hold what passes."""
    counters, ring = direction.counters, direction.ring
    count, headers, payload = segments(ring, at, nbytes)
    if values[IS_CUT] != 0.0:
        counters[CUT] += count
        return
    if count > 1:
        for byte in range(MAX_HEADERS_BYTES):
            direction.original[byte] = ring[at + byte]
    left = nbytes - VNET_BYTES - headers
    run, arrival = 0, 0.0  # packets side by side that pass, and when the last of them arrives
    for packet in range(count):
        verdict, when = admit(
            values, direction.state, direction.chances, now, headers + min(payload, left)
        )
        left -= payload
        if verdict == PASSED:
            run += 1
            arrival = when
            if packet < count - 1:
                continue
        elif verdict == IS_LOST:
            counters[LOST] += 1
        else:
            counters[NO_ROOM] += 1
        if run > 0:
            start, size = at, nbytes
            if run < count:
                first = packet - run + (verdict == PASSED)
                start, size = extract(ring, at, nbytes, first, run, direction.original)
            hold(direction, start, size, run, arrival)
            run = 0
    direction.places[HEAD] = at + nbytes


@numba.njit(cache=True, nogil=True)
def _drain_device(values, direction, fd, now):  # type: ignore[no-untyped-def]
    """Take what the device has, a batch at most; whether there was anything."""
    scratch = direction.ring.size - MAX_RECORD_BYTES
    limit = min(int(values[MEMORY_BYTES]), scratch)
    for done in range(_BATCH):
        at = place(direction, limit)
        into = at if at >= 0 else scratch
        nbytes = _read(fd, direction.address + into, MAX_RECORD_BYTES)
        if nbytes <= 0:
            return done > 0
        if at >= 0:
            take(values, direction, at, nbytes, now)
        else:
            count, _, _ = segments(direction.ring, into, nbytes)
            direction.counters[NO_ROOM] += count
    return True


@numba.njit(cache=True, nogil=True)
def _deliver(values, direction, fd, now):  # type: ignore[no-untyped-def]
    """Write what has arrived by `now`; when the next record arrives."""
    places, counters = direction.places, direction.counters
    while places[COUNT] > 0:
        at = places[FIRST]
        if direction.arrivals[at] > now:
            return direction.arrivals[at]
        start, nbytes, count = direction.starts[at], direction.sizes[at], direction.packets[at]
        places[FIRST] = (at + 1) % direction.starts.size
        places[COUNT] -= 1
        if values[IS_CUT] != 0.0:
            counters[CUT] += count
        elif _write(fd, direction.address + start, nbytes) == nbytes:
            _, headers, _ = segments(direction.ring, start, nbytes)
            counters[PACKETS] += count
            counters[NBYTES] += nbytes - VNET_BYTES + (count - 1) * headers
        else:
            counters[REFUSED] += count
    return np.inf


@numba.njit(cache=True, nogil=True)
def _now(clock, clock_address):  # type: ignore[no-untyped-def]
    _clock_gettime(_CLOCK_MONOTONIC, clock_address)
    return clock[0] + clock[1] * 1e-9


@numba.njit(cache=True, nogil=True)
def _carry(values, there, back, near, far, clock, clock_address, polls_address):  # type: ignore[no-untyped-def]
    busy_until = 0.0
    while values[STOP] == 0.0:
        now = _now(clock, clock_address)
        some = _drain_device(values, there, near, now)
        if _drain_device(values, back, far, now) or some:
            busy_until = now + _BUSY_S
        there.counters[QUEUE_BYTES] = int(drain(values, there.state, now))
        back.counters[QUEUE_BYTES] = int(drain(values, back.state, now))
        now = _now(clock, clock_address)
        wake = min(_deliver(values, there, far, now), _deliver(values, back, near, now))
        now = _now(clock, clock_address)
        busy = now < busy_until
        left = _TICK_S if busy else min(wake - now, _IDLE_S)
        if left > 0.0:
            clock[0] = 0
            clock[1] = int(left * 1e9)
            _ppoll(polls_address, 0 if busy else 2, clock_address, 0)


def carry(values: np.ndarray, there: Direction, back: Direction, near: int, far: int) -> None:
    """Carry packets both ways until STOP, without the interpreter's lock.

    `values`: the board's. `near`, `far`: descriptors of the devices, non-blocking; `there` is
    read from the near one. The first call on a machine compiles for some seconds.
    """
    clock = np.zeros(2, np.int64)  # struct timespec
    polls = np.zeros(4, np.int32)  # two struct pollfd: fd, then events and revents
    polls[:] = near, _POLLIN, far, _POLLIN
    _carry(values, there, back, near, far, clock, clock.ctypes.data, polls.ctypes.data)
