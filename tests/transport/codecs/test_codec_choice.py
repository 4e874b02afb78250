"""Which codec is chosen: the line's speed decides, then the cores', and loss needs leave."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.codecs.choose import POLICIES, SPEEDS, check_policy, choose
from transport.codecs.table import CODECS

GBPS = 1e9 / 8


def test_the_figures_are_of_the_codecs_there_are():
    assert SPEEDS.keys() == CODECS.keys()
    for name, speed in SPEEDS.items():
        assert speed.lossless == CODECS[name].lossless
        assert speed.ratio >= 1
    assert set(POLICIES) == {"lossless", "lossy", *CODECS}


@pytest.mark.parametrize("policy", CODECS)
@given(goodput=st.none() | st.floats(0, 1e12), cores=st.floats(0, 64))
def test_a_codecs_name_is_that_codec(policy: str, goodput: float | None, cores: float):
    assert choose(policy, goodput_bytes_per_s=goodput, free_cores=cores) == policy


@given(goodput=st.none() | st.floats(0, 1e12), cores=st.floats(0, 64))
def test_lossless_never_loses(goodput: float | None, cores: float):
    chosen = choose("lossless", goodput_bytes_per_s=goodput, free_cores=cores)
    assert CODECS[chosen].lossless


@given(goodput=st.floats(1, 1e12), cores=st.floats(0.1, 64))
def test_lossy_is_never_slower_than_lossless(goodput: float, cores: float):
    def rate(policy: str) -> float:
        speed = SPEEDS[choose(policy, goodput_bytes_per_s=goodput, free_cores=cores)]
        return min(
            goodput * speed.ratio,
            cores * speed.encode_bytes_per_s,
            cores * speed.decode_bytes_per_s,
        )

    assert rate("lossy") >= rate("lossless")


@pytest.mark.parametrize(
    ("policy", "gbps", "cores", "chosen"),
    [
        ("lossless", 0.01, 1, "huffman"),
        ("lossless", 1, 1, "huffman"),
        ("lossless", 10, 1, "raw"),
        ("lossless", 10, 3, "huffman"),
        ("lossless", 100, 2, "raw"),
        ("lossy", 1, 1, "int4"),
        ("lossy", 10, 4, "k8v4"),
        ("lossy", 400, 2, "raw"),
        ("lossy", 0, 1, "raw"),  # nothing passes: no reason to lose anything
    ],
)
def test_by_line_and_cores(policy: str, gbps: float, cores: float, chosen: str):
    assert choose(policy, goodput_bytes_per_s=gbps * GBPS, free_cores=cores) == chosen


def test_an_unmeasured_line_is_sent_what_is_exact():
    assert choose("lossless", goodput_bytes_per_s=None, free_cores=1) == "huffman"
    assert choose("lossy", goodput_bytes_per_s=None, free_cores=8) == "huffman"


def test_a_busy_sender_still_has_a_codec():
    idle = choose("lossless", goodput_bytes_per_s=1e7, free_cores=0)
    assert idle == choose("lossless", goodput_bytes_per_s=1e7, free_cores=0.1) == "huffman"


def test_unknown_policies():
    check_policy("lossy")
    check_policy("int8+zstd")
    for refuses in (check_policy, partial(choose, goodput_bytes_per_s=None, free_cores=1)):
        with pytest.raises(ValueError, match="codec 'int5': known are lossless, lossy, raw, "):
            refuses("int5")
