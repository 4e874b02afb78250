"""Eviction over the simulated engine: memory that comes back, tokens and KV that stay right."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.workers.engines.simulated.simulated_rig import (
    COSTS,
    MODEL,
    A,
    B,
    engine,
    run,
    spec,
)
from workers.api.info import Part
from workers.engines.base import NoRoom, SeqId
from workers.engines.simulated.engine import SimulatedEngine
from workers.kv.evict.config import Eviction, Heads, Reclaim

PROMPT = tuple(range(100, 228))
HALF = Eviction(policy="random", budget=0.5, slack=8, recent=16, first=4, low=1.0)


def evicting(eviction: Eviction = HALF, tokens: int = 1024) -> SimulatedEngine:
    return SimulatedEngine(
        MODEL, COSTS, kv_total_tokens=tokens, block_size=16, chunk_tokens=32, eviction=eviction
    )


def prefilled(source: SimulatedEngine, seq: SeqId = A, more: int = 1) -> SimulatedEngine:
    source.open(seq, spec(PROMPT), reuse=True)
    source.set_goal(seq, len(PROMPT) + more)
    run(source)
    return source


def read_all(source: SimulatedEngine, seq: SeqId, stop: int) -> dict[tuple[int, str], np.ndarray]:
    return {
        (layer, part): source.read(seq, layer, part, 0, stop).data
        for layer, part in product(range(MODEL.layers), Part)
    }


def test_a_pruned_prompt_gives_its_memory_back_and_says_the_same_tokens() -> None:
    plain, pruned = prefilled(engine(), more=30), prefilled(evicting(), more=30)
    assert plain.kv_held_tokens() == 160
    kept = pruned.kept()
    assert pruned.kv_held_tokens() <= 96  # half of 157 tokens and the slack, in whole blocks
    assert kept.evicted_tokens >= 64
    assert kept.freed_blocks > 0
    assert kept.living_tokens <= kept.places <= 96
    assert pruned.length(A) == plain.length(A)  # modelled tokens do not depend on KV


def test_what_is_kept_has_its_own_bytes_and_positions() -> None:
    plain, pruned = prefilled(engine()), prefilled(evicting())
    whole = plain.read(A, 1, Part.KEY, 0, 128)
    some = pruned.read(A, 1, Part.KEY, 0, 128)
    assert len(some.positions) == 64
    assert set(range(4)) | set(range(112, 128)) <= set(some.positions.tolist())
    assert np.array_equal(some.data, whole.data[some.positions])


def test_the_reservation_shrinks_so_that_others_find_room() -> None:
    plain, pruned = engine(kv_total_tokens=256), evicting(tokens=256)
    for source in (plain, pruned):
        prefilled(source)
    with pytest.raises(NoRoom):
        plain.open(B, spec(tuple(range(64))), reuse=False)
    pruned.open(B, spec(tuple(range(64))), reuse=False)


def test_a_full_pool_is_packed_in_place_and_names_give_way() -> None:
    source = evicting(tokens=144)
    source.open(A, spec(PROMPT, reserve=144), reuse=False)
    source.set_goal(A, 129)
    run(source)
    assert source.kv_held_tokens() == 80
    assert source._keeping.counts.moved_tokens > 0
    source.close(A)
    assert source.open(B, spec(PROMPT, reserve=128), reuse=True) < 64


def test_naive_waits_for_whole_blocks() -> None:
    naive = prefilled(evicting(replace(HALF, reclaim=Reclaim.NAIVE)))
    assert naive.kv_held_tokens() == 144
    assert naive.kept().evicted_tokens == 64
    oldest = prefilled(
        evicting(replace(HALF, reclaim=Reclaim.NAIVE, policy="sink-recent", first=0))
    )
    assert oldest.kv_held_tokens() == 80


def test_plenty_of_free_blocks_is_left_alone() -> None:
    relaxed = prefilled(evicting(replace(HALF, low=0.5)))
    assert relaxed.kv_held_tokens() == 144
    assert relaxed.kept().freed_blocks == 0


def test_tokens_that_were_computed_among_the_dead_are_nobody_elses_prefix() -> None:
    source = prefilled(evicting(), more=60)
    tokens = tuple(source._sequences[A].tokens)
    source.close(A)
    assert source.kv_held_tokens() == 0
    # The prompt was computed while all of it lived: that much may be found, and no more.
    found = source.open(B, spec(tokens, prompt_len=len(tokens)), reuse=True)
    assert 0 < found <= 128


def test_a_found_prefix_is_emptied_and_not_written_over() -> None:
    source = prefilled(evicting())
    source.close(A)
    second = prefilled(source, B, more=40)
    whole = prefilled(engine()).read(A, 0, Part.VALUE, 0, 128)
    second.close(B)
    found = second.open(A, spec(PROMPT), reuse=True)
    assert found == 112
    assert np.array_equal(second.read(A, 0, Part.VALUE, 0, found).data, whole.data[:found])


def test_a_pruned_prompt_is_sendable_only_when_it_is_decided_what_it_keeps() -> None:
    source = evicting()
    source.open(A, spec(PROMPT), reuse=False)
    source.set_goal(A, len(PROMPT) + 1)
    seen, heard = [], []
    source.on_kv = lambda *what: heard.append(what)
    while (step := source.begin()) is not None:
        source.finish(step)
        seen.append((source.computed(A), source.sendable(A)))
    assert seen == [(32, 0), (64, 0), (96, 0), (128, 128), (129, 129)]
    assert [start for _, _, start, _ in heard] == [128] * MODEL.layers
    short = evicting(replace(HALF, budget=200))
    prefilled(short)
    assert short.sendable(A) == 129


def test_whoever_reads_piece_by_piece_finds_everything() -> None:
    source = prefilled(evicting())
    before = source.read(A, 0, Part.KEY, 0, 128).positions.tolist()
    source.pin(A)
    source.set_goal(A, len(PROMPT) + 40)
    run(source)
    assert source.read(A, 0, Part.KEY, 0, 128).positions.tolist() == before
    source.unpin(A)
    source.set_goal(A, len(PROMPT) + 41)
    run(source)
    assert len(source.read(A, 0, Part.KEY, 0, 128).positions) < len(before)


def carried(
    source: SimulatedEngine, target: SimulatedEngine, ranges: list[tuple[int, int]]
) -> None:
    for (start, stop), layer, part in product(ranges, range(MODEL.layers), Part):
        target.put(B, source.read(A, layer, part, start, stop))


def test_a_pruned_prompt_goes_to_another_engine_as_what_it_kept() -> None:
    source, target = prefilled(evicting()), engine()
    target.open(B, spec(PROMPT), reuse=False)
    target.open_import(B, 128)
    carried(source, target, [(0, 60), (60, 128)])
    assert target.missing(B) == 0
    target.commit_import(B)
    assert target.computed(B) == 128
    ours, theirs = read_all(source, A, 128), read_all(target, B, 128)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert target.kv_held_tokens() == 64
    target.set_goal(B, 140)
    assert len(run(target)[B]) == 12
    target.close(B)
    assert target.open(A, spec(PROMPT), reuse=True) <= 16  # no more than what came before a gap


def test_slices_that_keep_different_tokens_are_refused() -> None:
    source, target = prefilled(evicting()), engine()
    target.open(B, spec(PROMPT), reuse=False)
    target.open_import(B, 128)
    target.put(B, source.read(A, 0, Part.KEY, 0, 128))
    whole = prefilled(engine()).read(A, 0, Part.VALUE, 0, 128)
    with pytest.raises(ValueError, match="other slices held other ones"):
        target.put(B, whole)


def test_a_pruned_sequence_is_shared_with_another_on_the_same_worker() -> None:
    source = prefilled(evicting(), more=10)
    other = SeqId("other", 1)
    source.open(other, spec(tuple(range(900))), reuse=False)  # the prompt's blocks leave the cache
    source.set_goal(other, 900)
    run(source)
    source.close(other)
    source.open(B, spec(PROMPT), reuse=False)
    source.open_import(B, 128)
    source.share(A, B, 128)
    ours, theirs = read_all(source, A, 128), read_all(source, B, 128)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    for seq in (A, B):
        source.set_goal(seq, 160)
    said = run(source)
    assert len(said[B]) == 32
    source.close(A)
    source.close(B)
    assert source.kv_held_tokens() == 0


@pytest.mark.parametrize("length", [140, 128, 100, 50, 3])
def test_cut_anywhere_it_goes_on(length: int) -> None:
    source = prefilled(evicting(), more=20)
    tokens = source._sequences[A].tokens[:]
    source.truncate(A, length)
    assert source.length(A) == length
    assert source.computed(A) in (length, length - 1)
    source.append(A, tokens[length:])
    source.set_goal(A, 150)
    run(source)
    kept = source.read(A, 2, Part.VALUE, 0, 140)
    whole = prefilled(engine(), more=20).read(A, 2, Part.VALUE, 0, 140)
    assert np.array_equal(kept.data, whole.data[kept.positions])
    source.close(A)
    assert source.kv_held_tokens() == 0


@pytest.mark.parametrize("policy", ["h2o", "scissorhands", "triattention", "sink-recent"])
def test_every_policy_keeps_to_its_budget(policy: str) -> None:
    source = prefilled(evicting(replace(HALF, policy=policy, budget=40)), more=38)
    assert source.kv_held_tokens() <= 64
    assert source.length(A) == 166


def test_a_decode_step_costs_what_is_kept() -> None:
    source = prefilled(evicting(replace(HALF, budget=40)), more=2)
    source.set_goal(A, 131)
    step = source.begin()
    assert step is not None
    assert step.duration_s == pytest.approx(0.02 + 1e-5 * 42)


def test_heads_that_keep_tokens_of_their_own_are_refused() -> None:
    own = replace(HALF, policy="triattention", heads=Heads.PER_HEAD)
    with pytest.raises(ValueError, match="the same tokens"):
        evicting(own)
