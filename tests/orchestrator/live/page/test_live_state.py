"""What the page is told: from a core that the test plays, without a socket."""

import json
from typing import Any

from orchestrator.lifecycle.timeline import timeline
from orchestrator.live.page.requests import FAILURES_KEPT, KEPT, Recent
from orchestrator.live.page.state import LiveState
from orchestrator.membership.members import Members
from orchestrator.membership.reach import CameUp, Lost
from orchestrator.membership.reports import Hello
from orchestrator.state.actions import Fail, Failure
from tests.orchestrator.lifecycle.machine_rig import MAIN, PREFILL, PROMPT, RELAY, MachineRig
from workers.api.messages import LinkLoad, Load, Role

SITES = ("hami", "shenzhen", "nowhere")


class Watched:
    """A machine rig beside the members and the memory that a driver would keep."""

    def __init__(self) -> None:
        self.rig = MachineRig()
        self.members = Members(frozenset(), SITES)
        self.recent = Recent(lambda: self.rig.now)
        self.live = LiveState(self.rig.machine, self.members, self.recent, model="smol")
        for name, site in (("p0", "hami"), ("r0", "hami"), ("m0", "shenzhen")):
            self.members.join(name, site, "pool", frozenset({Role.MAIN}))
            hello = Hello(
                worker=name,
                incarnation="one",
                pid=1,
                slots=8,
                max_context=4096,
                kv_total_tokens=4096,
                kv_bytes_per_token=20_000,
                block_size=16,
            )
            self.members.learn(name, CameUp(hello=hello))
            self.report(name)

    def report(self, name: str, *, sent: int = 0, queue: int = 0) -> None:
        link = LinkLoad(
            site="shenzhen",
            goodput_bytes_per_s=None,
            rtt_s=None,
            loss=None,
            queue_bytes=queue,
            uncoded_bytes=0,
            sent_bytes=sent,
            resent_bytes=0,
        )
        load = Load(
            worker=name,
            running=1,
            prefill_tokens=30,
            kv_free_tokens=4000,
            kv_total_tokens=4096,
            kv_held_tokens=40,
            step_s=0.02,
            prefill_tokens_per_s=None,
            links=(link,) if sent or queue else (),
        )
        for event in self.members.heard(name, [load]):
            self.rig.tell(event)

    def told(self) -> dict[str, Any]:
        """As the page reads it: through JSON."""
        state: dict[str, Any] = json.loads(json.dumps(self.live.describe(None, self.rig.now)))
        return state

    def passes(self, seconds: float, sent: int | None = None, queue: int = 0) -> dict[str, Any]:
        """Time passes second by second; workers report each, and the page asks."""
        for i in range(round(seconds)):
            self.rig.now += 1.0
            self.report("r0")
            self.report("m0")
            self.report("p0", sent=(sent or 0) * (i + 1) or 1, queue=queue)
            told = self.told()
        return told

    def line(self, told: dict[str, Any], a: str, b: str) -> dict[str, Any]:
        return next(x for x in told["links"] if (x["from"], x["to"]) == (a, b))


def test_an_open_request_shows_its_legs_and_no_token() -> None:
    w = Watched()
    w.rig.arrive(limit=40)
    w.rig.now += 1.5
    w.rig.run(PREFILL, 0, 49_151, cached=16)
    w.rig.landed(RELAY)
    w.rig.now += 0.5
    w.rig.run(RELAY, 1, 49_150)
    told = w.told()
    [request] = told["open"]
    assert (request["phase"], request["route"], request["tokens"]) == ("relay", "relay", 2)
    assert (request["prompt_tokens"], request["cached_tokens"]) == (len(PROMPT), 16)
    assert (request["routed_s"], request["first_token_s"], request["age_s"]) == (0.0, 1.5, 2.0)
    prefill, relay, main = request["legs"]
    assert (prefill["worker"], prefill["first_s"], prefill["first_index"]) == ("p0", 1.5, 0)
    assert (relay["kv_from"], relay["landed_s"], relay["first_index"]) == ("hami", 1.5, 1)
    assert (main["site"], main["kv_s"], main["landed_s"]) == ("shenzhen", 0.0, None)
    assert told["requests"]["open"] == 1
    assert "4915" not in json.dumps(told), "no token is told"
    workers = {x["name"]: x for site in told["sites"] for x in site["workers"]}
    assert workers["m0"]["legs"] == {"main": 1}
    assert (workers["m0"]["kv_blocks"], workers["m0"]["kv_blocks_used"]) == (256, 3)
    assert (workers["m0"]["slots"], workers["m0"]["slots_used"]) == (8, 1)
    assert (workers["p0"]["legs"], workers["p0"]["slots_used"]) == ({"prefill": 1}, 0), "it holds"


def test_the_memory_is_bounded() -> None:
    w = Watched()
    w.rig.arrive()
    told = timeline(w.rig.req, w.rig.now)
    for i in range(3 * KEPT):
        fail = Fail(request=f"g-{i}", failure=Failure.TIMED_OUT, message="at 10.0.0.7:99 in /etc/x")
        w.recent.ended(told, fail, None)
        w.recent.ended(None, fail, None)
    w.recent.ended(told, None, None)
    seen = w.told()
    assert len(seen["recent"]) == KEPT
    assert seen["recent"][0]["outcome"] == "cancelled"
    assert seen["recent"][1]["outcome"] == "timed_out"
    assert len(seen["failures"]) == FAILURES_KEPT
    assert seen["requests"]["ended"] == 6 * KEPT + 1
    said = seen["failures"][0]["message"]
    assert "10.0.0.7" not in said
    assert "/etc" not in said


def test_what_a_line_carries_is_seen_from_what_workers_have_sent() -> None:
    w = Watched()
    assert w.line(w.told(), "hami", "shenzhen")["sending_bytes_per_s"] is None
    there = w.line(w.passes(6, sent=1000, queue=5000), "hami", "shenzhen")
    assert there["sending_bytes_per_s"] == 1000
    assert (there["state"], there["queue_bytes"]) == ("busy", 5000)
    assert there["bandwidth_bytes_per_s"] == 20_000
    back = w.line(w.told(), "shenzhen", "hami")
    assert (back["state"], back["queue_bytes"]) == ("idle", 0)


def test_kv_that_waits_and_does_not_move_is_told() -> None:
    w = Watched()
    there = w.line(w.passes(8, queue=5000), "hami", "shenzhen")
    assert (there["state"], there["sending_bytes_per_s"]) == ("stalled", 0)


def test_silent_and_lost_sites_are_told() -> None:
    w = Watched()
    states = {site["name"]: site["state"] for site in w.told()["sites"]}
    assert states == {"hami": "up", "shenzhen": "up", "nowhere": "lost"}
    for _ in range(5):
        w.rig.now += 1.0
        w.report("m0")
        w.members.drain("r0")
        told = w.told()
    states = {site["name"]: site["state"] for site in told["sites"]}
    assert states == {"hami": "silent", "shenzhen": "up", "nowhere": "lost"}
    assert w.line(told, "hami", "shenzhen")["state"] == "silent"
    assert w.line(told, "shenzhen", "hami")["state"] == "silent"
    for name in ("p0", "r0"):
        w.members.learn(name, Lost(reason="gone"))
    told = w.told()
    assert [site["state"] for site in told["sites"]] == ["lost", "up", "lost"]
    assert [x["state"] for x in told["sites"][0]["workers"]] == ["down", "down"]


def test_nobody_who_looks_again_later_is_told_an_old_rate() -> None:
    w = Watched()
    w.passes(6, sent=1000)
    w.rig.now += 60
    assert w.line(w.told(), "hami", "shenzhen")["sending_bytes_per_s"] is None


def test_an_ended_request_stays_as_it_was() -> None:
    w = Watched()
    w.rig.arrive(limit=3)
    req = w.rig.req
    w.rig.run(PREFILL, 0, 10)
    w.rig.landed(RELAY)
    w.rig.run(RELAY, 1, 11)
    w.rig.landed(MAIN)
    w.rig.now += 1
    w.rig.run(MAIN, 2, 12)
    w.recent.ended(timeline(req, w.rig.now), w.rig.end, None)
    before = w.told()["recent"]
    w.rig.now += 100
    [after] = w.told()["recent"]
    assert before == [after | {"ended_s_ago": 0.0}]
    assert (after["outcome"], after["handoff_index"], after["age_s"]) == ("length", 2, 1.0)


def test_a_site_that_somebody_drains_and_one_that_is_drained() -> None:
    w = Watched()
    w.members.stand("hami", drained=True)
    for name in ("p0", "r0"):
        w.members.drain(name)
    w.told()
    told = w.passes(1)
    assert [site["state"] for site in told["sites"]] == ["draining", "up", "lost"]
    for name in ("p0", "r0"):
        w.members.remove(name)
    told = w.told()
    assert [site["state"] for site in told["sites"]] == ["drained", "up", "lost"]
    assert w.line(told, "hami", "shenzhen")["state"] == "idle", "nobody speaks there, as wanted"
