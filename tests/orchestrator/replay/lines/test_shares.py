"""Ways to share a line against slow ones that recompute everything at every moment."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import pytest

from orchestrator.replay.lines.shares import Flow, Ranked, Share, Shared
from transport.stream.schedule import rank


@dataclass
class Asked:
    """A flow to be: when it comes, whether it goes before its end."""

    at: float
    nbytes: float
    weight: float = 1.0
    gone_at: float = inf


Rates = Callable[[float, list[int], list[float]], list[float]]  # now, who, left -> bytes/s of each


def drawn(seed: int, *, load: float = 0.9, flows: int = 150, gone: float = 0.1) -> list[Asked]:
    """For a line of 10 bytes/s: sizes far apart, some that are dropped."""
    draw = random.Random(seed)
    at, asked = 0.0, []
    for _ in range(flows):
        at += draw.expovariate(load * 10 / 50)
        nbytes = draw.choice([5.0, 50.0, 50.0, 95.0]) * draw.uniform(0.5, 1.5)
        gone_at = at + draw.uniform(0, 30) if draw.random() < gone else inf
        asked.append(Asked(at, nbytes, draw.choice([0.5, 1.0, 4.0]), gone_at))
    return asked


FAULTS = [(40.0, 0.0), (55.0, 10.0), (100.0, 3.0), (160.0, 10.0)]


def by_share(asked: list[Asked], share: Share, faults: list[tuple[float, float]]) -> list[float]:
    """When each ended, infinity for those that were dropped before."""
    flows = [Flow(n, a.nbytes, at=a.at, weight=a.weight) for n, a in enumerate(asked)]
    events: list[tuple[float, int, int]] = []
    for number, ask in enumerate(asked):
        events.append((ask.at, 1, number))
        if ask.gone_at < inf:
            events.append((ask.gone_at, 2, number))
    events += [(at, 0, number) for number, (at, _) in enumerate(faults)]
    ended = [inf] * len(asked)
    for at, kind, number in [*sorted(events), (inf, 3, 0)]:
        due = share.next()
        while due is not None and due[0] <= at:
            assert share.pop() is due[1]
            ended[due[1].item] = due[0]
            due = share.next()
        if kind == 0:
            share.set_rate(at, faults[number][1])
        elif kind == 1:
            share.add(at, flows[number])
        elif kind == 2 and ended[number] == inf:
            share.drop(at, flows[number])
    assert share.backlog == 0
    assert share.used() == 0
    return ended


def by_hand(
    asked: list[Asked], rates: Callable[[float], Rates], faults: list[tuple[float, float]]
) -> list[float]:
    """Event by event; at each one everybody's rate anew. `rates(line's bytes per second)`."""
    left = [ask.nbytes for ask in asked]
    ended = [inf] * len(asked)
    times = sorted(
        {a.at for a in asked} | {a.gone_at for a in asked} - {inf} | {at for at, _ in faults}
    )
    now, line = 0.0, 10.0
    while True:
        here = [
            n
            for n, ask in enumerate(asked)
            if ask.at <= now and ended[n] == inf and not ask.gone_at <= now
        ]
        each = rates(line)(now, here, left)
        ends = [now + left[n] / rate for n, rate in zip(here, each, strict=True) if rate]
        until = min([*ends, *(at for at in times if at > now)], default=inf)
        if until == inf:
            return ended
        for n, rate in zip(here, each, strict=True):
            over = rate and now + left[n] / rate <= until
            left[n] = 0.0 if over else left[n] - rate * (until - now)
            if over:
                ended[n] = until
        now = until
        line = dict(faults).get(now, line)


def equal_shares(each: float, at_once: int | None) -> Callable[[float], Rates]:
    def of_line(line: float) -> Rates:
        def rates(now: float, here: list[int], left: list[float]) -> list[float]:
            served = len(here) if at_once is None else min(at_once, len(here))
            return [min(each, line / served) if n < served else 0.0 for n in range(len(here))]

        return rates

    return of_line


def lowest_rank(asked: list[Asked], ageing: float) -> Callable[[float], Rates]:
    def of_line(line: float) -> Rates:
        def rates(now: float, here: list[int], left: list[float]) -> list[float]:
            places = [
                (rank(left[n], now - asked[n].at, asked[n].weight, ageing), asked[n].at, n)
                for n in here
            ]
            return [line if place == min(places) else 0.0 for place in places]

        return rates

    return of_line


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("faults", [[], FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize(("each", "at_once"), [(inf, None), (inf, 1), (3.0, 4), (3.0, None)])
def test_equal_shares_as_by_hand(
    seed: int, faults: list[tuple[float, float]], each: float, at_once: int | None
) -> None:
    asked = drawn(seed)
    shared = Shared(10.0, each_bytes_per_s=each, at_once=at_once)
    expected = by_hand(asked, equal_shares(each, at_once), faults)
    assert by_share(asked, shared, faults) == pytest.approx(expected, rel=1e-9)
    assert sum(end < inf for end in expected) > 100


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("faults", [[], FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("ageing", [0.0, 0.05, 1.0])
def test_the_lowest_rank_as_by_hand(
    seed: int, faults: list[tuple[float, float]], ageing: float
) -> None:
    asked = drawn(seed)
    expected = by_hand(asked, lowest_rank(asked, ageing), faults)
    ranked = Ranked(10.0, ageing_bytes_per_s=ageing)
    assert by_share(asked, ranked, faults) == pytest.approx(expected, rel=1e-9)
    assert sum(end < inf for end in expected) > 100


def test_equal_shares_as_integrated_in_small_steps() -> None:
    asked = drawn(9, flows=25, gone=0.0)
    step = 0.0005
    left = [ask.nbytes for ask in asked]
    ended = [inf] * len(asked)
    number = 0
    while inf in ended:
        now = number * step
        here = [n for n, ask in enumerate(asked) if ask.at <= now and ended[n] == inf]
        for n in here:
            left[n] -= 10.0 * step / len(here)
            if left[n] <= 0:
                ended[n] = now + step
        number += 1
    assert by_share(asked, Shared(10.0), []) == pytest.approx(ended, abs=0.05)


@pytest.mark.parametrize(
    "share",
    [
        lambda: Shared(10.0),
        lambda: Shared(10.0, at_once=1),
        lambda: Ranked(10.0, ageing_bytes_per_s=0.05),
    ],
)
def test_a_line_with_work_is_full(share: Callable[[], Share]) -> None:
    """So the last of each busy time ends when it would in any order."""
    asked = drawn(5, load=0.7, gone=0.0)
    ended = sorted(by_share(asked, share(), []))
    free_at, busy_ends = 0.0, []
    for ask, following in zip(asked, [*asked[1:], Asked(inf, 0.0)], strict=True):
        free_at = max(free_at, ask.at) + ask.nbytes / 10
        if free_at < following.at:
            busy_ends.append(free_at)
    assert len(busy_ends) > 10
    for end in busy_ends:
        assert min(abs(end - one) for one in ended) < 1e-6


def test_equal_ranks_go_as_they_came() -> None:
    ranked = Ranked(10.0, ageing_bytes_per_s=0.0)
    for name in "abc":
        ranked.add(0.0, Flow(name, 20.0, at=0.0))
    ranked.add(1.0, Flow("d", 10.0, at=1.0))  # as much as is left of a, which goes on
    order = []
    while (due := ranked.next()) is not None:
        order.append((due[1].item, due[0]))
        ranked.pop()
    assert order == [("a", 2.0), ("d", 3.0), ("b", 5.0), ("c", 7.0)]


def test_who_began_earlier_goes_first_of_equal_ranks() -> None:
    ranked = Ranked(10.0, ageing_bytes_per_s=0.0)
    ranked.add(0.0, Flow("busy", 5.0, at=0.0))
    ranked.add(0.1, Flow("late", 20.0, at=0.1))
    ranked.add(0.2, Flow("early", 20.0, at=-3.0))  # it began before it was told of
    order = []
    while (due := ranked.next()) is not None:
        order.append(due[1].item)
        ranked.pop()
    assert order == ["busy", "early", "late"]


def test_backlog_and_what_is_used() -> None:
    shares: list[Share] = [
        Shared(10.0, each_bytes_per_s=4.0, at_once=2),
        Ranked(10.0, ageing_bytes_per_s=0.0),
    ]
    for share, used, spare in zip(shares, [8.0, 10.0], [0.0, 0.0], strict=True):
        first = Flow("a", 40.0, at=0.0)
        share.add(0.0, first)
        share.add(0.0, Flow("b", 40.0, at=0.0))
        share.add(1.0, Flow("c", 40.0, at=1.0))
        assert (share.used(), share.spare()) == (used, spare)
        assert share.backlog == pytest.approx(120 - used)
        share.drop(2.0, first)
        assert share.backlog == pytest.approx(120 - 2 * used - first.left)
    assert Shared(10.0, each_bytes_per_s=4.0, at_once=2).spare() == 10
