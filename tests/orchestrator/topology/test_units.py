"""Units as people write them, and what is refused."""

import math

import pytest

from orchestrator.topology.units import (
    UnitError,
    parse_distance_km,
    parse_duration_s,
    parse_price_per_gb,
    parse_price_per_h,
    parse_rate_bytes_per_s,
    parse_size_bytes,
    show_rate,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate_bytes_per_s, "20Gbps", 2.5e9),
        (parse_rate_bytes_per_s, "20 Gbit/s", 2.5e9),
        (parse_rate_bytes_per_s, "2.5GB/s", 2.5e9),
        (parse_rate_bytes_per_s, "10Mbps", 1.25e6),
        (parse_rate_bytes_per_s, "10 MB/s", 1e7),
        (parse_rate_bytes_per_s, "800kbps", 1e5),
        (parse_rate_bytes_per_s, "1.2Tbps", 1.5e11),
        (parse_rate_bytes_per_s, "8e6 bps", 1e6),
        (parse_rate_bytes_per_s, "512 B/s", 512),
        (parse_duration_s, "50ms", 0.05),
        (parse_duration_s, "2s", 2),
        (parse_duration_s, " 1.5 s ", 1.5),
        (parse_duration_s, "250us", 250e-6),
        (parse_duration_s, "250µs", 250e-6),
        (parse_duration_s, "250μs", 250e-6),
        (parse_duration_s, ".5 min", 30),
        (parse_duration_s, "1h", 3600),
        (parse_duration_s, "0s", 0),
        (parse_duration_s, "+3s", 3),
        (parse_distance_km, "4000 km", 4000),
        (parse_distance_km, "4000km", 4000),
        (parse_price_per_h, "2.0/h", 2),
        (parse_price_per_h, "2 / h", 2),
        (parse_price_per_h, "2 /hour", 2),
        (parse_price_per_gb, "0.02/GB", 0.02),
        (parse_size_bytes, "8GiB", 8 << 30),
        (parse_size_bytes, "1.5 TiB", 3 << 39),
        (parse_size_bytes, "200 GB", 200e9),
        (parse_size_bytes, "512B", 512),
    ],
)
def test_quantities(parse, text, value) -> None:
    assert math.isclose(parse(text), value)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (
            parse_rate_bytes_per_s,
            "20Gb",
            "'20Gb' is ambiguous: write 20Gbps for bits or 20GB/s for bytes per second",
        ),
        (
            parse_rate_bytes_per_s,
            "20G",
            "'20G' is ambiguous: write 20Gbps for bits or 20GB/s for bytes per second",
        ),
        (
            parse_rate_bytes_per_s,
            "20 GB",
            "'20 GB' is ambiguous: write 20Gbps for bits or 20GB/s for bytes per second",
        ),
        (
            parse_rate_bytes_per_s,
            "20GBps",
            "'20GBps' is ambiguous: write 20Gbps for bits or 20GB/s for bytes per second",
        ),
        (
            parse_rate_bytes_per_s,
            "5K",
            "'5K' is ambiguous: write 5kbps for bits or 5kB/s for bytes per second",
        ),
        (parse_rate_bytes_per_s, "20gbps", "unknown unit 'gbps' in '20gbps'; did you mean 20Gbps?"),
        (parse_rate_bytes_per_s, "20mbps", "unknown unit 'mbps' in '20mbps'; did you mean 20Mbps?"),
        (
            parse_rate_bytes_per_s,
            "20",
            "'20' has no unit; write a bandwidth such as 20Gbps",
        ),
        (parse_rate_bytes_per_s, "-1Gbps", "a bandwidth must not be negative, got '-1Gbps'"),
        (parse_rate_bytes_per_s, "1e999Gbps", "a bandwidth must be finite, got '1e999Gbps'"),
        (
            parse_rate_bytes_per_s,
            "fast",
            "expected a bandwidth such as 20Gbps, got 'fast'",
        ),
        (
            parse_rate_bytes_per_s,
            "20,000Mbps",
            "expected a bandwidth such as 20Gbps, got '20,000Mbps'",
        ),
        (parse_duration_s, "50", "'50' has no unit; write a duration such as 50ms"),
        (parse_duration_s, "50 msec", "unknown unit 'msec' in '50 msec'; write it such as 50ms"),
        (parse_duration_s, "50MS", "unknown unit 'MS' in '50MS'; did you mean 50ms?"),
        (parse_duration_s, "nan", "expected a duration such as 50ms, got 'nan'"),
        (parse_duration_s, "inf s", "expected a duration such as 50ms, got 'inf s'"),
        (parse_duration_s, "", "expected a duration such as 50ms, got ''"),
        (parse_duration_s, "1m", "unknown unit 'm' in '1m'; write it such as 50ms"),
        (
            parse_duration_s,
            "1 s 2 ms",
            "expected a duration such as 50ms, got '1 s 2 ms'",
        ),
        (
            parse_distance_km,
            "4000 miles",
            "unknown unit 'miles' in '4000 miles'; write it such as 4000 km",
        ),
        (parse_price_per_h, "2.0", "'2.0' has no unit; write a price such as 2.0/h"),
        (parse_price_per_h, "$2/h", "expected a price such as 2.0/h, got '$2/h'"),
    ],
)
def test_refused(parse, text, message) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_rates_are_shown_as_they_are_written() -> None:
    for text in ("0 bps", "512 bps", "10 kbps", "8.5 Mbps", "999.9 Mbps", "20 Gbps", "1.2 Tbps"):
        assert show_rate(parse_rate_bytes_per_s(text)) == text
