"""PDD's figures: one request by hand, the search, prices by hand, and the account's words."""

import json

import pytest

from benchmarks.paper import account
from benchmarks.paper.waits import Case, prefills, reduction, scenario_of, wait
from benchmarks.paper.worth import KEPT, RATES, cost_per_h, deployments, search
from orchestrator.cli.main import run as pdd
from orchestrator.replay.scenario.load import load_scenario

KV_PER_TOKEN, CONNECTION_BYTES_PER_S, DELAY_S = 4290, 36e6, 0.015


def test_one_request_has_a_connection_to_itself() -> None:
    """What main lacks goes over one connection, and some of it while prefill still runs."""
    one = wait(Case(policy="direct", prefills=1, requests=1))
    assert (one.requests, one.finished, one.routes) == (1, 1, {"direct": 1})
    took_s = one.transfer_s.p50
    assert took_s is not None
    nbytes = took_s * CONNECTION_BYTES_PER_S
    assert 0 < nbytes < 65_536 * KV_PER_TOKEN
    first, second = one.ttft_s.p50, one.second_token_s.p50
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(took_s, abs=2 * DELAY_S)


def test_a_relay_hides_the_line_and_not_the_prefill() -> None:
    case = {"prefills": 6, "requests": 20}
    direct, relay = (wait(Case(policy=policy, **case)) for policy in ("direct", "relay"))
    assert relay.routes == {"relay": 20}
    less = reduction(relay.second_token_s.p90, direct.second_token_s.p90)
    assert less is not None
    assert less > 0.3
    assert reduction(relay.ttft_s.p90, direct.ttft_s.p90) == pytest.approx(0, abs=0.02)


def test_a_case_changes_what_it_names() -> None:
    scenario = scenario_of(Case(policy="relay", hits="narrow", prefills=3, requests=7))
    workload = scenario.file.workload
    assert (workload.preset, workload.limit, prefills(scenario)) == ("pdd-narrow", 7, 3)
    pool = scenario.file.topology.sites["compute"].pools["prefill"]
    assert pool.count == 3 * pool.parallel


def test_the_search_ends_near_the_highest_rate_that_holds() -> None:
    for limit in (60.0, 71.5, 83.9):
        probes = search(lambda rate, limit=limit: 1.0 if rate <= limit else 0.2)
        best = max(rate for rate, kept in probes if kept >= KEPT)
        assert 0 <= limit - best <= 2
    assert all(kept < KEPT for _, kept in search(lambda rate: 0.0))
    assert min(rate for rate, _ in search(lambda rate: 0.0)) - RATES[0] == 2


def test_prices_by_hand() -> None:
    scenario = load_scenario("paper-goodput")
    one_site, two_sites = deployments()
    line_per_h = 6000 * 12 / (365 * 24)
    # 8 x 8 H100 and 3 x 8 H200 of two sites; of one site 7 x 8 and its own H100.
    assert cost_per_h(scenario, two_sites, 1.5) == pytest.approx(64 * 2 + 24 * 3 + line_per_h, 1e-2)
    for name in one_site:
        chips = 8 * (7 + int(name.removeprefix("h100-")))
        assert cost_per_h(scenario, name, 1.5) == cost_per_h(scenario, name, 1.0) == 2 * chips


def test_the_account_says_what_is_reached() -> None:
    rows = [
        {
            "instances": 9,
            "p90_second_token_reduction": 0.5,
            "direct_ttft_p50_s": 0.1,
            "transfer_p99_s": 20.0,
        }
    ]
    figures = {
        "p90_second_token_reduction": 0.5,
        "p90_ttft_reduction": None,
        "bcr_gain": 0.37,
        "curve": [{"h200_over_h100": 1.0, "bcr_gain": 0.4}],
        "prefills": rows,
        "transfer": {
            "skewed": {"p50_s": 0.248 * 1.34, "p99_s": 18.9 * 0.64},
            "narrow": {"p50_s": 1.21, "p99_s": None},
        },
    }
    told = {row["figure"]: row for row in account.account(figures)}
    assert [name for name, row in told.items() if row["reached"]] == [
        "p90_second_token_reduction",
        "transfer skewed p50_s",
        "transfer narrow p50_s",
    ]
    assert "9: 50%" in told["p90_second_token_reduction"]["why"]
    assert "1.0: 40%" in told["bcr_gain"]["why"]
    assert "calibration; -36% of the paper's" in told["transfer skewed p99_s"]["why"].replace(
        "calibration: load, burst, connections and the rate of each were fitted to the paper's "
        "four figures",
        "calibration",
    )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert pdd(["bench", "paper", "--requests", "10", "--jobs", "2", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {
        "p90_second_token_reduction",
        "p90_ttft_reduction",
        "bcr_gain",
        "transfer",
        "account",
        "curve",
    } <= set(result)
    assert {name: set(parts) for name, parts in result["transfer"].items()} == {
        "skewed": {"p50_s", "p99_s"},
        "narrow": {"p50_s", "p99_s"},
    }
    gains = [row["bcr_gain"] for row in result["curve"]]
    assert gains == sorted(gains, reverse=True)
    assert next(row["h200_over_h100"] for row in result["curve"]) == 1.0
    assert all(len(row["probes"]) == 4 for row in result["deployments"])
