"""The policies, and the ledger that asks them."""

import numpy as np
import pytest

from tests.workers.tiers.blocks_rig import key
from workers.tiers.eviction import LRU, POLICIES, S3FIFO, Policy
from workers.tiers.ledger import Cause, Entry, Ledger, TooLarge


def added(policy: Policy, numbers: range) -> Policy:
    for number in numbers:
        policy.add(key(number))
    return policy


def victims(policy: Policy, count: int) -> list[int]:
    return [int.from_bytes(policy.victim(), "big") for _ in range(count)]


def test_lru_lets_the_least_recently_used_leave() -> None:
    policy = added(LRU(), range(4))
    policy.hit(key(0))
    policy.remove(key(2))
    assert victims(policy, 3) == [1, 3, 0]


def test_s3_fifo_keeps_what_is_asked_for_often_through_a_scan() -> None:
    policy = added(S3FIFO(), range(10))
    for number in (3, 3, 7, 7, 5):
        policy.hit(key(number))
    added(policy, range(100, 120))
    gone = victims(policy, 26)
    assert not {3, 7} & set(gone)
    assert 5 in gone  # once is not often


def test_s3_fifo_knows_a_ghost_again() -> None:
    policy = added(S3FIFO(), range(4))
    assert victims(policy, 1) == [0]
    policy.add(key(0))  # straight into main
    assert victims(policy, 3) == [1, 2, 3]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_forgets_nobody(name: str) -> None:
    """Whatever happens to it, each key leaves once."""
    rng = np.random.default_rng(3)
    policy, there = POLICIES[name](), set()
    for number in range(2000):
        act = rng.integers(4)
        if act < 2:
            policy.add(key(number))
            there.add(key(number))
        elif there and act == 2:
            policy.hit(sorted(there)[rng.integers(len(there))])
        elif there:
            gone = policy.victim()
            assert gone in there
            there.remove(gone)
    while there:
        there.remove(policy.victim())
    with pytest.raises(KeyError):
        policy.victim()


def test_a_ledger_stays_below_its_capacity_and_lets_go_in_strokes() -> None:
    ledger = Ledger(1000, "lru", {})
    strokes = []
    for number in range(300):
        left = ledger.add(key(number), Entry("t", 10))
        if left:
            strokes.append(len(left))
            assert {gone.cause for gone in left} == {Cause.ROOM}
        assert ledger.used <= 980
    assert ledger.used == 10 * len(ledger)
    assert strokes[0] == 6
    assert key(299) in ledger
    assert key(0) not in ledger


def test_a_tenant_above_its_quota_loses_its_own_blocks() -> None:
    ledger = Ledger(1000, "lru", {"small": 100})
    for number in range(50):
        ledger.add(key(number), Entry("other", 10))
    gone = [
        left for number in range(100, 140) for left in ledger.add(key(number), Entry("small", 10))
    ]
    assert {(left.entry.tenant, left.cause) for left in gone} == {("small", Cause.QUOTA)}
    assert ledger.used_by == {"other": 500, "small": 90}


def test_when_the_tier_is_full_whoever_has_most_loses() -> None:
    ledger = Ledger(1000, "lru", {})
    for number in range(97):
        ledger.add(key(number), Entry("greedy", 10))
    gone = [left for n in range(100, 120) for left in ledger.add(key(n), Entry("modest", 10))]
    assert {left.entry.tenant for left in gone} == {"greedy"}
    assert ledger.used_by["modest"] == 200


def test_what_can_never_fit_is_refused_before_anybody_leaves() -> None:
    ledger = Ledger(100, "lru", {"small": 20})
    ledger.add(key(0), Entry("t", 90))
    for entry in (Entry("t", 101), Entry("small", 21)):
        with pytest.raises(TooLarge):
            ledger.add(key(1), entry)
    assert list(ledger) == [key(0)]


def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="policy 'clock': known are lru, s3-fifo"):
        Ledger(100, "clock", {})
