"""The linear programme of one assignment, against what can be worked out by hand."""

from dataclasses import replace
from math import inf

import pytest

from orchestrator.plan.assignment import Assignment, Post, groups_of
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.programme.flows import MOST_HELD, MOST_LOAD, Answer, best_flows
from orchestrator.plan.programme.paths import Net
from orchestrator.plan.programme.terms import empty_state, terms_of
from orchestrator.plan.programme.value import value_of
from tests.orchestrator.plan.plan_problems import line, pool, problem
from workers.costs import MeasuredCosts


def assignment(*posts: tuple[str, int, int, int]) -> Assignment:
    return Assignment(
        posts=tuple(
            Post(pool=name, parallel=1, prefill=prefill, relay=relay, main=main)
            for name, prefill, relay, main in posts
        )
    )


def solved(what: Problem, who: Assignment) -> Answer:
    net = Net(what, groups_of(what, who), Ground(what))
    answer = best_flows(net, empty_state(net), None)
    assert answer is not None
    return answer


def test_prefill_is_the_limit_of_one_site() -> None:
    """Two workers of 1000 tokens/s and prompts of 100 tokens: 20 a second, at the most load."""
    what = problem(pool("a/x", 3))
    answer = solved(what, assignment(("a/x", 2, 0, 1)))
    assert answer.rate == pytest.approx(20 * MOST_LOAD)
    assert str(answer.binding) == "prefill of a/x"


def test_decode_is_the_limit_of_one_site() -> None:
    """Steps that grow by 1 ms a sequence: with one worker so many tokens a second as its batch."""
    slow = MeasuredCosts(prefill_tokens_per_s=1e6, decode_step_s=0.01, sequence_s=0.001)
    what = problem(pool("a/x", 2, costs=slow), output=101.0, tpot_s=0.05)
    answer = solved(what, assignment(("a/x", 1, 0, 1)))
    assert str(answer.binding) == "main of a/x"
    # At most 40 at once keep 50 ms, and fewer on average for nine in ten to keep it.
    assert 25 / 0.035 / 100 < answer.rate < 40 / 0.05 / 100


def test_a_line_is_the_limit_of_two_sites() -> None:
    """Prompts of 100 tokens are 1e5 bytes, over a line of 1e6 bytes/s: 10 a second."""
    what = problem(pool("a/x", 9), pool("b/y", 9), lines=(line("a", "b", 1e6),))
    answer = solved(what, assignment(("a/x", 9, 0, 0), ("b/y", 0, 0, 9)))
    assert answer.rate == pytest.approx(10 * MOST_LOAD)
    assert str(answer.binding) == "line of a>b"
    assert answer.duals[answer.rows.index(answer.binding)] == pytest.approx(1e-5)


def test_memory_is_the_limit() -> None:
    """1500 tokens hold ten requests of 150 for 0.1 s + 49 steps of 10 ms and what comes before."""
    what = problem(pool("a/x", 60), pool("a/m", 1, kv_tokens=1500))
    answer = solved(what, assignment(("a/x", 60, 0, 0), ("a/m", 0, 0, 1)))
    assert str(answer.binding) == "memory of a/m main"
    life_s = 0.1 + 49 * 0.01
    assert answer.rate == pytest.approx(MOST_HELD * 1500 / 150 / life_s, rel=0.03)


def test_known_prompts_cost_neither_prefill_nor_line() -> None:
    lines = (line("a", "b", 1e6),)
    cold = problem(pool("a/x", 9), pool("b/y", 9), lines=lines)
    warm = problem(pool("a/x", 9), pool("b/y", 9), lines=lines, hit=50.0)
    who = assignment(("a/x", 9, 0, 0), ("b/y", 0, 0, 9))
    assert solved(warm, who).rate == pytest.approx(2 * solved(cold, who).rate)


@pytest.mark.parametrize("which", ["line", "prefill"])
def test_a_dual_is_the_slope(which: str) -> None:
    """One per cent more of what binds, against the programme's own shadow price."""
    speed = 1e6 if which == "line" else 1e9
    workers = 9 if which == "line" else 1

    def rate(factor: float) -> Answer:
        costs = MeasuredCosts(
            prefill_tokens_per_s=1000.0 * (1 if which == "line" else factor), decode_step_s=0.01
        )
        bytes_per_s = speed * (factor if which == "line" else 1)
        what = problem(
            pool("a/x", workers, costs=costs), pool("b/y", 9), lines=(line("a", "b", bytes_per_s),)
        )
        return solved(what, assignment(("a/x", workers, 0, 0), ("b/y", 0, 0, 9)))

    before, after = rate(1.0), rate(1.01)
    row = before.binding
    assert row is not None
    assert row.limit == which
    dual = before.duals[before.rows.index(row)]
    assert after.rate - before.rate == pytest.approx(dual * row.most * 0.01, rel=1e-3)


def test_without_a_line_there_is_no_way() -> None:
    what = problem(pool("a/x", 1), pool("b/y", 1))
    value = value_of(what, assignment(("a/x", 1, 0, 0), ("b/y", 0, 0, 1)))
    assert value.rate == 0
    assert value.why == "no line joins a site that prefills to one that decodes"


def test_a_prompt_that_is_too_long_is_told_with_its_numbers() -> None:
    what = problem(pool("a/x", 2, kv_tokens=120))
    value = value_of(what, assignment(("a/x", 1, 0, 1)))
    assert value.rate == 0
    assert "100 + 50 tokens" in value.why
    assert "120" in value.why


def test_a_goal_that_nobody_keeps_is_told_with_its_numbers() -> None:
    what = problem(pool("a/x", 2), ttft_s=0.05)
    value = value_of(what, assignment(("a/x", 1, 0, 1)))
    assert value.rate == 0
    assert "100% of the requests miss TTFT 0.05 s" in value.why


def test_waits_lower_the_rate_and_a_looser_goal_raises_it() -> None:
    who = assignment(("a/x", 1, 0, 1))
    rates = [
        value_of(problem(pool("a/x", 2), ttft_s=ttft_s), who).rate for ttft_s in (0.15, 0.3, 1.0)
    ]
    assert 0 < rates[0] < rates[1] < rates[2] < 10


def test_a_relay_hides_a_line_that_is_far() -> None:
    """Half a second each way is more than 20 tokens may wait; relays bridge it."""
    what = problem(
        pool("a/x", 4), pool("b/y", 2), lines=(line("a", "b", 1e8, 0.5),), output=20.0, tpot_s=0.02
    )
    direct = value_of(what, assignment(("a/x", 2, 0, 0), ("b/y", 0, 0, 2)))
    relay = value_of(what, assignment(("a/x", 2, 2, 0), ("b/y", 0, 0, 2)))
    assert direct.rate == 0
    assert relay.rate > 10


def test_relays_end_what_a_full_line_has_no_turn_for() -> None:
    """A line of 1e5 bytes/s carries the KV of one request a second; prefill gives thirty."""
    what = problem(
        pool("a/x", 5), pool("b/y", 1), lines=(line("a", "b", 1e5),), output=20.0, tpot_s=0.02
    )
    value = value_of(what, assignment(("a/x", 3, 2, 0), ("b/y", 0, 0, 1)))
    assert value.solved is not None
    state = value.solved.state
    assert value.rate > 25
    assert 0.9 < state.line_load["a", "b"] < 1
    sent = [terms_of(value.solved.net, path, state).wire_bytes for path in value.solved.net.paths]
    bytes_per_s = sum(n * rate for n, rate in zip(sent, value.solved.flows.going, strict=True))
    assert bytes_per_s == pytest.approx(state.line_load["a", "b"] * 1e5, rel=0.02)


def test_what_a_line_carries_is_not_ended_by_relays() -> None:
    """Eight relays could decode all by themselves; but KV lands, so main does, and is the limit."""
    slow = MeasuredCosts(prefill_tokens_per_s=1e6, decode_step_s=0.01, sequence_s=0.001)
    what = problem(
        pool("a/x", 9, costs=slow), pool("b/y", 1, costs=slow), lines=(line("a", "b", 1e9),)
    )
    one, more = (
        value_of(what, assignment(("a/x", 1, relays, 0), ("b/y", 0, 0, 1))) for relays in (1, 8)
    )
    assert str(more.binding) == "main of b/y"
    assert more.rate < 1.3 * one.rate


def test_hits_settle_with_the_memory_that_legs_leave() -> None:
    """A cache too small for what is known finds only a part of it."""
    who = assignment(("a/x", 1, 0, 1))
    large = problem(
        pool("a/x", 2, kv_tokens=1_000_000), prompt=1000, hit=800.0, reused_tokens=100_000
    )
    small = replace(large, pools=(pool("a/x", 2, kv_tokens=50_000),))
    much, less = value_of(large, who), value_of(small, who)
    assert much.solved is not None
    assert less.solved is not None
    assert much.solved.state.cached[0] == pytest.approx(1.0)
    assert 0.2 < less.solved.state.cached[0] < 0.6
    assert less.rate < much.rate
    assert less.moved < 0.02  # and says so


@pytest.mark.parametrize(
    ("bytes_per_s", "worth"),
    [(inf, 1.0), (2e9, 0.5), (1e8, 0.0)],  # loading costs nothing, half of computing, ten times
)
def test_what_a_store_has_is_found_for_what_loading_spares(
    bytes_per_s: float, worth: float
) -> None:
    """Caches too small for anything, and a store that holds half of what comes again."""
    costs = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.01)
    small = pool("a/x", 2, costs=costs, kv_tokens=20_000)
    what = problem(
        small,
        prompt=1000,
        hit=800.0,
        reused_tokens=10_000_000,
        kv_bytes_per_token=1e6,
    )
    stored = replace(small, store_tokens=5_000_000, store_bytes_per_s=bytes_per_s)
    who = assignment(("a/x", 1, 0, 1))
    without, kept = value_of(what, who), value_of(replace(what, pools=(stored,)), who)
    assert without.solved is not None
    assert kept.solved is not None
    prefills, mains = kept.solved.state.cached
    none = without.solved.state.cached[0]
    assert mains == pytest.approx(0.5, abs=0.01), "main is not sent what its site has"
    assert prefills == pytest.approx(none + (0.5 - none) * worth, abs=0.01)
    assert (kept.rate > 1.1 * without.rate) is (worth > 0)


def test_a_slow_network_inside_a_site_delays_what_it_carries() -> None:
    """A megabyte at 1e5 bytes/s takes ten seconds, one of which the prefill hides."""
    what = problem(pool("a/x", 2), prompt=1000.0)
    groups = groups_of(what, assignment(("a/x", 1, 0, 1)))

    def stall_s(of: Problem) -> float:
        net = Net(of, groups, Ground(of))
        return terms_of(net, net.paths[0], empty_state(net)).stall_s

    slow = replace(what, site_bytes_per_s={"a": 1e5})
    assert stall_s(slow) - stall_s(what) == pytest.approx(9.0, abs=1e-3)
