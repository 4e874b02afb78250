"""Stores in a replay: they hold what real ones hold, and bring what that is worth."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.replay.driver import Replay
from orchestrator.replay.faults import WorkersLost
from orchestrator.replay.prompt import Prompt
from orchestrator.replay.setup import ReplaySetup
from orchestrator.replay.stores.tiers import ModelStore, StoreSpec, key, short
from orchestrator.state.events import Arrived, Route
from tests.orchestrator.replay.rig import deployment, replayed
from tests.workers.tiers.blocks_rig import written
from workers.tiers.blocks import KEY_BYTES, Block, checksum
from workers.tiers.store import BlockStore, StoreConfig

BLOCK = 16
BLOCK_BYTES = BLOCK * 100_000
GB = 1_000_000_000
STORES = tuple(
    StoreSpec(site=site, pool=pool, memory_bytes=GB, files_bytes=10 * GB)
    for site, pool in (("near", "prefill"), ("far", "main"))
)


# ------------------------------------------------------------------------------- one store


@pytest.mark.parametrize("policy", ["lru", "s3-fifo"])
@pytest.mark.parametrize("files", [0, 400])
def test_a_model_holds_what_a_real_store_holds(
    tmp_path_factory: pytest.TempPathFactory, policy: str, files: int
) -> None:
    """Block by block, through evictions, hits and promotions: the policies are the same."""
    nbytes, memory = 10, 200
    model = ModelStore(
        StoreSpec(site="s", pool="p", memory_bytes=memory, files_bytes=files, policy=policy), nbytes
    )
    real = BlockStore(
        StoreConfig(
            memory_bytes=memory,
            files=tmp_path_factory.mktemp("blocks") if files else None,
            files_bytes=files,
            policy=policy,
        )
    )
    data = bytes(nbytes)
    draw = random.Random(5)
    for _ in range(300):
        keys = [key(draw.randrange(80)) for _ in range(draw.randrange(1, 5))]
        keys = list(dict.fromkeys(keys))
        if draw.random() < 0.6:
            for name in keys:  # within one put a real one's writer may be behind
                real.put("all", [(name, Block(data, checksum(name, data)))])
                written(real)
                model.put([name])
        else:
            there = [name for name in keys if real.find([name])[0] is not None]
            assert there == [name for name in keys if model.find([name])[0] is not None]
            for name in there:
                assert real.get(name) is not None
                written(real)
                model.loaded([name])
        everything = [key(number) for number in range(80)]
        assert real.find(everything) == model.find(everything)
    told = model.since(b"")
    assert set(told.added) == {
        name[16:24] for name, tier in zip(everything, model.find(everything), strict=True) if tier
    }


def test_names_of_any_workload_fit() -> None:
    assert len({short(name) for name in (0, 1, -1, (1 << 63) - 1, -(1 << 63))}) == 5
    assert key(7)[16:24] == short(7)
    assert len(key(7)) == KEY_BYTES


# ------------------------------------------------------------------------------- a deployment


def asked(
    number: int, at: float, blocks: Sequence[int], route: Route | None
) -> tuple[float, Arrived]:
    prompt = Prompt(len(blocks) * BLOCK + 8, tuple(blocks))
    return at, Arrived(request=f"r{number}", prompt_ids=prompt, limit=20, route=route)


def forgetful(**changes: object) -> ReplaySetup:
    """Workers that keep prefixes, and are all started anew at 20 s."""
    lost = tuple(WorkersLost(name=site, at=20.0, until=21.0) for site in ("near", "far"))
    return deployment(block_tokens=BLOCK, faults=lost, **changes)


def twice(setup: ReplaySetup, route: Route | None = Route.DIRECT) -> Replay:
    """A prompt of 4000 tokens, and again when every worker has forgotten it."""
    return replayed(setup, [asked(n, 1.0 + 30 * n, range(250), route) for n in range(2)])


@pytest.mark.parametrize("route", [Route.DIRECT, Route.RELAY, Route.LOCAL])
def test_what_workers_forget_stores_have(route: Route) -> None:
    near_main = StoreSpec(site="near", pool="main", memory_bytes=GB)
    without = twice(forgetful(), route).outcomes
    stored = twice(forgetful(stores=(*STORES, near_main)), route).outcomes
    assert without["r1"].prefill_hit == without["r1"].main_hit == 0
    first, again = stored["r0"], stored["r1"]
    assert (first.prefill_hit, first.from_memory) == (0, 0)
    assert again.prefill_hit == again.from_memory == 4000
    ttft = {name: o.first_at - o.asked_at for name, o in stored.items() if o.first_at is not None}
    assert ttft["r1"] < 0.7 * ttft["r0"]
    if route is not Route.LOCAL:
        assert again.main_hit == 4000
        assert again.wire_bytes < 0.01 * first.wire_bytes


def test_what_left_memory_comes_from_files() -> None:
    small = tuple(
        replace(store, memory_bytes=100 * BLOCK_BYTES, files_bytes_per_s=5e9) for store in STORES
    )
    again = twice(forgetful(stores=small)).outcomes["r1"]
    assert again.from_memory > 0 < again.from_files
    assert again.from_memory + again.from_files == 4000


def test_what_is_computed_sooner_is_not_loaded() -> None:
    """10000 tokens a second are 1 GB/s of KV here."""
    slow = tuple(replace(store, memory_bytes_per_s=5e8, files_bytes_per_s=1e8) for store in STORES)
    again = twice(forgetful(stores=slow)).outcomes["r1"]
    assert again.from_memory == again.from_files == 0
    assert again.prefill_hit == 0
    assert again.main_hit == 4000, "its line is slower still"


def test_a_store_gives_one_load_after_the_other() -> None:
    """Ten prompts at once want what is in one store: the last to come would wait too long."""
    setup = forgetful(stores=STORES)
    documents = [range(1000 * d, 1000 * d + 250) for d in range(10)]
    asks = [asked(d, 0.5 * d, blocks, Route.DIRECT) for d, blocks in enumerate(documents)]
    asks += [asked(10 + d, 31.0, blocks, Route.DIRECT) for d, blocks in enumerate(documents)]
    outcomes = replayed(setup, asks).outcomes
    again = [outcomes[f"r{10 + d}"] for d in range(10)]
    loaded = [outcome.from_memory + outcome.from_files for outcome in again]
    assert max(loaded) == 4000
    assert min(loaded) < 4000


def test_the_router_goes_where_a_store_has_the_prompt() -> None:
    """Two sites prefill alike; one store has seen the prompt."""
    setup = forgetful()
    workers = tuple(
        replace(w, roles=frozenset({*w.roles, *setup.workers[0].roles})) for w in setup.workers
    )
    asks = [asked(0, 1.0, range(250), Route.LOCAL), asked(1, 40.0, range(250), None)]
    where = {}
    for name, stores in (("with", STORES), ("without", ())):
        replay = replayed(replace(setup, workers=workers, stores=stores), asks)
        end = replay.outcomes["r1"].end
        where[name] = replay.outcomes["r1"].prefill_hit
        assert end is not None
    assert where == {"with": 4000, "without": 0}


def test_a_replay_with_stores_is_repeatable() -> None:
    draw = random.Random(2)
    asks = []
    for number in range(120):
        start = draw.randrange(20) * 1000
        blocks = range(start, start + draw.randrange(5, 120))
        asks.append(asked(number, 0.4 * number, blocks, None))
    small = tuple(replace(store, memory_bytes=300 * BLOCK_BYTES) for store in STORES)
    one, other = (
        [
            (o.first_at, o.last_at, o.prefill_hit, o.from_memory, o.from_files, o.wire_bytes)
            for o in replayed(forgetful(stores=small), asks).outcomes.values()
        ]
        for _ in range(2)
    )
    assert one == other
    assert sum(from_memory for _, _, _, from_memory, _, _ in one) > 0


def test_prompts_without_names_are_in_no_store() -> None:
    setup = forgetful(stores=STORES)
    outcomes = replayed(replace(setup, block_tokens=None), [asked(0, 1.0, (), None)]).outcomes
    assert outcomes["r0"].prefill_hit == 0
