"""The ring of a direction in virtual time, and the loop over a pair of sockets (no root)."""

import random
import socket
import threading
import time
from collections import deque

import numpy as np
import pytest

from tests.transport.lab.lab_support import WAIT_S
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
from transport.lab.loop import COUNT, FIRST, HEAD, carry, place, take
from transport.lab.packets import MAX_HEADERS_BYTES, MAX_RECORD_BYTES, VNET_BYTES
from transport.lab.queue import LOST as IS_LOST
from transport.lab.queue import admit, new_chances, new_state


def test_a_record_never_overwrites_one_that_is_held() -> None:
    """Records come and go at random in a small ring, whose limit changes meanwhile."""
    chance = random.Random(5)
    places = np.zeros(3, np.int64)
    starts = np.zeros(64, np.int64)
    held: deque[tuple[int, int]] = deque()
    placed = 0
    for _ in range(20_000):
        if chance.random() < 0.55:
            limit = chance.choice([5, 8]) * MAX_RECORD_BYTES
            at = place(places, starts, limit)
            if at < 0:
                continue
            assert at + MAX_RECORD_BYTES <= 8 * MAX_RECORD_BYTES
            assert all(at + MAX_RECORD_BYTES <= a or a + n <= at for a, n in held)
            nbytes = chance.choice([60, 9010, MAX_RECORD_BYTES])
            starts[(places[FIRST] + places[COUNT]) % 64] = at
            places[COUNT] += 1
            places[HEAD] = at + nbytes
            held.append((at, nbytes))
            placed += 1
        elif held:
            held.popleft()
            places[FIRST] = (places[FIRST] + 1) % 64
            places[COUNT] -= 1
    assert placed > 5000


class Direction:
    """One direction's memory, as the loop has it."""

    def __init__(self, line: LabLine) -> None:
        self.values = np.zeros(VALUES)
        write_line(self.values, line)
        self.counters = np.zeros(COUNTERS, np.int64)
        self.state, self.chances = new_state(), new_chances(0, 0)
        self.ring = np.zeros(4 * MAX_RECORD_BYTES, np.uint8)
        self.places, self.arrivals = np.zeros(3, np.int64), np.zeros(16)
        self.records = np.zeros((3, 16), np.int64)

    def take(self, record: bytes, now: float) -> list[tuple[int, int, float]]:
        """(bytes, packets, arrival) of what is held after this record came."""
        at = place(self.places, self.records[0], self.ring.size)
        self.ring[at : at + len(record)] = np.frombuffer(record, np.uint8)
        take(
            self.values,
            self.counters,
            self.state,
            self.chances,
            self.ring,
            self.places,
            self.records,
            self.arrivals,
            np.zeros(MAX_HEADERS_BYTES, np.uint8),
            at,
            len(record),
            now,
        )
        return [
            (int(self.records[1, n]), int(self.records[2, n]), float(self.arrivals[n]))
            for n in range(self.places[COUNT])
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
    direction = Direction(LabLine(delay_s=1.0, rate_bytes_per_s=1e6, mtu=1000))
    held = direction.take(large(5, 960), 3.0)
    assert held == [(VNET_BYTES + 40 + 5 * 960, 5, pytest.approx(3.0 + 0.005 + 1.0))]


def test_what_finds_no_room_is_cut_off_a_large_packet() -> None:
    line = LabLine(delay_s=1.0, rate_bytes_per_s=1e6, mtu=1000, buffer_bytes=3500)
    direction = Direction(line)
    held = direction.take(large(5, 960), 3.0)
    assert held == [(VNET_BYTES + 40 + 3 * 960, 3, pytest.approx(3.0 + 0.003 + 1.0))]
    assert direction.counters[NO_ROOM] == 2


def test_each_packet_of_a_large_one_has_its_own_fate() -> None:
    line = LabLine(delay_s=0.0, rate_bytes_per_s=1e9, mtu=1000, loss=0.4)
    direction = Direction(line)
    state, chances = new_state(), new_chances(0, 0)
    fates = [admit(direction.values, state, chances, 0.0, 1000)[0] != IS_LOST for _ in range(30)]
    text = "".join("+" if passes else " " for passes in fates)
    runs = [len(run) for run in text.split()]
    assert len(runs) > 1  # or this seed says nothing
    held = direction.take(large(30, 960), 0.0)
    assert [packets for _, packets, _ in held] == runs
    assert [nbytes for nbytes, _, _ in held] == [VNET_BYTES + 40 + 960 * run for run in runs]
    assert direction.counters[LOST] == fates.count(False)


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
    states = np.stack([new_state(), new_state()])
    streams = np.stack([new_chances(2, 0), new_chances(2, 1)])
    rings = np.zeros((DIRECTIONS, 32 * MAX_RECORD_BYTES), np.uint8)
    fds = np.array([near_device.fileno(), far_device.fileno()], np.int32)
    loop = threading.Thread(target=carry, args=(fds, values, counters, states, streams, rings))
    loop.start()
    try:
        for n in range(100):
            near.send(bytes(VNET_BYTES) + bytes([n]) * 90)
        arrived = [far.recv(1000)[VNET_BYTES] for _ in expected]
        values[IS_CUT] = 1.0
        far.send(bytes(VNET_BYTES) + bytes(90))
        give_up = time.monotonic() + WAIT_S
        while not counters[1, CUT] and time.monotonic() < give_up:
            time.sleep(0.001)
    finally:
        values[STOP] = 1.0
        loop.join(WAIT_S)
    assert not loop.is_alive()
    assert arrived == expected
    assert counters[0, [PACKETS, LOST]].tolist() == [len(expected), 100 - len(expected)]
    assert counters[1, [PACKETS, CUT]].tolist() == [0, 1]
    for each in (near, far, near_device, far_device):
        each.close()
