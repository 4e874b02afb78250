"""A worker's account of its links, put together from peers."""

import pytest

from transport.base import LinkEstimate
from workers.streams.links import Outflow, link_loads


def outflow(site: str = "far", *, sent: int = 100, uncoded: int = 0, **seen: object) -> Outflow:
    known: dict[str, object] = {
        "goodput_bytes_per_s": None,
        "rtt_s": None,
        "loss": None,
        "queue_bytes": 0,
    }
    return Outflow(
        site=site,
        estimate=LinkEstimate(**(known | seen)),  # type: ignore[arg-type]
        uncoded_bytes=uncoded,
        sent_bytes=sent,
        resent_bytes=sent // 10,
    )


def test_nothing_was_sent_anywhere() -> None:
    assert link_loads([]) == ()


def test_each_site_has_its_own_account() -> None:
    loads = link_loads([outflow("b", sent=20), outflow("a", sent=30), outflow("b", sent=40)])
    assert [(load.site, load.sent_bytes, load.resent_bytes) for load in loads] == [
        ("a", 30, 3),
        ("b", 60, 6),
    ]


def test_of_an_unknown_path_nothing_is_made_up() -> None:
    (load,) = link_loads([outflow(uncoded=7)])
    assert (load.goodput_bytes_per_s, load.rtt_s, load.loss) == (None, None, None)
    assert (load.queue_bytes, load.uncoded_bytes) == (0, 7)


def test_peers_that_are_sent_to_share_the_line() -> None:
    (load,) = link_loads(
        [
            outflow(goodput_bytes_per_s=3e5, rtt_s=0.06, queue_bytes=10, uncoded=1),
            outflow(goodput_bytes_per_s=2e5, rtt_s=0.05, queue_bytes=20, uncoded=2),
            outflow(goodput_bytes_per_s=9e5, rtt_s=0.01),  # had the line to itself, long ago
            outflow(queue_bytes=40),  # nothing acknowledged yet
        ]
    )
    assert load.goodput_bytes_per_s == 5e5
    assert load.rtt_s == 0.05
    assert (load.queue_bytes, load.uncoded_bytes) == (70, 3)


def test_of_idle_peers_the_best_says_what_the_line_gave() -> None:
    (load,) = link_loads(
        [outflow(goodput_bytes_per_s=3e5, rtt_s=0.06), outflow(goodput_bytes_per_s=9e5, rtt_s=0.07)]
    )
    assert (load.goodput_bytes_per_s, load.rtt_s) == (9e5, 0.06)


def test_loss_is_the_mean_over_the_bytes() -> None:
    (load,) = link_loads([outflow(loss=0.1, sent=300), outflow(loss=0.0, sent=100), outflow()])
    assert load.loss == pytest.approx(0.075)
    (load,) = link_loads([outflow(loss=0.1, sent=0)])
    assert load.loss is None
