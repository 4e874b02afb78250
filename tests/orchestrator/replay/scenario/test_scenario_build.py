"""What is built from a scenario: workers, lines, requests, faults and the bill."""

from pathlib import Path

import pytest

from orchestrator.replay.faults import LineFault, WorkersLost
from orchestrator.replay.lines.model import Sharing
from orchestrator.replay.report.metrics import summarise
from orchestrator.replay.scenario.build import build
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.scenario.prices import bill
from orchestrator.replay.scenario.run import play
from orchestrator.replay.scenario.schema import Scenario
from orchestrator.replay.scenario.workload import WARM_S, expected_requests, make_workload
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, Route
from tests.orchestrator.replay.scenario.test_scenario_file import GOOD

GB = 1e9


def scenario(folder: Path, *changes: tuple[str, str], more: str = "") -> Scenario:
    """The good file with changes, and more behind it."""
    text = GOOD + more
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is not one place"
        text = text.replace(old, new)
    (folder / "good.yaml").write_text(text)
    return load_scenario(folder / "good.yaml")


def asks(of: Scenario, place: int = 0) -> list[tuple[float, Arrived]]:
    return list(build(of, of.file.policies[place])[1])


def test_workers_have_what_their_chips_leave(tmp_path: Path) -> None:
    good = scenario(tmp_path)
    setup, _ = build(good, good.file.policies[0])
    workers = {worker.name: worker for worker in setup.workers}
    assert list(workers) == ["hami/compute/0", "hami/relay/0", "shenzhen/memory/0"]
    # 8 x 80 GB of which nine tenths, less 2 bytes for each of 70.6e9 parameters; KV of 327680 B.
    assert workers["hami/compute/0"].kv_tokens == int((8 * 80 * 0.9 - 141.2) * GB / 327680)
    assert workers["shenzhen/memory/0"].kv_tokens == int((4 * 141 * 0.9 - 141.2) * GB / 327680)
    compute, memory = workers["hami/compute/0"].costs, workers["shenzhen/memory/0"].costs
    # Twice the chips, less what they tell each other.
    assert 1.5 < compute.prefill_tokens_per_s / memory.prefill_tokens_per_s < 2
    # Decode is bound by memory: an H200's is 4.8 / 3.35 times as fast as an H100's.
    relay = workers["hami/relay/0"].costs
    assert relay.decode_line(1).per_context_s / memory.decode_line(1).per_context_s == (
        pytest.approx(4.8 / 3.35)
    )


def test_a_supernodes_memory_is_one(tmp_path: Path) -> None:
    """Two workers of 4 H200 in a supernode of 16 share the memory of the other 8 as well."""
    pool = "count: 4, parallel: 4, roles: [main]"
    large = "count: 16, instances: 2, parallel: 4, roles: [main]"
    apart = scenario(tmp_path, (pool, large))
    one = scenario(tmp_path, (pool, f"{large}, scale_up: 16"))
    each = [build(good, good.file.policies[0])[0].workers[-1].kv_tokens for good in (apart, one)]
    assert each[0] == int((4 * 141 * 0.9 - 141.2) * GB / 327680)
    assert each[1] == int((16 * 141 * 0.9 - 2 * 141.2) / 2 * GB / 327680)


def test_what_a_pool_says_goes_before(tmp_path: Path) -> None:
    pool = "chip: h200, count: 4, parallel: 4, roles: [main]"
    own = "kv_tokens: 1600, slots: 3, chunk_tokens: 64, engine: simulated, simulate: {step: 10ms}"
    good = scenario(tmp_path, (pool, f"{pool}, {own}"))
    worker = build(good, good.file.policies[0])[0].workers[-1]
    assert (worker.kv_tokens, worker.slots, worker.chunk_tokens) == (1600, 3, 64)
    assert worker.costs.step_s((), 5, 1000) == 0.01


def test_lines_are_as_the_links_and_the_policy_say(tmp_path: Path) -> None:
    link = "bandwidth: 20Gbps"
    good = scenario(
        tmp_path,
        (link, f"{link}, jitter: 5ms, loss: 1e-3"),
        ("route: direct", "route: direct, codec: int4, share: pool"),
        more="lines: {connections: 93, connection: 288Mbps, warm: off}\nseed: 7\n",
    )
    (line,) = build(good, good.file.policies[0])[0].lines
    model = line.model()
    assert (model.bytes_per_s, model.delay_s) == (2.5e9, pytest.approx(0.0245))
    assert (model.jitter_s, model.loss, model.seed) == (0.005, 1e-3, 7)
    assert (model.share, model.connections) == (Sharing.POOL, 93)
    assert (model.connection_bytes_per_s, model.slow_start) == (36e6, True)
    assert model.codec.ratio > 3
    relay = build(good, good.file.policies[1])[0].lines[0].model()
    assert (relay.share, relay.codec.ratio < 2) == (Sharing.FAIR, True)


def test_kv_goes_by_layers_or_by_chunks(tmp_path: Path) -> None:
    by_layer = scenario(tmp_path)
    by_chunk = scenario(tmp_path, more="lines: {overlap: chunk}\n")
    layers = [
        {worker.layers for worker in build(good, good.file.policies[0])[0].workers}
        for good in (by_layer, by_chunk)
    ]
    assert layers == [{80}, {1}]  # of Llama-3.1-70B
    soon, late = (
        summarise(play(good, good.file.policies[0]), good.goal) for good in (by_layer, by_chunk)
    )
    stalls = [found.metrics["exposed_stall_s"].mean or 0.0 for found in (soon, late)]
    assert stalls[0] < stalls[1]


def test_the_core_obeys_the_policy(tmp_path: Path) -> None:
    head = "gateway: {site: shenzhen}"
    good = scenario(
        tmp_path, (head, f"{head}\n  policy: {{queue_limit: 3, deadlines: {{queue: 7s}}}}")
    )
    cores = [build(good, policy)[0].core for policy in good.file.policies]
    assert [core.route for core in cores] == [Route.DIRECT, Route.RELAY]
    assert {core.gateway_site for core in cores} == {"shenzhen"}
    assert {(core.queue_limit, core.deadlines.queue) for core in cores} == {(3, 7.0)}


def test_what_a_sites_network_carries(tmp_path: Path) -> None:
    head = "    hami:\n      pools:"
    good = scenario(tmp_path, (head, head.replace("pools", "bandwidth: 80Gbps\n      pools")))
    core = build(good, good.file.policies[0])[0].core
    assert core.site_bytes_per_s == {"hami": 10e9, "shenzhen": 25e9}


def test_a_relay_is_worth_the_way_inside_its_site(tmp_path: Path) -> None:
    """What crosses the line in a second crosses a site in a twentieth: `auto` takes the relay."""
    good = scenario(
        tmp_path,
        ("{name: direct, route: direct}", "{name: direct, route: auto}"),
        ("{mean: 1000}", "{mean: 4000}"),
        ("bandwidth: 20Gbps", "bandwidth: 10Gbps"),
    )
    fast = summarise(play(good, good.file.policies[0]), good.goal)
    assert fast.routes["relay"] > 0.9 * fast.requests
    head = "    hami:\n      pools:"
    slow = scenario(
        tmp_path,
        ("{name: direct, route: direct}", "{name: direct, route: auto}"),
        ("{mean: 1000}", "{mean: 4000}"),
        ("bandwidth: 20Gbps", "bandwidth: 10Gbps"),
        (head, head.replace("pools", "bandwidth: 1Gbps\n      pools")),
    )
    assert "relay" not in summarise(play(slow, slow.file.policies[0]), slow.goal).routes


def test_faults(tmp_path: Path) -> None:
    more = "  - {kind: worker, worker: hami/relay, from: 5s}\n  - "
    more += "{kind: site, site: hami, from: 1s, until: 2s}\n  - "
    more += "{kind: bandwidth, between: [shenzhen, hami], from: 3s, until: 4s, factor: 0.5}\n"
    good = scenario(tmp_path, ("prices:", more + "prices:"))
    assert build(good, good.file.policies[0])[0].faults == (
        LineFault(between=("hami", "shenzhen"), at=600, until=630),
        WorkersLost(name="hami/relay", at=5),
        WorkersLost(name="hami", at=1, until=2),
        LineFault(between=("shenzhen", "hami"), at=3, until=4, factor=0.5),
    )


def test_every_policy_is_asked_the_same(tmp_path: Path) -> None:
    good = scenario(tmp_path)
    direct, relay = asks(good, 0), asks(good, 1)
    assert len(direct) == 50
    assert [(at, a.request, a.limit) for at, a in direct] == [
        (at, a.request, a.limit) for at, a in relay
    ]
    other = scenario(tmp_path, more="seed: 1\n")
    assert asks(other) != direct


def test_a_hot_spot_makes_requests_come_sooner(tmp_path: Path) -> None:
    calm = scenario(tmp_path, ("rate: 90/min", "rate: 1/s, arrivals: uniform"))
    hot = scenario(
        tmp_path,
        ("rate: 90/min", "rate: 1/s, arrivals: uniform"),
        ("prices:", "  - {kind: hot_spot, from: 10s, until: 15s, factor: 4.0}\nprices:"),
    )
    before, after = ([at for at, _ in asks(of)] for of in (calm, hot))
    assert before[:10] == after[:10]
    assert sum(10 < at <= 15 for at in after) == 4 * sum(10 < at <= 15 for at in before)
    assert [a - b for a, b in zip(before[40:], after[40:], strict=True)] == [15.0] * 10


def test_a_limit_and_a_rate(tmp_path: Path) -> None:
    generated = "output: {mean: 20}, count: 50}"
    good = scenario(tmp_path, (generated, f"{generated}\n  limit: 20\n  rate: 150/s"))
    found = asks(good)
    assert len(found) == expected_requests(make_workload(good)) == 20
    assert found[-1][0] < 0.5
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at": {n}, "prompt": 9, "output": 2}}\n' for n in range(10)))
    recorded = scenario(
        tmp_path,
        (GOOD[GOOD.index("  generated") : GOOD.index("policies")], "  trace: trace.jsonl\n"),
    )
    assert [at for at, _ in asks(recorded)] == list(range(10))
    assert expected_requests(make_workload(recorded)) == 10


def test_warm_caches(tmp_path: Path) -> None:
    ask = "prompt: {mean: 1000}, output: {mean: 20}, count: 50}"
    known = ask.replace("count", "hits: 0.8, documents: 4, count")
    cold = scenario(tmp_path, (ask, known))
    warm = scenario(tmp_path, (ask, f"{known}\n  warm: on"))
    assert asks(warm)[4][0] == pytest.approx(asks(cold)[0][0] + 4 * WARM_S)
    assert build(warm, warm.file.policies[0])[0].faults[0].at == 600 + 4 * WARM_S
    before, after = (play(of, of.file.policies[0]) for of in (cold, warm))
    assert len(after.outcomes) == len(before.outcomes) == 50
    assert sum(o.prefill_hit for o in before.outcomes) < 50 * 800
    assert [o.prefill_hit for o in after.outcomes] == [800] * 50
    assert [o.main_hit for o in after.outcomes] == [800] * 50


def test_without_prefix_caches_nothing_is_found(tmp_path: Path) -> None:
    ask = "prompt: {mean: 1000}, output: {mean: 20}, count: 50}"
    good = scenario(tmp_path, (ask, ask.replace("count", "hits: 0.8, count")))
    direct, relay = (play(good, policy) for policy in good.file.policies)
    assert sum(o.prefill_hit for o in direct.outcomes) > 0
    assert sum(o.prefill_hit + o.main_hit for o in relay.outcomes) == 0


def test_the_bill(tmp_path: Path) -> None:
    good = scenario(
        tmp_path,
        (
            "count: 4, parallel: 4, roles: [main]",
            "count: 4, parallel: 4, roles: [main], price: 3/h",
        ),
    )
    direct = bill(good, good.file.policies[0])
    assert direct.chips_per_h == 12 * 2.0 + 4 * 3.0
    assert direct.lines_per_h == pytest.approx(10.0)
    sent = {("hami", "shenzhen"): 5 * GB, ("shenzhen", "hami"): 1 * GB}
    assert direct.cost(1800, sent) == pytest.approx((36 + 10) / 2 + 6 * 0.01)
    unpriced = scenario(tmp_path)
    assert bill(unpriced, unpriced.file.policies[0]).cost(1800, sent) is None


def test_a_policys_own_topology(tmp_path: Path) -> None:
    good = scenario(
        tmp_path, ("{name: direct, route: direct}", "{name: home, topology: shenzhen-only}")
    )
    setup, _ = build(good, good.file.policies[0])
    assert {worker.site for worker in setup.workers} == {"shenzhen"}
    assert (setup.lines, setup.faults) == ((), ())
    run = play(good, good.file.policies[0])
    assert all(isinstance(o.end, Finish) for o in run.outcomes)
    assert run.cost == pytest.approx(16 * 2.5 * run.seconds / 3600)
