"""What each action and each Load message does to the scraped text."""

import re
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.metrics.exposition import Metrics
from orchestrator.state.actions import Emit, Fail, Failure, Finish, FinishReason, Summary
from orchestrator.state.events import HandoffMode, Route
from orchestrator.state.links import LinkView
from orchestrator.state.views import World
from workers.api.messages import LinkLoad, Load


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry) -> Metrics:
    return Metrics(registry)


@pytest.fixture
def value(registry):
    """A sample's value, None when there is no such sample."""

    def of(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    return of


def emit(start: int, count: int) -> Emit:
    return Emit(request="r", start=start, ids=tuple(range(count)))


def finish(**account) -> Finish:
    known = {
        "route": Route.RELAY,
        "handoff": HandoffMode.AUTO,
        "handoff_index": 4,
        "relay_tokens": 3,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "queue_s": 0.5,
        "prefill_s": 1.0,
        "kv_transfer_s": 2.0,
        "relay_s": 1.5,
        "handoff_gap_s": 0.25,
        "kv_bytes_raw": 1000,
        "kv_bytes_wire": 700,
        "recoveries": 2,
        "sites": {},
    }
    return Finish(
        request="r", reason=FinishReason.STOP, stop=None, summary=Summary(**(known | account))
    )


def test_a_finished_request(metrics, value):
    meter = metrics.requests.arrived(7, 10.0)
    meter.saw(emit(0, 1), 12.0)
    meter.saw(emit(1, 1), 12.5)
    meter.saw(emit(2, 3), 13.5)
    meter.saw(finish(), 14.0)
    meter.gone()
    assert value("pdd_ttft_seconds_sum") == 2.0
    assert value("pdd_ttft_seconds_count") == 1
    assert value("pdd_itl_seconds_sum") == 1.5
    assert value("pdd_itl_seconds_count") == 4  # five tokens, four gaps
    assert value("pdd_itl_seconds_bucket", le="0.001") == 2  # two came within a group
    assert value("pdd_e2e_seconds_sum") == 4.0
    for name, seconds in (
        ("queue", 0.5),
        ("prefill", 1.0),
        ("kv_transfer", 2.0),
        ("relay", 1.5),
        ("handoff_gap", 0.25),
    ):
        assert value(f"pdd_{name}_seconds_sum") == seconds
    assert value("pdd_tokens_total", kind="prompt") == 7
    assert value("pdd_tokens_total", kind="completion") == 5
    assert value("pdd_relay_tokens_total") == 3
    assert value("pdd_handoffs_total") == 1
    assert value("pdd_recoveries_total") == 2
    assert value("pdd_kv_bytes_total", kind="raw") == 1000
    assert value("pdd_kv_bytes_total", kind="wire") == 700
    assert value("pdd_requests_total", route="relay", outcome="stop") == 1
    assert value("pdd_requests_total", route="none", outcome="cancelled") is None


def test_phases_that_did_not_happen_are_not_observed(metrics, value):
    meter = metrics.requests.arrived(7, 0.0)
    absent = dict.fromkeys(("kv_transfer_s", "relay_s", "handoff_gap_s", "prefill_s"))
    meter.saw(finish(**absent, handoff=None, handoff_index=None, relay_tokens=0), 1.0)
    for name in ("kv_transfer", "relay", "handoff_gap", "prefill"):
        assert value(f"pdd_{name}_seconds_count") == 0
    assert value("pdd_queue_seconds_count") == 1
    assert value("pdd_handoffs_total") == 0


def test_failed_and_abandoned_requests(metrics, value):
    failed = metrics.requests.arrived(1, 0.0)
    failed.saw(Fail(request="r", failure=Failure.TIMED_OUT, message="m"), 1.0)
    failed.gone()
    metrics.requests.arrived(1, 0.0).gone()
    assert value("pdd_requests_total", route="none", outcome="timed_out") == 1
    assert value("pdd_requests_total", route="none", outcome="cancelled") == 1
    assert value("pdd_e2e_seconds_count") == 0


def test_every_request_metric_has_a_sample_once_one_request_ended(metrics):
    meter = metrics.requests.arrived(1, 0.0)
    meter.saw(emit(0, 2), 1.0)
    meter.saw(finish(), 2.0)
    text = metrics.render().decode()
    names = set(re.findall(r"^# TYPE (pdd_\S+)", text, re.MULTILINE))
    worker = re.findall(r"^# TYPE (pdd_\S+) gauge", text, re.MULTILINE)
    for name in names - set(worker):
        if not name.endswith("_created") and "sent_bytes" not in name:
            assert re.search(rf"^{name}\S* [1-9.]", text, re.MULTILINE), name


def load(**fields) -> Load:
    known = {
        "worker": "m0",
        "running": 2,
        "prefill_tokens": 30,
        "kv_free_tokens": 400,
        "kv_total_tokens": 1000,
        "kv_held_tokens": 500,
        "step_s": 0.05,
        "prefill_tokens_per_s": None,
    }
    return Load(**(known | fields))


def test_worker_gauges(metrics, value):
    metrics.workers.load("m0", "shenzhen", "memory", load())
    place = {"worker": "m0", "site": "shenzhen", "pool": "memory"}
    assert value("pdd_running_legs", **place) == 2
    assert value("pdd_prefill_backlog_tokens", **place) == 30
    assert value("pdd_kv_free_tokens", **place) == 400
    assert value("pdd_kv_capacity_tokens", **place) == 1000
    assert value("pdd_kv_held_tokens", **place) == 500
    assert value("pdd_step_seconds", **place) == 0.05
    assert value("pdd_prefill_tokens_per_second", **place) is None
    metrics.workers.load("m0", "shenzhen", "memory", load(kv_held_tokens=0))
    assert value("pdd_kv_held_tokens", **place) == 0


def test_a_worker_that_moves_or_is_lost_leaves_nothing_behind(metrics, value):
    metrics.workers.load("m0", "shenzhen", "memory", load())
    metrics.workers.load("m1", "shenzhen", "memory", load(worker="m1"))
    metrics.workers.load("m0", "hami", "relay", load())
    assert value("pdd_running_legs", worker="m0", site="shenzhen", pool="memory") is None
    assert value("pdd_running_legs", worker="m0", site="hami", pool="relay") == 2
    metrics.workers.forget("m0")
    metrics.workers.forget("nobody")
    text = metrics.render().decode()
    assert 'worker="m0"' not in text
    assert 'worker="m1"' in text


def test_the_core_counts_are_read_when_they_are_asked_for(metrics, value):
    counts: Counter[str] = Counter()
    metrics.watch_core(counts, World(gateway_site="hami"))
    assert value("pdd_core_events_total", event="main_lost") is None
    counts["main_lost"] += 2
    counts["cuts"] += 1
    assert value("pdd_core_events_total", event="main_lost") == 2
    assert 'pdd_core_events_total{event="cuts"} 1.0' in metrics.render().decode()


def link_load(**fields) -> LinkLoad:
    known = {
        "site": "shenzhen",
        "goodput_bytes_per_s": 2e5,
        "rtt_s": 0.04,
        "loss": 0.01,
        "queue_bytes": 300_000,
        "uncoded_bytes": 5,
        "sent_bytes": 100,
        "resent_bytes": 10,
    }
    return LinkLoad(**(known | fields))


def test_links_show_what_was_measured_and_nothing_else(metrics, value):
    world = World(gateway_site="hami")
    ends = {"from": "hami", "to": "shenzhen"}
    link = world.links["hami", "shenzhen"] = LinkView(0.05, 1e6)
    world.links["shenzhen", "hami"] = LinkView(0.05, 1e6)
    metrics.watch_core(Counter(), world)
    for name in ("goodput_bytes_per_second", "rtt_seconds", "loss_ratio"):
        assert value(f"pdd_link_{name}", **ends) is None
    assert value("pdd_link_queue_bytes", **ends) == 0
    for world.now in (10.0, 11.0):
        link.report("p0", link_load(), world.now)
    assert value("pdd_link_goodput_bytes_per_second", **ends) == 2e5
    assert value("pdd_link_rtt_seconds", **ends) == 0.04
    assert value("pdd_link_loss_ratio", **ends) == 0.01
    assert value("pdd_link_queue_bytes", **ends) == 300_005
    link.report("p1", link_load(rtt_s=0.03, queue_bytes=0), 11.0)
    link.report("p2", link_load(rtt_s=None, queue_bytes=0), 11.0)
    assert value("pdd_link_rtt_seconds", **ends) == 0.03
    assert value("pdd_link_rtt_seconds", **{"from": "shenzhen", "to": "hami"}) is None


def test_sent_kv_is_added_up_over_workers_and_their_restarts(metrics, value):
    ends = {"from": "hami", "to": "shenzhen"}

    def sent(worker: str, *links: LinkLoad) -> tuple[float | None, float | None]:
        metrics.workers.load(worker, "hami", "compute", load(worker=worker, links=links))
        return tuple(value(f"pdd_kv_{name}_bytes_total", **ends) for name in ("sent", "resent"))

    assert sent("p0") == (None, None)
    assert sent("p0", link_load()) == (100, 10)
    assert sent("p0", link_load(sent_bytes=150)) == (150, 10)
    # another worker has sent long before this gateway came
    assert sent("p1", link_load(sent_bytes=9000, resent_bytes=900)) == (150, 10)
    assert sent("p1", link_load(sent_bytes=9001, resent_bytes=901)) == (151, 11)
    metrics.workers.forget("p0")
    assert sent("p0", link_load(sent_bytes=7, resent_bytes=0)) == (158, 11)
    assert sent("p0", link_load(sent_bytes=8, resent_bytes=1)) == (159, 12)


def test_two_gateways_share_nothing(metrics, value):
    other = Metrics(CollectorRegistry())
    other.requests.arrived(5, 0.0).gone()
    assert value("pdd_tokens_total", kind="prompt") == 0
