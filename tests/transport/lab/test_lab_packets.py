"""Large packets taken apart, against a reading of the headers written for the tests."""

import struct
from dataclasses import dataclass

import numpy as np
import pytest

from transport.lab.packets import MAX_HEADERS_BYTES, MAX_RECORD_BYTES, extract, segments

SEGMENT = 600
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80
SOURCE, TARGET = bytes([10, 99, 0, 1]), bytes([10, 99, 0, 2])


def total16(data: bytes) -> int:
    """The Internet checksum's sum of RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What a record says, read back."""

    segment: int
    identity: int
    sequence: int
    flags: int
    options: bytes
    payload: bytes


def record(payload: bytes, *, sequence: int, identity: int = 7, options: bytes = b"") -> bytes:
    """A segment of TCP as the kernel hands it to a card that cuts segments itself."""
    tcp_bytes = 20 + len(options)
    length = 20 + tcp_bytes + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, identity, 0x4000, 64, 6, 0) + SOURCE + TARGET
    ip = ip[:10] + struct.pack("!H", 0xFFFF ^ total16(ip)) + ip[12:]
    pseudo = total16(SOURCE + TARGET + struct.pack("!HH", 6, tcp_bytes + len(payload)))
    flags = FIN | PSH | ACK | CWR
    tcp = struct.pack(
        "!HHIIBBHHH", 5000, 6000, sequence, 1, tcp_bytes // 4 << 4, flags, 512, pseudo, 0
    )
    # The kernel's hint of the headers' length may be wrong: it is not read.
    vnet = struct.pack("<BBHHHH", 1, 1, 999, SEGMENT, 20, 16)
    return vnet + ip + tcp + options + payload


def read(data: bytes) -> Packet:
    """Check a record's lengths and sums as a receiver would; what it says."""
    flags, kind, headers, segment, start, offset = struct.unpack("<BBHHHH", data[:10])
    packet = data[10:]
    length, identity = struct.unpack("!HH", packet[2:6])
    assert length == len(packet)
    assert total16(packet[:20]) == 0xFFFF
    tcp_bytes = (packet[32] >> 4) * 4
    assert (flags, start, offset, headers) == (1, 20, 16, 20 + tcp_bytes)
    pseudo = total16(packet[12:20] + struct.pack("!HH", 6, len(packet) - 20))
    assert struct.unpack("!H", packet[36:38])[0] == pseudo
    payload = packet[20 + tcp_bytes :]
    assert (kind, segment) == ((1, SEGMENT) if len(payload) > SEGMENT else (0, 0))
    return Packet(
        segment=segment,
        identity=identity,
        sequence=struct.unpack("!I", packet[24:28])[0],
        flags=packet[33],
        options=packet[40 : 20 + tcp_bytes],
        payload=payload,
    )


def taken(data: bytes, runs: list[tuple[int, int]]) -> list[Packet]:
    """The runs (first, count) of a record that stands somewhere in a ring."""
    at = 1000
    ring = np.zeros(MAX_RECORD_BYTES + at, np.uint8)
    ring[at : at + len(data)] = np.frombuffer(data, np.uint8)
    original = ring[at : at + MAX_HEADERS_BYTES].copy()
    places = [extract(ring, at, len(data), first, count, original) for first, count in runs]
    return [read(ring[start : start + nbytes].tobytes()) for start, nbytes in places]


PAYLOAD = np.random.default_rng(1).bytes(5 * SEGMENT + 123)


@pytest.mark.parametrize("options", [b"", bytes(range(12)), bytes(range(40))])
def test_runs_are_what_segmentation_makes_of_them(options: bytes) -> None:
    start = 0xFFFFFF00  # it wraps
    data = record(PAYLOAD, sequence=start, identity=0xFFFE, options=options)
    for runs in ([(0, 2), (3, 3)], [(1, 1), (5, 1)], [(0, 1), (2, 1), (4, 1)], [(0, 5)]):
        for (first, count), packet in zip(runs, taken(data, runs), strict=True):
            assert packet.payload == PAYLOAD[first * SEGMENT : (first + count) * SEGMENT]
            assert packet.sequence == (start + first * SEGMENT) % 2**32
            assert packet.identity == (0xFFFE + first) % 2**16
            assert packet.options == options
            is_first, is_last = first == 0, first + count == 6
            expected = ACK | (CWR if is_first else 0) | (FIN | PSH if is_last else 0)
            assert packet.flags == expected


def test_how_many_packets_a_record_is() -> None:
    def of(data: bytes) -> tuple[int, int, int]:
        return segments(np.frombuffer(data, np.uint8), 0, len(data))

    assert of(record(PAYLOAD, sequence=1)) == (6, 40, SEGMENT)
    assert of(record(PAYLOAD[: 2 * SEGMENT], sequence=1, options=bytes(8))) == (2, 48, SEGMENT)
    assert of(record(PAYLOAD[:SEGMENT], sequence=1)) == (1, 0, 40 + SEGMENT)
    assert of(bytes(10) + bytes(84)) == (1, 0, 84)  # no TCP: an echo request
