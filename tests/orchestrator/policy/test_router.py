"""The router's decision table: where a request runs, and why it runs nowhere."""

from dataclasses import dataclass, field, replace

import pytest

from orchestrator.policy.router import Ask, Decision, Refusal, choose, place
from orchestrator.state.events import Route, WorkerUp
from orchestrator.state.links import LinkView, Transfer
from orchestrator.state.views import SAME_SITE_RTT_S, Booking, WorkerView, World
from workers.api.budget import Budget
from workers.api.messages import Load, Role

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
KV_BYTES = 20_000  # of one token


@dataclass(frozen=True)
class W:
    """One worker of a table row. Steps in seconds, the rest in tokens."""

    site: str
    roles: tuple[Role, ...]
    step_s: float = 0.05
    slots: int = 8
    busy: int = 0
    tokens: int = 8000
    booked: int = 0
    queue: int = 0
    context: int = 8192
    draining: bool = False
    prefill: float = 200.0
    keeps: Budget | None = None


@dataclass(frozen=True)
class Setting:
    """Two sites 4000 km apart: prefill and relay in one, main in the other; 10 Mbps between."""

    workers: dict[str, W] = field(
        default_factory=lambda: {
            "p0": W("hami", (P,)),
            "r0": W("hami", (R,)),
            "m0": W("shenzhen", (M,)),
        }
    )
    rate: float | None = 1.25e6  # bytes/s; None: no link
    queued: int = 0  # bytes
    gateway: str = "shenzhen"

    def but(self, name: str, **changes: object) -> "Setting":
        worker = replace(self.workers[name], **changes)  # type: ignore[arg-type]
        return replace(self, workers={**self.workers, name: worker})

    def also(self, name: str, worker: W) -> "Setting":
        return replace(self, workers={**self.workers, name: worker})

    def without(self, *names: str) -> "Setting":
        left = {name: worker for name, worker in self.workers.items() if name not in names}
        return replace(self, workers=left)

    def world(self) -> World:
        world = World(gateway_site=self.gateway)
        for name, w in self.workers.items():
            world.workers[name] = view = WorkerView(
                up=WorkerUp(
                    worker=name,
                    site=w.site,
                    pool=name,
                    roles=frozenset(w.roles),
                    slots=w.slots,
                    max_context=w.context,
                    kv_total_tokens=w.tokens,
                    kv_bytes_per_token=KV_BYTES,
                    keeps=w.keeps,
                ),
                draining=w.draining,
                load=Load(
                    worker=name,
                    running=w.busy,
                    prefill_tokens=w.queue,
                    kv_free_tokens=w.tokens,
                    kv_total_tokens=w.tokens,
                    kv_held_tokens=0,
                    step_s=w.step_s,
                    prefill_tokens_per_s=w.prefill,
                ),
            )
            for i in range(w.busy):
                view.book(("other", i), Booking(role=M, tokens=0))
            if w.booked or w.queue:
                booking = Booking(
                    role=P, tokens=w.booked, decoding_slot=False, prefill_tokens=w.queue
                )
                view.book(("other", -1), booking)
        if self.rate is not None:
            for ends in (("hami", "shenzhen"), ("shenzhen", "hami")):
                world.links[ends] = link = LinkView(0.05, self.rate)
                if self.queued:
                    link.enqueue(("other", 0), Transfer("p0", self.queued, 0.0))
        return world


TWO = Setting()
TWO_WITH_LOCAL = TWO.also("l0", W("hami", (M,)))
ONE_FOR_ALL = Setting(workers={"x0": W("hami", (P, R, M))})
ASK = Ask(tokens=600, remaining=128)

ROWS: dict[str, tuple[Setting, Ask, tuple[object, ...]]] = {
    # 12 MB of KV need 9.6 s over the line, 3 s of them while prefill runs
    "the relay hides the wire": (TWO, ASK, (Route.RELAY, "p0", "r0", "m0")),
    "a main beside the prefill needs no wire": (
        TWO_WITH_LOCAL,
        ASK,
        (Route.LOCAL, "p0", None, "l0"),
    ),
    "a far main that is much faster is worth the wire": (
        TWO_WITH_LOCAL.but("l0", step_s=0.5).but("m0", step_s=0.01),
        ASK,
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "prefill and main on one worker": (ONE_FOR_ALL, ASK, (Route.LOCAL, "x0", None, "x0")),
    "one worker with a slot too few for both legs": (
        ONE_FOR_ALL.but("x0", slots=2, busy=1),
        ASK,
        Refusal.BUSY,
    ),
    "one worker that never has slots for both": (
        ONE_FOR_ALL.but("x0", slots=1),
        ASK,
        Refusal.NOBODY,
    ),
    "one worker whose memory holds one leg, never both": (
        ONE_FOR_ALL.but("x0", tokens=1000),
        ASK,
        Refusal.NOBODY,
    ),
    # prefix hit at main: what is missing is what must be sent
    "all of the prompt is at main: no relay": (
        TWO,
        replace(ASK, hits={"m0": 600}),
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "the hit at main is too short to matter": (
        TWO,
        replace(ASK, hits={"m0": 16}),
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "a hit chooses among mains": (
        TWO.also("m1", W("shenzhen", (M,))),
        replace(ASK, hits={"m1": 600}),
        (Route.DIRECT, "p0", None, "m1"),
    ),
    "a hit at the prefill chooses among prefills": (
        TWO.also("p1", W("hami", (P,))),
        replace(ASK, hits={"p1": 592}),
        (Route.RELAY, "p1", "r0", "m0"),
    ),
    # the line
    "a fast line: the KV lands before prefill has ended": (
        replace(TWO, rate=1e9),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "the same line with a queue in front": (
        replace(TWO, rate=1e9, queued=8_000_000_000),
        ASK,
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "a queue on the line makes a slow local main the better one": (
        replace(TWO_WITH_LOCAL.but("l0", step_s=0.06).without("r0"), rate=1e9, queued=10**10),
        ASK,
        (Route.LOCAL, "p0", None, "l0"),
    ),
    "without that queue the far main wins": (
        replace(TWO_WITH_LOCAL.but("l0", step_s=0.06).without("r0"), rate=1e9),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "no line between the sites": (replace(TWO, rate=None), ASK, Refusal.NOBODY),
    # relay load
    "the relay is full": (TWO.but("r0", busy=8), ASK, (Route.DIRECT, "p0", None, "m0")),
    # 728 tokens: the prompt and all that may follow while the KV crosses the line
    "the relay has no room for what it will decode": (
        TWO.but("r0", tokens=700),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "a busier relay has": (
        TWO.but("r0", tokens=700).also("r1", W("hami", (R,), busy=3)),
        ASK,
        (Route.RELAY, "p0", "r1", "m0"),
    ),
    "the lighter of two relays": (
        TWO.but("r0", busy=4).also("r1", W("hami", (R,), busy=3)),
        ASK,
        (Route.RELAY, "p0", "r1", "m0"),
    ),
    "the relay's memory is booked": (
        TWO.but("r0", booked=7500),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "a relay in main's site helps nobody": (
        TWO.but("r0", site="shenzhen"),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "a relay leg fits beside the prefill on one worker": (
        TWO.without("r0").but("p0", roles=(P, R)),
        ASK,
        (Route.RELAY, "p0", "p0", "m0"),
    ),
    "it does not when there is one slot": (
        TWO.without("r0").but("p0", roles=(P, R), slots=1),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    # predicted output
    "a short answer ends at a slow local main before the KV lands far away": (
        TWO_WITH_LOCAL.but("l0", step_s=0.2).but("m0", step_s=0.01).but("r0", step_s=0.2),
        replace(ASK, remaining=8),
        (Route.LOCAL, "p0", None, "l0"),
    ),
    "a long answer is worth the journey": (
        TWO_WITH_LOCAL.but("l0", step_s=0.2).but("m0", step_s=0.01).but("r0", step_s=0.2),
        replace(ASK, remaining=512),
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "one token needs no decode: the prefill is enough": (
        TWO.without("r0", "m0"),
        replace(ASK, remaining=1),
        (Route.LOCAL, "p0", None, "p0"),
    ),
    "one token does not wait for main": (
        TWO.but("m0", busy=8),
        replace(ASK, remaining=1),
        (Route.LOCAL, "p0", None, "p0"),
    ),
    # forced
    "a forced route is taken although another is faster": (
        TWO_WITH_LOCAL,
        replace(ASK, forced=Route.DIRECT),
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "forced relay": (
        TWO_WITH_LOCAL,
        replace(ASK, forced=Route.RELAY),
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "forced local": (TWO_WITH_LOCAL, replace(ASK, forced=Route.LOCAL), (Route.LOCAL, "p0")),
    "a forced route without room falls back": (
        TWO_WITH_LOCAL.but("r0", busy=8),
        replace(ASK, forced=Route.RELAY),
        (Route.LOCAL, "p0", None, "l0"),
    ),
    "a forced route that does not exist falls back": (
        TWO,
        replace(ASK, forced=Route.LOCAL),
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    # who may serve
    "an excluded main": (TWO, replace(ASK, excluded=frozenset({"m0"})), Refusal.NOBODY),
    "an excluded relay": (
        TWO,
        replace(ASK, excluded=frozenset({"r0"})),
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "a draining worker takes no new legs": (
        TWO.but("r0", draining=True),
        ASK,
        (Route.DIRECT, "p0", None, "m0"),
    ),
    "every main drains": (TWO.but("m0", draining=True), ASK, Refusal.NOBODY),
    "roles limit placement": (TWO.without("p0"), ASK, Refusal.NOBODY),
    "after a failure any live worker may serve": (
        TWO.without("p0"),
        replace(ASK, any_role=True),
        (Route.LOCAL, "m0", None, "m0"),
    ),
    "the last worker serves all": (
        TWO.without("p0", "m0"),
        replace(ASK, any_role=True),
        (Route.LOCAL, "r0", None, "r0"),
    ),
    "the longer queue of prompts": (
        TWO.but("p0", queue=3000).also("p1", W("hami", (P,), queue=100)),
        ASK,
        (Route.RELAY, "p1", "r0", "m0"),
    ),
    "the faster prefill in spite of its queue": (
        TWO.also("p1", W("hami", (P,), queue=600, prefill=2000.0)),
        ASK,
        (Route.RELAY, "p1", "r0", "m0"),
    ),
    # refusals
    "main's slots are taken": (TWO.but("m0", busy=8), ASK, Refusal.BUSY),
    "main's memory is booked": (TWO.but("m0", booked=7300), ASK, Refusal.BUSY),
    "main has just enough memory": (
        TWO.but("m0", booked=8000 - 728),
        ASK,
        (Route.RELAY, "p0", "r0", "m0"),
    ),
    "the prefill is full": (TWO.but("p0", busy=8), ASK, Refusal.BUSY),
    "longer than any memory": (TWO, replace(ASK, tokens=7900), Refusal.TOO_LONG),
    "longer than any context": (
        TWO.but("p0", context=700).but("r0", context=700).but("m0", context=700),
        ASK,
        Refusal.TOO_LONG,
    ),
    "nobody is alive": (TWO.without("p0", "r0", "m0"), ASK, Refusal.NOBODY),
}


def outline(found: Decision | Refusal) -> tuple[object, ...] | Refusal:
    if isinstance(found, Refusal):
        return found
    return (found.route, found.prefill, found.relay, found.main)


@pytest.mark.parametrize("case", ROWS)
def test_decision_table(case: str) -> None:
    setting, ask, wanted = ROWS[case]
    got = outline(choose(ask, setting.world()))
    assert got == wanted or (isinstance(got, tuple) and got[: len(wanted)] == wanted)


@pytest.mark.parametrize("case", ROWS)
def test_the_order_in_which_workers_came_decides_nothing(case: str) -> None:
    setting, ask, _ = ROWS[case]
    turned = replace(setting, workers=dict(reversed(setting.workers.items())))
    assert choose(ask, turned.world()) == choose(ask, setting.world())


def test_predicted_times_of_the_relay_route() -> None:
    """T_kv = max(0, V / B - prefill) + d; the relay bridges T_kv / tau_R."""
    found = choose(ASK, TWO.world())
    assert isinstance(found, Decision)
    assert found.ttft_s == pytest.approx(600 / 200 + 0.05)
    kv_s = 600 * KV_BYTES / 1.25e6 - 3.0 + 0.025
    assert found.relay_tokens == 128  # 6.6 s at 50 ms each would be 133: more than it may decode
    longer = choose(replace(ASK, remaining=500), TWO.world())
    assert isinstance(longer, Decision)
    assert longer.relay_tokens == -(-(kv_s + 0.05) // 0.05)
    assert found.stall_s == pytest.approx(0.05 + 0.05, abs=0.02)


def test_predicted_stall_of_the_direct_route_is_the_wire() -> None:
    found = choose(replace(ASK, forced=Route.DIRECT), TWO.world())
    assert isinstance(found, Decision)
    assert found.stall_s == pytest.approx(9.6 - 3.0 + 0.025 + 0.05)


def test_kv_inside_a_site_streams_while_prefill_runs() -> None:
    """12 MB at 2 MB/s take 6 s, of which 3 s of prefill hide half; at 10 MB/s nothing is left."""

    def stall_s(rate: float) -> float:
        world = TWO_WITH_LOCAL.world()
        world.site_bytes_per_s = {"hami": rate}
        found = choose(replace(ASK, forced=Route.LOCAL), world)
        assert isinstance(found, Decision)
        return found.stall_s

    assert stall_s(2e6) == pytest.approx(6.0 - 3.0 + SAME_SITE_RTT_S / 2 + 0.05)
    assert stall_s(10e6) == pytest.approx(0.05 + 0.05)  # the way to the gateway and back


def test_a_slow_network_beside_the_prefill_is_no_reason_for_a_relay() -> None:
    world = TWO.world()
    world.site_bytes_per_s = {"hami": 1e6}  # less than the line
    assert outline(choose(ASK, world)) == (Route.DIRECT, "p0", None, "m0")


def test_prompts_before_this_one_do_not_hide_its_kv() -> None:
    """10 s of them: the line's queue of 4 s is gone by then, but none of this prompt's KV is."""
    direct = replace(ASK, forced=Route.DIRECT)
    busy = choose(direct, replace(TWO.but("p0", queue=2000), queued=5_000_000).world())
    assert isinstance(busy, Decision)
    assert busy.ttft_s == pytest.approx(2600 / 200 + 0.05)
    assert busy.stall_s == pytest.approx(9.6 - 3.0 + 0.025 + 0.05)
    longer = choose(direct, replace(TWO.but("p0", queue=2000), queued=15_000_000).world())
    assert isinstance(longer, Decision)
    assert longer.stall_s == pytest.approx(12.0 - 10.0 + 9.6 - 3.0 + 0.025 + 0.05)


def test_a_reported_speed_of_nothing_is_no_speed() -> None:
    setting = TWO.but("p0", prefill=0.0).but("m0", step_s=0.0).but("r0", step_s=0.0)
    assert isinstance(choose(ASK, setting.world()), Decision)


# ---------------------------------------------------------------- one leg


def placed(setting: Setting, role: Role, **fields: object) -> str | None:
    given: dict[str, object] = {"context": 728, "near": "hami", "hits": {}, **fields}
    return place(role, 728, setting.world(), **given)  # type: ignore[arg-type]


def test_a_leg_goes_to_the_nearest_site_with_its_role() -> None:
    assert placed(TWO, M) == "m0"
    assert placed(TWO_WITH_LOCAL, M) == "l0"
    assert placed(TWO_WITH_LOCAL, M, near="shenzhen") == "m0"


def test_then_to_the_worker_that_has_its_prefix_then_to_the_lightest() -> None:
    three = TWO.but("m0", busy=2).also("m1", W("shenzhen", (M,), busy=1))
    assert placed(three, M) == "m1"
    assert placed(three, M, hits={"m0": 160}) == "m0"


def test_a_leg_never_goes_where_there_is_no_room() -> None:
    assert placed(TWO.but("m0", busy=8), M) is None
    assert placed(TWO.but("m0", booked=7500), M) is None
    assert placed(TWO.but("m0", draining=True), M) is None
    assert placed(TWO, M, excluded=frozenset({"m0"})) is None
    assert placed(replace(TWO, rate=None), M) is None


def test_a_leg_never_goes_where_it_does_not_fit_the_context() -> None:
    assert placed(TWO.but("m0", context=700), M) is None


def test_with_any_role_those_who_have_it_still_come_first() -> None:
    assert placed(TWO, M, any_role=True) == "m0"
    assert placed(TWO.but("m0", busy=8), M, any_role=True) == "p0"


@pytest.mark.parametrize(
    ("prefill", "queue", "where"),
    [
        (20.0, 10, "p1"),  # half a second to wait, and loading takes a tenth of that
        (20.0, 0, "p0"),  # nothing to wait for: its own cache costs less than any load
        (1e6, 2000, "p0"),  # computed so fast that nobody would load it: twice the wait
    ],
)
def test_a_stores_hit_is_worth_what_loading_spares(prefill: float, queue: int, where: str) -> None:
    """p0 has the prompt, and others to compute first; p1 would load it, 80 MB."""
    setting = (
        Setting()
        .but("p0", prefill=prefill, queue=queue)
        .also("p1", W("hami", (P,), prefill=prefill))
    )
    ask = Ask(tokens=4001, remaining=10, hits={"p0": 4000, "p1": 4000}, loads={"p1": 4000})
    found = choose(ask, setting.world())
    assert isinstance(found, Decision)
    assert found.prefill == where


def test_a_mains_own_cache_goes_before_its_sites_store() -> None:
    setting = Setting().also("m1", W("shenzhen", (M,), booked=2000)).but("m0", booked=0)
    ask = Ask(tokens=100, remaining=10, hits={"m0": 96, "m1": 96}, loads={"m0": 96})
    found = choose(ask, setting.world())
    assert isinstance(found, Decision)
    assert found.main == "m1"


def test_a_pruned_prompt_is_a_tenth_on_the_wire_and_leaves_when_all_of_it_is_computed() -> None:
    tenth = Budget(budget=60, slack=10, recent=10)
    whole, pruned = (
        choose(replace(ASK, forced=Route.DIRECT), setting.world())
        for setting in (TWO, TWO.but("p0", keeps=tenth))
    )
    assert isinstance(whole, Decision)
    assert isinstance(pruned, Decision)
    # 9.6 s on the line, 3 s of them beside prefill; then 0.96 s, none of them.
    assert whole.stall_s == pytest.approx(9.6 - 3.0 + 0.025 + 0.05)
    assert pruned.stall_s == pytest.approx(0.96 + 0.025 + 0.05)
