"""What a path does to KV, in closed form."""

import statistics
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from orchestrator.replay.lines.model import (
    FIRST_WINDOW_BYTES,
    CodecModel,
    Congestion,
    LineModel,
    codec_model,
    mathis_bytes_per_s,
)
from transport.codecs.choose import SPEEDS

LONG = LineModel(bytes_per_s=10e9 / 8, delay_s=0.025, connections=8)


def test_what_loss_leaves_a_connection() -> None:
    assert 8 * mathis_bytes_per_s(1e-4, 0.05) == pytest.approx(28e6, rel=0.03)
    assert 8 * mathis_bytes_per_s(1e-6, 0.05) == pytest.approx(283e6, rel=0.03)


def test_loss_slows_cubic_and_not_bbr() -> None:
    cubic = replace(LONG, congestion=Congestion.CUBIC, loss=1e-4)
    assert cubic.goodput_bytes_per_s() == 8 * mathis_bytes_per_s(1e-4, 0.05)
    many = replace(cubic, connections=1000)
    assert many.goodput_bytes_per_s() == pytest.approx(many.bytes_per_s * (1 - 1e-4))
    assert replace(LONG, loss=0.02).goodput_bytes_per_s() == pytest.approx(0.98 * LONG.bytes_per_s)
    assert replace(LONG, loss=0.03).goodput_bytes_per_s() < 0.01 * LONG.bytes_per_s
    assert replace(cubic, loss=0.0).goodput_bytes_per_s() == LONG.bytes_per_s


def test_windows_and_caps_limit_connections() -> None:
    # 4 MiB on its way at 50 ms is 0.67 Gbps.
    small = replace(LONG, connections=1, window_bytes=4 << 20)
    assert 8 * small.goodput_bytes_per_s() == pytest.approx(0.67e9, rel=0.01)
    assert replace(small, connections=20).goodput_bytes_per_s() == LONG.bytes_per_s
    assert replace(small, connection_bytes_per_s=1e6).goodput_bytes_per_s() == 1e6
    assert replace(small, delay_s=0.0).each_bytes_per_s() == inf


def test_a_slower_line_is_not_slower_where_connections_are_the_limit() -> None:
    capped = replace(LONG, connections=10, connection_bytes_per_s=0.05 * LONG.bytes_per_s)
    assert capped.goodput_bytes_per_s(0.8) == pytest.approx(0.5 * LONG.bytes_per_s)
    assert capped.goodput_bytes_per_s(0.2) == pytest.approx(0.2 * LONG.bytes_per_s)


def by_rounds(model: LineModel, nbytes: float) -> float:
    """Seconds to send: each round trip the windows' bytes, twice as many as the one before."""
    rtt_s, rate = 2 * model.delay_s, model.goodput_bytes_per_s()
    window, at = model.connections * FIRST_WINDOW_BYTES, 0.0
    while nbytes > window and window < rate * rtt_s:
        nbytes -= window
        window *= 2
        at += rtt_s
    return at + nbytes / rate


@pytest.mark.parametrize("connections", [1, 8, 100])
@pytest.mark.parametrize("nbytes", [1e3, 1e5, 3e6, 28e6, 281e6, 5e9])
@pytest.mark.parametrize("delay_s", [0.0, 0.0002, 0.025])
def test_slow_start_round_by_round(connections: int, nbytes: float, delay_s: float) -> None:
    model = replace(LONG, connections=connections, delay_s=delay_s)
    alone_s = nbytes / model.goodput_bytes_per_s()
    assert alone_s + model.starting_s(nbytes) == pytest.approx(by_rounds(model, nbytes))


def test_slow_start_as_facts_have_it() -> None:
    """To 62.5 MB on its way takes one connection 0.6 s: 12 doublings and a bit."""
    model = replace(LONG, connections=1)
    assert model.starting_s(1e9) == pytest.approx(0.6 - 0.05, rel=0.02)


def test_jitter_widens_the_delay_and_stays_the_same() -> None:
    model = replace(LONG, jitter_s=0.002)
    drawn = [model.arriving_s(1e6, f"r{n} 1") for n in range(20_000)]
    assert min(drawn) >= LONG.delay_s
    assert statistics.mean(drawn) - 0.025 == pytest.approx(0.002 * 0.798, rel=0.03)  # sqrt(2 / pi)
    assert drawn == [model.arriving_s(1e6, f"r{n} 1") for n in range(20_000)]
    assert drawn[:9] != [replace(model, seed=1).arriving_s(1e6, f"r{n} 1") for n in range(9)]


def test_the_codec_paces_the_line() -> None:
    codec = CodecModel(ratio=2.0, encode_bytes_per_s=1e9, decode_bytes_per_s=3e9)
    slow = replace(LONG, codec=codec)
    assert slow.goodput_bytes_per_s() == 0.5e9  # 1 GB/s of KV
    assert slow.goodput_bytes_per_s(0.1) == 0.125e9
    # A last piece of 1 MiB is coded before it goes and after it came; smaller KV is one piece.
    assert slow.arriving_s(1e9, "r 1") - 0.025 == pytest.approx(2**20 / 1e9 + 2**20 / 3e9)
    assert slow.arriving_s(3e5, "r 1") - 0.025 == pytest.approx(3e5 / 1e9 + 3e5 / 3e9)


def test_codecs_by_name_and_by_policy() -> None:
    int8 = codec_model("int8", line_bytes_per_s=1e9, cores=2.0)
    assert int8.ratio == SPEEDS["int8"].ratio
    assert int8.encode_bytes_per_s == 2 * SPEEDS["int8"].encode_bytes_per_s
    assert int8.decode_bytes_per_s == 2 * SPEEDS["int8"].decode_bytes_per_s
    # An exact codec pays on a thin line and not on a thick one.
    assert codec_model("lossless", line_bytes_per_s=1e7, cores=1.0).ratio > 1.4
    assert codec_model("lossless", line_bytes_per_s=1e11, cores=1.0).ratio == 1.0
    with pytest.raises(ValueError, match="int9"):
        codec_model("int9", line_bytes_per_s=1e9, cores=1.0)


@pytest.mark.parametrize(
    "wrong", [{"bytes_per_s": 0.0}, {"loss": 1.0}, {"loss": -0.1}, {"connections": 0}]
)
def test_a_line_that_carries_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="carries nothing"):
        replace(LONG, **wrong)
