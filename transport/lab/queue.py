"""One direction of a line as arithmetic: what becomes of a packet that comes to it, and when.

Compiled, without I/O or clock: time is an argument, so tests feed it virtual time. The buffer is
a bucket of bytes that drains at the line's rate; a packet's last byte leaves when all that was
in the bucket with it has drained, and arrives a delay later.
"""

import math

import numba
import numpy as np

from transport.lab.board import DELAY_S, JITTER_S, LIMIT_BYTES, LOSS, RATE

PASSED, LOST, NO_ROOM = range(3)
# A direction's state, float64: bytes that wait, since when, and the latest arrival so far.
_WAITING, _SINCE, _LATEST = range(3)
_STATES = 3
# Its chances, uint64: of being lost and of jitter, apart so that one does not move the other.
_LOSS_CHANCE, _JITTER_CHANCE = range(2)

# Constants of SplitMix64 (Steele, Lea, Flood 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53


def new_state() -> np.ndarray:
    return np.zeros(_STATES)


def new_chances(seed: int, direction: int) -> np.ndarray:
    """The two streams of chances of one direction, uint64 [2]."""
    return np.random.SeedSequence([seed, direction]).generate_state(2, np.uint64)


@numba.njit(cache=True, nogil=True)
def _uniform(chances, which):  # type: ignore[no-untyped-def]
    """The next chance in [0, 1)."""
    chances[which] += _STEP
    bits = chances[which]
    bits = (bits ^ (bits >> _30)) * _MIX_1
    bits = (bits ^ (bits >> _27)) * _MIX_2
    bits ^= bits >> _31
    return (bits >> _11) * _UNIT


@numba.njit(cache=True, nogil=True)
def drain(values, state, now):  # type: ignore[no-untyped-def]
    """Let the bucket drain until `now` (seconds); the bytes that still wait."""
    sent = (now - state[_SINCE]) * values[RATE]
    state[_WAITING] = max(0.0, state[_WAITING] - sent)
    state[_SINCE] = now
    return state[_WAITING]


@numba.njit(cache=True, nogil=True)
def admit(values, state, chances, now, nbytes):  # type: ignore[no-untyped-def]
    """(PASSED, when it arrives), or (LOST or NO_ROOM, 0.0), of a packet that comes at `now`."""
    waiting = drain(values, state, now)
    if waiting + nbytes > values[LIMIT_BYTES]:
        return NO_ROOM, 0.0
    state[_WAITING] = waiting + nbytes
    # What is lost is lost on the line: it has taken its time there like any other.
    if values[LOSS] > 0.0 and _uniform(chances, _LOSS_CHANCE) < values[LOSS]:
        return LOST, 0.0
    arrival = now + state[_WAITING] / values[RATE] + values[DELAY_S]
    if values[JITTER_S] > 0.0:
        radius = math.sqrt(-2.0 * math.log(1.0 - _uniform(chances, _JITTER_CHANCE)))
        angle = 2.0 * math.pi * _uniform(chances, _JITTER_CHANCE)
        arrival += values[JITTER_S] * abs(radius * math.cos(angle))  # Box and Muller 1958
    state[_LATEST] = max(state[_LATEST], arrival)
    return PASSED, state[_LATEST]
