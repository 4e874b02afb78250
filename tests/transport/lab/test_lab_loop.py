"""The ring of a direction in virtual time, and the loop over a pair of sockets (no root)."""

import random
import socket
import threading
from collections import deque

import numpy as np
import pytest

from tests.transport.lab.lab_support import WAIT_S, within
from transport.lab.board import (
    COUNTERS,
    CUT,
    DIRECTIONS,
    IS_CUT,
    LOST,
    NO_ROOM,
    PACKETS,
    STOP,
    VALUES,
    write_line,
)
from transport.lab.line import LabLine
from transport.lab.loop import COUNT, FIRST, HEAD, carry, hold, new_direction, place, take
from transport.lab.packets import MAX_RECORD_BYTES, VNET_BYTES
from transport.lab.queue import LOST as IS_LOST
from transport.lab.queue import admit, new_chances, new_state


def test_a_record_never_overwrites_one_that_is_held() -> None:
    """Records come and go at random in a small ring, whose limit changes meanwhile."""
    chance = random.Random(5)
    counters = np.zeros(COUNTERS, np.int64)
    direction = new_direction(counters, 0, 0, ring_bytes=8 * MAX_RECORD_BYTES, records=64)
    held: deque[tuple[int, int]] = deque()
    placed = 0
    for _ in range(20_000):
        if chance.random() < 0.55:
            limit = chance.choice([5, 8]) * MAX_RECORD_BYTES
            at = place(direction, limit)
            if at < 0:
                continue
            assert at + MAX_RECORD_BYTES <= 8 * MAX_RECORD_BYTES
            assert all(at + MAX_RECORD_BYTES <= a or a + n <= at for a, n in held)
            nbytes = chance.choice([60, 9010, MAX_RECORD_BYTES])
            hold(direction, at, nbytes, 1, 0.0)
            direction.places[HEAD] = at + nbytes
            held.append((at, nbytes))
            placed += 1
        elif held:
            held.popleft()
            direction.places[FIRST] = (direction.places[FIRST] + 1) % 64
            direction.places[COUNT] -= 1
    assert placed > 5000
    assert direction.places[COUNT] == len(held) > 0


class Way:
    """One direction of a line."""

    def __init__(self, line: LabLine) -> None:
        self.values = np.zeros(VALUES)
        write_line(self.values, line)
        self.counters = np.zeros(COUNTERS, np.int64)
        self.memory = new_direction(
            self.counters, 0, 0, ring_bytes=4 * MAX_RECORD_BYTES, records=16
        )

    def take(self, record: bytes, now: float) -> list[tuple[int, int, float]]:
        """(bytes, packets, arrival) of what is held after this record came."""
        memory = self.memory
        at = place(memory, memory.ring.size)
        memory.ring[at : at + len(record)] = np.frombuffer(record, np.uint8)
        take(self.values, memory, at, len(record), now)
        return [
            (int(memory.sizes[n]), int(memory.packets[n]), float(memory.arrivals[n]))
            for n in range(memory.places[COUNT])
        ]


def large(packets: int, payload: int) -> bytes:
    """A record of TCP over IPv4 that stands for several packets of 40 bytes and a payload."""
    data = bytearray(VNET_BYTES + 40 + packets * payload)
    data[1] = 1
    data[4:6] = payload.to_bytes(2, "little")
    data[VNET_BYTES] = 0x45
    data[VNET_BYTES + 32] = 0x50
    return bytes(data)


def test_a_large_packet_counts_each_ones_headers_and_arrives_with_its_last() -> None:
    way = Way(LabLine(delay_s=1.0, rate_bytes_per_s=1e6, mtu=1000))
    held = way.take(large(5, 960), 3.0)
    assert held == [(VNET_BYTES + 40 + 5 * 960, 5, pytest.approx(3.0 + 0.005 + 1.0))]


def test_what_finds_no_room_is_cut_off_a_large_packet() -> None:
    line = LabLine(delay_s=1.0, rate_bytes_per_s=1e6, mtu=1000, buffer_bytes=3500)
    way = Way(line)
    held = way.take(large(5, 960), 3.0)
    assert held == [(VNET_BYTES + 40 + 3 * 960, 3, pytest.approx(3.0 + 0.003 + 1.0))]
    assert way.counters[NO_ROOM] == 2


def test_each_packet_of_a_large_one_has_its_own_fate() -> None:
    line = LabLine(delay_s=0.0, rate_bytes_per_s=1e9, mtu=1000, loss=0.4)
    way = Way(line)
    state, chances = new_state(), new_chances(0, 0)
    fates = [admit(way.values, state, chances, 0.0, 1000)[0] != IS_LOST for _ in range(30)]
    text = "".join("+" if passes else " " for passes in fates)
    runs = [len(run) for run in text.split()]
    assert len(runs) > 1  # or this seed says nothing
    held = way.take(large(30, 960), 0.0)
    assert [packets for _, packets, _ in held] == runs
    assert [nbytes for nbytes, _, _ in held] == [VNET_BYTES + 40 + 960 * run for run in runs]
    assert way.counters[LOST] == fates.count(False)


def test_the_loop_carries_what_passes_in_order_until_told_to_stop() -> None:
    near, near_device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    far, far_device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for device in (near_device, far_device):
        device.setblocking(False)
    far.settimeout(WAIT_S)
    values = np.zeros(VALUES)
    write_line(values, LabLine(delay_s=0.0, rate_bytes_per_s=1e9, loss=0.3))
    expected, state, chances = [], new_state(), new_chances(2, 0)
    for n in range(100):
        if admit(values, state, chances, 0.0, 90)[0] != IS_LOST:
            expected.append(n)
    counters = np.zeros((DIRECTIONS, COUNTERS), np.int64)
    there, back = (
        new_direction(counters[which], 2, which, ring_bytes=32 * MAX_RECORD_BYTES)
        for which in range(DIRECTIONS)
    )
    devices = near_device.fileno(), far_device.fileno()
    loop = threading.Thread(target=carry, args=(values, there, back, *devices))
    loop.start()
    try:
        for n in range(100):
            near.send(bytes(VNET_BYTES) + bytes([n]) * 90)
        arrived = [far.recv(1000)[VNET_BYTES] for _ in expected]
        values[IS_CUT] = 1.0
        far.send(bytes(VNET_BYTES) + bytes(90))
        assert within(WAIT_S, lambda: bool(counters[1, CUT]))
    finally:
        values[STOP] = 1.0
        loop.join(WAIT_S)
    assert not loop.is_alive()
    assert arrived == expected
    assert counters[0, [PACKETS, LOST]].tolist() == [len(expected), 100 - len(expected)]
    assert counters[1, [PACKETS, CUT]].tolist() == [0, 1]
    for each in (near, far, near_device, far_device):
        each.close()
