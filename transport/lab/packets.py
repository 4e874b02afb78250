"""Packets as a TUN device hands them over, and the large ones taken apart.

The kernel hands over what it would give to a network card that cuts segments itself (TSO): a
10-byte `virtio_net_hdr`, one set of IPv4 and TCP headers, and the payload of several packets.
On the line each of them is a packet with a fate of its own; those that pass side by side stay
together, as a receiving card would put them together again (GRO).
"""

import numba
import numpy as np

# struct virtio_net_hdr of linux/virtio_net.h, in the machine's (little-endian) order:
# flags u8, gso_type u8, hdr_len u16, gso_size u16, csum_start u16, csum_offset u16.
VNET_BYTES = 10
_VNET_TYPE, _VNET_HEADERS, _VNET_SEGMENT = 1, 2, 4
_NO_SEGMENTS, _TCP4_SEGMENTS, _ECN_BIT = 0, 1, 0x80

# Offsets in IPv4 (RFC 791) and TCP (RFC 9293) headers.
_IP_LENGTH, _IP_ID, _IP_SUM, _IP_ADDRESSES = 2, 4, 10, 12
_TCP_SEQUENCE, _TCP_OFFSET, _TCP_FLAGS, _TCP_SUM = 4, 12, 13, 16
_FIN, _PSH, _CWR = 0x01, 0x08, 0x80
_TCP = 6
_WORD = 0xFFFF

MAX_RECORD_BYTES = VNET_BYTES + 65535
MAX_HEADERS_BYTES = VNET_BYTES + 60 + 60


@numba.njit(cache=True, nogil=True)
def _get16(data, at):  # type: ignore[no-untyped-def]
    return (np.int64(data[at]) << 8) | data[at + 1]


@numba.njit(cache=True, nogil=True)
def _put16(data, at, value):  # type: ignore[no-untyped-def]
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@numba.njit(cache=True, nogil=True)
def _fold(total):  # type: ignore[no-untyped-def]
    """The Internet checksum's sum (RFC 1071), not complemented."""
    while total > _WORD:
        total = (total & _WORD) + (total >> 16)
    return total


@numba.njit(cache=True, nogil=True)
def segments(data, at, nbytes):  # type: ignore[no-untyped-def]
    """(packets in the record of `nbytes` at `at`, bytes of each one's headers, payload of each).

    A record that is one packet: (1, 0, its bytes).
    """
    whole = nbytes - VNET_BYTES
    if (data[at + _VNET_TYPE] & ~_ECN_BIT) != _TCP4_SEGMENTS:
        return 1, 0, whole
    ip = at + VNET_BYTES
    ip_headers = (int(data[ip]) & 0x0F) * 4
    headers = ip_headers + (int(data[ip + ip_headers + _TCP_OFFSET]) >> 4) * 4
    payload = int(data[at + _VNET_SEGMENT]) | (int(data[at + _VNET_SEGMENT + 1]) << 8)
    if payload == 0 or whole - headers <= payload:
        return 1, 0, whole
    return (whole - headers + payload - 1) // payload, headers, payload


@numba.njit(cache=True, nogil=True)
def extract(data, at, nbytes, first, count, original):  # type: ignore[no-untyped-def]
    """Make packets [first, first + count) of the record at `at` a record, in place.

    `original`: the record's first MAX_HEADERS_BYTES as they came, uint8. The headers are written
    right before the payload, over the end of a packet that did not pass: so leave at least one
    packet out between two runs. Returns (where the new record starts, its bytes).
    """
    headers = (int(original[VNET_BYTES]) & 0x0F) * 4
    tcp = VNET_BYTES + headers
    headers += (int(original[tcp + _TCP_OFFSET]) >> 4) * 4
    payload = int(original[_VNET_SEGMENT]) | (int(original[_VNET_SEGMENT + 1]) << 8)
    start = at + VNET_BYTES + headers + first * payload
    stop = min(start + count * payload, at + nbytes)
    new = start - headers - VNET_BYTES
    for byte in range(VNET_BYTES + headers):
        data[new + byte] = original[byte]

    data[new + _VNET_HEADERS] = headers & 0xFF
    data[new + _VNET_HEADERS + 1] = headers >> 8
    if stop - start <= payload:
        data[new + _VNET_TYPE] = _NO_SEGMENTS
        data[new + _VNET_SEGMENT] = 0
        data[new + _VNET_SEGMENT + 1] = 0

    ip = new + VNET_BYTES
    _put16(data, ip + _IP_LENGTH, headers + stop - start)
    _put16(data, ip + _IP_ID, (_get16(data, ip + _IP_ID) + first) & _WORD)
    _put16(data, ip + _IP_SUM, 0)
    total = 0
    for word in range(0, tcp - VNET_BYTES, 2):
        total += _get16(data, ip + word)
    _put16(data, ip + _IP_SUM, _WORD - _fold(total))

    sequence = (_get16(original, tcp + _TCP_SEQUENCE) << 16) | _get16(
        original, tcp + _TCP_SEQUENCE + 2
    )
    sequence += first * payload
    tcp += new
    _put16(data, tcp + _TCP_SEQUENCE, (sequence >> 16) & _WORD)
    _put16(data, tcp + _TCP_SEQUENCE + 2, sequence & _WORD)
    flags = int(data[tcp + _TCP_FLAGS])
    if stop < at + nbytes:
        flags &= ~(_FIN | _PSH)
    if first > 0:
        flags &= ~_CWR
    data[tcp + _TCP_FLAGS] = flags
    # Left for the card to finish: the sum of the pseudo header, which holds the length.
    total = _TCP + headers - (tcp - ip) + stop - start
    for word in range(_IP_ADDRESSES, _IP_ADDRESSES + 8, 2):
        total += _get16(data, ip + word)
    _put16(data, tcp + _TCP_SUM, _fold(total))
    return new, stop - new
