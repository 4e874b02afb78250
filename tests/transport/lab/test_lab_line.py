"""The line's values: what is refused, what is computed, what the shuttle reads."""

import math
import os

import pytest

from transport.lab.board import DELAY_S, LIMIT_BYTES, MEMORY_BYTES, NO_ROOM, RATE, Board, write_line
from transport.lab.line import LabLine

GOOD = {"delay_s": 0.025, "rate_bytes_per_s": 125e6}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"rate_bytes_per_s": 0}, "rate_bytes_per_s: must be > 0, got 0"),
        ({"rate_bytes_per_s": math.inf}, "rate_bytes_per_s: must be > 0, got inf"),
        ({"delay_s": -1.0}, "delay_s: must be >= 0, got -1.0"),
        ({"jitter_s": math.nan}, "jitter_s: must be >= 0, got nan"),
        ({"loss": 1.0}, "loss: must be in [0, 1), got 1.0"),
        ({"mtu": 68}, "mtu: must be in [576, 65535], got 68"),
        ({"buffer_bytes": 8999}, "buffer_bytes: must hold a packet of 9000 bytes, got 8999"),
    ],
)
def test_what_is_refused(values: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        LabLine(**(GOOD | values))
    assert str(caught.value) == text


def test_the_buffer_is_50_ms_of_the_line_and_never_less_than_a_packet() -> None:
    assert LabLine(**GOOD).queue_limit_bytes == 6_250_000
    assert LabLine(**GOOD, buffer_bytes=10_000).queue_limit_bytes == 10_000
    assert LabLine(delay_s=0, rate_bytes_per_s=1e3).queue_limit_bytes == 9000


def test_what_is_under_way_is_flight_and_buffer() -> None:
    line = LabLine(**GOOD, jitter_s=0.001, buffer_bytes=1_000_000)
    assert line.under_way_bytes == 125e6 * 0.031 + 1_000_000


def test_the_board_shows_both_sides_the_same() -> None:
    fd = Board.create()
    lab, shuttle = Board(fd), Board(fd)
    os.close(fd)
    line = LabLine(**GOOD)
    write_line(lab.values, line)
    assert shuttle.values[[DELAY_S, RATE, LIMIT_BYTES]].tolist() == [0.025, 125e6, 6_250_000]
    assert shuttle.values[MEMORY_BYTES] > line.under_way_bytes
    shuttle.counters[1, NO_ROOM] = 7
    assert (lab.stats(0).no_room, lab.stats(1).no_room) == (0, 7)


def test_large_packets_are_taken_where_they_last_no_longer_than_a_millisecond() -> None:
    assert LabLine(delay_s=0, rate_bytes_per_s=65.6e6).takes_large
    assert not LabLine(delay_s=0, rate_bytes_per_s=65.5e6).takes_large
