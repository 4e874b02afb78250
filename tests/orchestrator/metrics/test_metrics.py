"""What each action and each Load message does to the scraped text."""

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.phases import Phase
from orchestrator.lifecycle.timeline import LegTimes, Timeline
from orchestrator.membership.members import Members
from orchestrator.membership.reach import CameUp, Lost
from orchestrator.membership.reports import Hello
from orchestrator.metrics.exposition import Metrics
from orchestrator.state.actions import Emit, Fail, Failure, Finish, FinishReason, Summary
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.state.links import LinkView
from orchestrator.virtual.gateway import IdWatch
from workers.api.messages import LinkLoad, Load, Role

MODEL = "smol"
RELAY = {"model": MODEL, "route": "relay"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry) -> Metrics:
    return Metrics(registry, MODEL)


@pytest.fixture
def value(registry):
    """A sample's value, None when there is no such sample."""

    def of(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    return of


def emit(start: int, count: int) -> Emit:
    return Emit(request="r", start=start, ids=tuple(range(count)))


def summary(**account) -> Summary:
    known = {
        "route": Route.RELAY,
        "handoff": HandoffMode.AUTO,
        "handoff_index": 4,
        "relay_tokens": 3,
        "prompt_tokens": 7,
        "cached_tokens": 4,
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
    return Summary(**(known | account))


def finish(**account) -> Finish:
    return Finish(request="r", reason=FinishReason.STOP, stop=None, summary=summary(**account))


def test_a_finished_request(metrics, value):
    meter = metrics.requests.arrived(7, 10.0, lambda: "relay")
    meter.saw(emit(0, 1), 12.0)
    assert value("pdd_ttft_seconds_sum", **RELAY) == 2.0, "at once, not at the end"
    meter.saw(emit(1, 1), 12.5)
    meter.saw(emit(2, 3), 13.5)
    assert value("pdd_tokens_total", model=MODEL, kind="completion") == 5, "of an open request"
    meter.saw(finish(), 14.0)
    meter.gone()
    assert value("pdd_ttft_seconds_count", **RELAY) == 1
    assert value("pdd_itl_seconds_sum", **RELAY) == 1.5
    assert value("pdd_itl_seconds_count", **RELAY) == 4  # five tokens, four gaps
    assert value("pdd_itl_seconds_bucket", le="0.001", **RELAY) == 2  # two came within a group
    assert value("pdd_tpot_seconds_sum", **RELAY) == 1.5 / 4
    assert value("pdd_second_token_seconds_sum", **RELAY) == 2.5
    assert value("pdd_exposed_stall_seconds_sum", **RELAY) == pytest.approx(0.5 - 1 / 3)
    assert value("pdd_decode_seconds_sum", **RELAY) == 1.5
    assert value("pdd_e2e_seconds_sum", **RELAY) == 4.0
    assert value("pdd_prompt_tokens_sum", **RELAY) == 7
    assert value("pdd_output_tokens_sum", **RELAY) == 5
    assert value("pdd_tokens_total", model=MODEL, kind="prompt") == 7
    assert value("pdd_tokens_total", model=MODEL, kind="completion") == 5
    assert value("pdd_requests_total", outcome="stop", **RELAY) == 1
    assert value("pdd_request_failures_total", cause="stop", **RELAY) is None


def test_a_request_whose_route_is_told_at_its_end(metrics, value):
    meter = metrics.requests.arrived(7, 0.0, lambda: None)
    meter.saw(emit(0, 2), 1.0)
    meter.saw(emit(2, 1), 3.0)
    meter.saw(finish(), 3.0)
    assert value("pdd_ttft_seconds_sum", **RELAY) == 1.0
    assert value("pdd_itl_seconds_sum", **RELAY) == 2.0
    assert value("pdd_itl_seconds_count", **RELAY) == 2
    assert value("pdd_second_token_seconds_sum", **RELAY) == 1.0
    assert value("pdd_itl_seconds_count", model=MODEL, route="none") is None


def test_one_token_has_no_pace(metrics, value):
    meter = metrics.requests.arrived(7, 0.0, lambda: "local")
    meter.saw(emit(0, 1), 1.0)
    meter.saw(finish(route=Route.LOCAL), 1.0)
    labels = {"model": MODEL, "route": "local"}
    assert value("pdd_e2e_seconds_count", **labels) == 1
    assert value("pdd_tpot_seconds_count", **labels) is None
    assert value("pdd_exposed_stall_seconds_count", **labels) is None


def test_failed_and_abandoned_requests(metrics, value):
    failed = metrics.requests.arrived(1, 0.0, lambda: "direct")
    failed.saw(emit(0, 1), 0.5)
    failed.saw(Fail(request="r", failure=Failure.TIMED_OUT, message="m"), 1.0)
    failed.gone()
    metrics.requests.arrived(1, 0.0, lambda: None).gone()
    direct = {"model": MODEL, "route": "direct"}
    assert value("pdd_requests_total", outcome="timed_out", **direct) == 1
    assert value("pdd_request_failures_total", cause="timed_out", **direct) == 1
    assert value("pdd_ttft_seconds_count", **direct) == 1
    none = {"model": MODEL, "route": "none"}
    assert value("pdd_requests_total", outcome="cancelled", **none) == 1
    assert value("pdd_request_failures_total", cause="cancelled", **none) is None
    assert value("pdd_e2e_seconds_count", **direct) is None
    assert value("pdd_tokens_total", model=MODEL, kind="completion") == 1


def leg(role: Role, site: str, **fields) -> LegTimes:
    known = {
        "role": role,
        "worker": f"{site}/w/0",
        "site": site,
        "opened_at": 10.5,
        "kv_from": None if role is Role.PREFILL else "hami",
        "kv_at": None if role is Role.PREFILL else 10.5,
        "landed_at": None,
        "first_at": 12.0,
        "first_index": 0,
        "tokens": 1,
        "last_at": 12.0,
        "ended_at": 14.0,
        "lost": False,
    }
    return LegTimes(**(known | fields))


def told(*legs: LegTimes, **account) -> Timeline:
    return Timeline(
        request="r",
        phase=Phase.DONE,
        route=Route.RELAY,
        arrived_at=10.0,
        routed_at=10.5,
        first_token_at=11.5,
        now=14.0,
        legs=legs,
        summary=summary(**account),
    )


def test_the_phases_of_a_request_by_site(metrics, value):
    lost = leg(Role.MAIN, "shenzhen", lost=True, tokens=0)
    main = leg(Role.MAIN, "shenzhen", landed_at=13.0)
    relay = leg(Role.RELAY, "hami", first_index=1, tokens=3, last_at=13.5)
    metrics.ended(told(leg(Role.PREFILL, "hami"), relay, lost, main), finish(), None)
    assert value("pdd_queue_seconds_sum", **RELAY) == 0.5
    assert value("pdd_prefill_seconds_sum", site="hami", **RELAY) == 1.0
    ends = {"model": MODEL, "from": "hami", "to": "shenzhen"}
    assert value("pdd_kv_transfer_seconds_sum", **ends) == 1.5
    assert value("pdd_relay_seconds_sum", model=MODEL, site="hami") == 1.5
    assert value("pdd_handoff_gap_seconds_sum", model=MODEL, handoff="auto") == 0.25
    assert value("pdd_handoffs_total", model=MODEL, handoff="auto") == 1
    assert value("pdd_decoded_tokens_total", model=MODEL, role="relay", site="hami") == 3
    assert value("pdd_decoded_tokens_total", model=MODEL, role="main", site="shenzhen") == 1
    assert value("pdd_legs_lost_total", model=MODEL, role="main", site="shenzhen") == 1
    assert value("pdd_prefix_cache_query_tokens_total", model=MODEL, site="hami") == 7
    assert value("pdd_prefix_cache_hit_tokens_total", model=MODEL, site="hami") == 4
    assert value("pdd_kv_bytes_total", model=MODEL, kind="raw") == 1000
    assert value("pdd_kv_bytes_total", model=MODEL, kind="wire") == 700


def test_phases_that_did_not_happen_are_not_observed(metrics, registry, value):
    nothing = {"first_at": None, "first_index": None, "tokens": 0, "last_at": None}
    legs = [leg(role, "hami", **nothing) for role in Role]
    metrics.ended(told(*legs, handoff=None, handoff_index=None), None, None)
    metrics.ended(None, Fail(request="r", failure=Failure.OVERLOADED, message="m"), None)
    counted = {s.name for family in registry.collect() for s in family.samples}
    assert "pdd_queue_seconds_count" in counted
    for name in ("kv_transfer", "relay", "handoff_gap", "prefill"):
        assert f"pdd_{name}_seconds_count" not in counted


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


class Deployment:
    """A machine and the members it is told of."""

    def __init__(self, metrics: Metrics, **options) -> None:
        config = CoreConfig(gateway="g", gateway_site="shenzhen")
        self.machine = Machine(config, lambda stops: IdWatch(stops))
        self.members = Members(frozenset(), sites=("hami", "shenzhen"))
        metrics.watch(self.machine, self.members, **options)

    def join(self, worker: str) -> None:
        site, pool, _ = worker.split("/")
        self.members.join(worker, site, pool, frozenset({Role.MAIN}))

    def up(self, worker: str, **fields) -> None:
        self.join(worker)
        hello = Hello(
            worker=worker,
            incarnation="one",
            pid=1,
            slots=4,
            max_context=512,
            kv_total_tokens=1000,
            kv_bytes_per_token=10,
            block_size=16,
        )
        told = self.members.learn(worker, CameUp(hello=hello))
        told += self.members.heard(worker, [load(**fields)])
        for event in told:
            self.machine.handle(event, 1.0)


PLACE = {"worker": "shenzhen/memory/0", "site": "shenzhen", "pool": "memory"}


def test_worker_gauges(metrics, value):
    there = Deployment(metrics)
    there.up("shenzhen/memory/0")
    assert value("pdd_running_legs", **PLACE) == 2
    assert value("pdd_slots", **PLACE) == 4
    assert value("pdd_prefill_backlog_tokens", **PLACE) == 30
    assert value("pdd_kv_blocks", **PLACE) == 63  # the last one is not whole
    assert value("pdd_kv_blocks_used", **PLACE) == 32
    assert value("pdd_kv_free_tokens", **PLACE) == 400
    assert value("pdd_kv_evicted_tokens_total", **PLACE) == 0
    assert value("pdd_kv_capacity_tokens", **PLACE) == 1000
    assert value("pdd_kv_held_tokens", **PLACE) == 500
    assert value("pdd_step_seconds", **PLACE) == 0.05
    assert value("pdd_prefill_tokens_per_second", **PLACE) is None
    assert value("pdd_legs", site="shenzhen", role="main") == 0
    there.members.learn("shenzhen/memory/0", Lost(reason="killed"))
    assert value("pdd_running_legs", **PLACE) is None
    assert value("pdd_workers", site="shenzhen", state="down") == 1
    assert value("pdd_workers", site="shenzhen", state="up") == 0


def test_sites_that_never_came_are_lost_until_they_are_drained(metrics, value):
    there = Deployment(metrics)
    there.up("shenzhen/memory/0")
    assert value("pdd_site_state", site="shenzhen", state="up") == 1
    assert value("pdd_site_state", site="shenzhen", state="lost") == 0
    assert value("pdd_site_state", site="hami", state="lost") == 1
    assert value("pdd_workers", site="hami", state="up") == 0
    there.members.stand("hami", drained=True)
    assert value("pdd_site_state", site="hami", state="lost") == 0
    assert value("pdd_site_state", site="hami", state="drained") == 1


def test_the_core_is_read_when_it_is_asked_for(metrics, value):
    there = Deployment(metrics)
    assert value("pdd_core_events_total", event="main_lost") is None
    assert value("pdd_core_events_total", event="defects") == 0, "or the first were no increase"
    there.machine.ctx.counts["main_lost"] += 2
    assert value("pdd_core_events_total", event="main_lost") == 2
    there.up("shenzhen/memory/0")
    arrived = Arrived(request="a", prompt_ids=(1, 2), limit=5)
    there.machine.handle(arrived, 1.0)
    assert value("pdd_requests_open", model=MODEL) == 1
    assert value("pdd_requests_queued", model=MODEL) == 0
    assert value("pdd_legs", site="shenzhen", role="main") == 1
    assert value("pdd_legs", site="shenzhen", role="prefill") == 1


def test_the_names_that_vllm_gives_them(metrics, value):
    there = Deployment(metrics, vllm_aliases=True)
    there.up("shenzhen/memory/0")
    for route in ("relay", "local"):
        meter = metrics.requests.arrived(7, 0.0, lambda route=route: route)
        meter.saw(emit(0, 1), 1.0)
        meter.saw(emit(1, 1), 1.5)
        meter.saw(finish(), 2.0)
    metrics.ended(told(leg(Role.PREFILL, "hami")), finish(), None)
    gateway = {"model_name": MODEL, "engine": "0"}
    for name, count, total in (
        ("time_to_first_token_seconds", 2, 2.0),
        ("inter_token_latency_seconds", 2, 1.0),
        ("time_per_output_token_seconds", 2, 1.0),
        ("request_time_per_output_token_seconds", 2, 1.0),
        ("e2e_request_latency_seconds", 2, 4.0),
        ("request_queue_time_seconds", 1, 0.5),
        ("request_prefill_time_seconds", 1, 1.0),
        ("request_decode_time_seconds", 2, 1.0),
        ("request_prompt_tokens", 2, 14),
        ("request_generation_tokens", 2, 4),
    ):
        assert value(f"vllm:{name}_count", **gateway) == count, name
        assert value(f"vllm:{name}_sum", **gateway) == total, name
        assert value(f"vllm:{name}_bucket", le="+Inf", **gateway) == count, name
    assert value("vllm:prompt_tokens_total", **gateway) == 14
    assert value("vllm:generation_tokens_total", **gateway) == 4
    assert value("vllm:prefix_cache_queries_total", **gateway) == 7
    assert value("vllm:prefix_cache_hits_total", **gateway) == 4
    assert value("vllm:request_success_total", finished_reason="stop", **gateway) == 2
    assert value("vllm:num_requests_running", **gateway) == 0
    assert value("vllm:num_requests_waiting", **gateway) == 0
    engine = {"model_name": MODEL, "engine": "shenzhen/memory/0"}
    assert value("vllm:kv_cache_usage_perc", **engine) == 0.5


def test_without_the_switch_there_are_no_aliases(metrics):
    Deployment(metrics)
    assert b"vllm:" not in metrics.render()


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
    world = Deployment(metrics).machine.ctx.world
    ends = {"from": "hami", "to": "shenzhen"}
    link = world.links["hami", "shenzhen"] = LinkView(0.05, 1e6)
    world.links["shenzhen", "hami"] = LinkView(0.05, 1e6)
    for name in ("goodput_bytes_per_second", "rtt_seconds", "loss_ratio"):
        assert value(f"pdd_link_{name}", **ends) is None
    assert value("pdd_link_queue_bytes", **ends) == 0
    assert value("pdd_link_bandwidth_bytes_per_second", **ends) == 1e6
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
        metrics.load("hami", load(worker=worker, links=links))
        return tuple(value(f"pdd_kv_{name}_bytes_total", **ends) for name in ("sent", "resent"))

    assert sent("p0") == (None, None)
    assert sent("p0", link_load()) == (100, 10)
    assert sent("p0", link_load(sent_bytes=150)) == (150, 10)
    # another worker has sent long before this gateway came
    assert sent("p1", link_load(sent_bytes=9000, resent_bytes=900)) == (150, 10)
    assert sent("p1", link_load(sent_bytes=9001, resent_bytes=901)) == (151, 11)
    assert sent("p0", link_load(sent_bytes=7, resent_bytes=0)) == (158, 11)
    assert sent("p0", link_load(sent_bytes=8, resent_bytes=1)) == (159, 12)


def test_two_gateways_share_nothing(metrics, value):
    other = Metrics(CollectorRegistry(), MODEL)
    other.requests.arrived(5, 0.0, lambda: None).gone()
    assert value("pdd_tokens_total", model=MODEL, kind="prompt") == 0
