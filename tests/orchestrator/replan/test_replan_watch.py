"""Only a world that stays different is planned anew; a lost site at once."""

import random
from collections.abc import Iterator

import pytest

from orchestrator.replan.decide import Case
from orchestrator.replan.seen import Seen
from orchestrator.replan.watch import Hysteresis, Watch
from tests.orchestrator.replan.worlds import FAR, NEAR, RATE, M, P, R, base, crew, seen

HYSTERESIS = Hysteresis(margin=0.25, dwell_s=30.0, gain=0.15)
EVERY_S = 5.0


def looked(watch: Watch, worlds: Iterator[Seen]) -> Iterator[tuple[float, Case]]:
    """Look every five seconds; what is due is decided at once."""
    for number, world in enumerate(worlds):
        case = watch.look(world, number * EVERY_S)
        if case is not None:
            watch.planned(case)
            yield number * EVERY_S, case


def cases(worlds: Iterator[Seen]) -> list[tuple[float, Case]]:
    return list(looked(Watch(base(), HYSTERESIS), worlds))


def test_a_drop_to_a_tenth_is_a_case_once_and_after_its_time() -> None:
    worlds = (seen(rate=RATE if number < 10 else RATE / 10) for number in range(200))
    [(at, case)] = cases(worlds)
    assert at == 50.0 + HYSTERESIS.dwell_s
    assert case.why == ("line near-far gives 800 Mbps, planned for 8 Gbps",)
    assert case.gain == HYSTERESIS.gain


def test_noise_is_no_case() -> None:
    draw = random.Random(1)
    worlds = (
        seen(rate=RATE * draw.uniform(0.85, 1.0), prompt=1000 * draw.uniform(0.9, 1.1))
        for _ in range(2000)
    )
    assert cases(worlds) == []


def test_a_drop_that_passes_is_no_case() -> None:
    """However often: each time shorter than the dwell time."""
    assert cases(seen(rate=RATE / 10 if number % 7 else RATE) for number in range(700)) == []


def test_what_was_planned_for_is_the_new_usual() -> None:
    """Down, and up again: one case each."""
    worlds = (seen(rate=RATE / 10 if 20 <= number < 100 else RATE) for number in range(200))
    found = cases(worlds)
    assert [at for at, _ in found] == [130.0, 530.0]
    assert found[1][1].why == ("line near-far gives 8 Gbps, planned for 800 Mbps",)


def test_slow_drift_is_noticed_when_it_has_come_far_enough() -> None:
    worlds = (seen(rate=RATE * 0.995**number) for number in range(200))
    found = cases(worlds)
    assert 2 <= len(found) <= 5  # e: a factor of 2.7 in steps of a quarter and more


def test_a_lost_site_is_a_case_at_once_and_its_return_is_not() -> None:
    far = crew("far/memory", (P,), (M,))
    worlds = (seen(far if 20 <= number < 100 else NEAR + far) for number in range(200))
    found = cases(worlds)
    assert [at for at, _ in found] == [100.0, 530.0]
    assert found[0][1].why == ("site near is lost",)
    assert found[1][1].why == ("near/compute has 2 workers, planned for 0",)


def test_a_worker_that_is_restarted_is_no_case() -> None:
    worlds = (seen(NEAR[:1] + FAR if number % 20 > 16 else NEAR + FAR) for number in range(200))
    assert cases(worlds) == []


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        (NEAR + crew("far/memory", (P,), (R,)), "nobody has the role main"),
        (crew("near/compute", (M,), (M,)) + FAR, "nobody has the role prefill"),
    ],
)
def test_a_role_that_nobody_has_is_a_case_at_once(workers: tuple, why: str) -> None:  # type: ignore[type-arg]
    watch = Watch(base(), HYSTERESIS)
    case = watch.look(seen(workers), 0.0)
    assert case is not None
    assert case.why == (why,)


def test_other_requests_are_a_case() -> None:
    [(_, case)] = cases(seen(prompt=3000, output=120) for _ in range(100))
    assert case.why == (
        "prompts of 3000 tokens, planned for 1000",
        "new parts of prompts of 3000 tokens, planned for 1000",
    )


def test_a_longer_way_is_a_case_if_it_is_much_longer() -> None:
    assert cases(seen(delay_s=0.019) for _ in range(100)) == []
    [(_, case)] = cases(seen(delay_s=0.05) for _ in range(100))
    assert case.why == ("line near-far takes 50 ms one way, planned for 10 ms",)


def test_a_case_that_was_not_decided_comes_again() -> None:
    """Planning may fail; then the next look is told the same."""
    watch = Watch(base(), HYSTERESIS)
    worlds = [seen(), *[seen(rate=RATE / 10)] * 9]
    found = [watch.look(world, number * EVERY_S) is not None for number, world in enumerate(worlds)]
    assert found == [False] * 7 + [True] * 3


def test_nobody_is_no_case() -> None:
    assert cases(seen(()) for _ in range(100)) == []
