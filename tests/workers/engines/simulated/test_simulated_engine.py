"""The simulated engine: the same tokens whatever happens around them, true KV, true accounting."""

from dataclasses import replace
from itertools import product
from time import process_time

import numpy as np
import pytest

from workers.api.info import Part
from workers.api.messages import Sampling
from workers.costs import MeasuredCosts
from workers.engines.base import KVSlice, NoRoom, SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel

MODEL = SimulatedModel(layers=3, kv_heads=2, head_size=6)
COSTS = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02, context_s=1e-5)
PROMPT = tuple(range(100, 150))
A, B = SeqId("a", 1), SeqId("b", 1)


def engine(model: SimulatedModel = MODEL, **changes: int) -> SimulatedEngine:
    sizes = {"kv_total_tokens": 1024, "block_size": 16, "chunk_tokens": 32, **changes}
    return SimulatedEngine(model, COSTS, **sizes)


def spec(tokens: tuple[int, ...] = PROMPT, **changes: object) -> SequenceSpec:
    whole = SequenceSpec(
        tokens=tokens, prompt_len=len(tokens), reserve=len(tokens) + 40, sampling=Sampling()
    )
    return replace(whole, **changes)


def run(engine: SimulatedEngine) -> dict[SeqId, list[int]]:
    said: dict[SeqId, list[int]] = {}
    while (step := engine.begin()) is not None:
        for sample in engine.finish(step).samples:
            said.setdefault(sample.seq, []).append(sample.token)
    return said


def say(engine: SimulatedEngine, count: int, seq: SeqId = A, **changes: object) -> list[int]:
    engine.open(seq, spec(**changes), reuse=False)  # type: ignore[arg-type]
    engine.set_goal(seq, engine.length(seq) + count)
    return run(engine)[seq]


def computed(tokens: tuple[int, ...] = PROMPT, model: SimulatedModel = MODEL) -> SimulatedEngine:
    """An engine that has computed `tokens` as sequence A."""
    source = engine(model)
    source.open(A, spec(tokens), reuse=False)
    source.set_goal(A, len(tokens))
    run(source)
    return source


TEXT = say(engine(), 20)


# -------------------------------------------------------------------- tokens


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 512])
def test_tokens_do_not_depend_on_blocks_or_chunks(block_size: int, chunk_tokens: int) -> None:
    assert say(engine(block_size=block_size, chunk_tokens=chunk_tokens), 20) == TEXT


def test_tokens_do_not_depend_on_the_batch() -> None:
    together = engine()
    for number in range(6):
        seq = SeqId("other", number)
        together.open(seq, spec((number, *PROMPT)), reuse=False)
        together.set_goal(seq, len(PROMPT) + 1 + number)
    assert say(together, 20) == TEXT


def test_tokens_depend_on_every_token_before_and_on_the_model() -> None:
    other = (PROMPT[1], PROMPT[0], *PROMPT[2:])
    assert say(engine(), 3, tokens=other) != TEXT[:3]
    assert say(engine(replace(MODEL, name="other")), 3) != TEXT[:3]


def test_an_extend_says_what_decoding_says() -> None:
    tokens = (*PROMPT, *TEXT[:7])
    assert say(engine(), 13, tokens=tokens, prompt_len=len(PROMPT)) == TEXT[7:]
    later = engine()
    say(later, 3)
    later.append(A, TEXT[3:9])
    later.set_goal(A, len(PROMPT) + 20)
    assert run(later)[A] == TEXT[9:]


def test_truncation_forgets() -> None:
    later = engine()
    say(later, 12)
    later.truncate(A, len(PROMPT) + 4)
    assert later.computed(A) == later.length(A) == len(PROMPT) + 4
    later.set_goal(A, len(PROMPT) + 20)
    assert run(later)[A] == TEXT[4:]
    later.truncate(A, len(PROMPT) + 4)
    later.append(A, (7,))
    later.set_goal(A, len(PROMPT) + 7)
    assert run(later)[A] == say(engine(), 2, tokens=(*PROMPT, *TEXT[:4], 7), prompt_len=50)


def test_a_seed_counts_when_sampling_and_only_then() -> None:
    greedy = [say(engine(), 8, sampling=Sampling(seed=seed)) for seed in (1, 2)]
    assert greedy == [TEXT[:8], TEXT[:8]]
    drawn = [say(engine(), 8, sampling=Sampling(temperature=1, seed=seed)) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert TEXT[:8] not in drawn


def test_end_of_text_comes_at_its_rate_and_not_before_its_time() -> None:
    ending = replace(MODEL, end_rate=0.2, max_context=8192)
    many = engine(ending, kv_total_tokens=4096)
    said = say(many, 500, stop_ids=(2,), reserve=600)
    assert 70 < said.count(2) < 130
    other = engine(ending, kv_total_tokens=4096)
    held_back = say(other, 200, stop_ids=(2,), min_tokens=100, reserve=300)
    assert 2 not in held_back[:100]
    assert 2 in held_back[100:]
    small = replace(MODEL, vocab_size=4)
    assert 2 not in say(engine(small), 200, tokens=(1, 1, 3), stop_ids=(2,), reserve=300)


def test_engines_with_another_salt_differ_only_where_two_tokens_nearly_tie() -> None:
    one, other = (first_tokens(replace(MODEL, divergence=5, salt=salt), 300) for salt in (0, 1))
    ties = [margin < 0.05 for _, margin in one]
    assert [margin for _, margin in one] == [margin for _, margin in other]
    assert [a[0] != b[0] for a, b in zip(one, other, strict=True)] == ties
    assert 30 < sum(ties) < 90


def first_tokens(model: SimulatedModel, count: int) -> list[tuple[int, float]]:
    """The first token and its margin after `count` different prompts."""
    once = engine(model, chunk_tokens=count * 3, kv_total_tokens=count * 16)
    for number in range(count):
        prompt = (number, 1, 2)
        what = spec(prompt, reserve=4, sampling=Sampling(margins=True))
        once.open(SeqId("x", number), what, reuse=False)
        once.set_goal(SeqId("x", number), 4)
    step = once.begin()
    assert step is not None
    samples = once.finish(step).samples
    assert len(samples) == count
    return [(sample.token, sample.margin or 0.0) for sample in samples]


def test_logprobs_are_as_many_as_were_asked_for_and_fall() -> None:
    for wanted in (0, 1, 4):
        once = engine(chunk_tokens=512)
        once.open(A, spec(sampling=Sampling(logprobs=wanted)), reuse=False)
        once.set_goal(A, len(PROMPT) + 1)
        step = once.begin()
        assert step is not None
        (sample,) = once.finish(step).samples
        assert sample.logprobs is not None
        top = sample.logprobs.top
        assert len(top) == wanted
        assert len({token for token, _ in top}) == wanted
        assert [logprob for _, logprob in top] == sorted((lp for _, lp in top), reverse=True)
        if wanted:
            assert top[0] == (sample.token, sample.logprobs.logprob)


# -------------------------------------------------------------------- steps and time


def test_prefill_is_chunked_and_timed() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    first = one.begin()
    assert first is not None
    assert first.duration_s == pytest.approx(0.032)
    result = one.finish(first)
    assert (result.samples, result.computed, result.prefill_tokens) == ((), {A: 32}, 31)
    second = one.begin()
    assert second is not None
    assert second.duration_s == pytest.approx(0.018)
    assert len(one.finish(second).samples) == 1


def test_decode_goes_on_beside_a_prefill_and_pays_for_its_context() -> None:
    one = engine()
    say(one, 2)
    one.set_goal(A, len(PROMPT) + 9)
    one.open(B, spec((7,) * 60), reuse=False)
    one.set_goal(B, 61)
    step = one.begin()
    assert step is not None
    assert step.seqs == (A, B)
    assert step.duration_s == pytest.approx(0.032 + 0.02 + 1e-5 * (len(PROMPT) + 2))


def test_an_extend_goes_before_a_prompt() -> None:
    one = engine()
    one.open(B, spec((7,) * 60), reuse=False)
    one.set_goal(B, 61)
    one.open(A, spec((*PROMPT, 1, 2, 3), prompt_len=len(PROMPT)), reuse=False)
    one.set_goal(A, len(PROMPT) + 4)
    step = one.begin()
    assert step is not None
    assert step.seqs == (A,)


def test_without_a_goal_nothing_is_done() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    assert one.begin() is None
    one.set_goal(A, len(PROMPT))
    assert run(one) == {}
    assert one.computed(A) == len(PROMPT)
    one.set_goal(A, None)
    one.append(A, (1, 2))
    assert one.begin() is None


def test_a_sequence_that_is_all_computed_computes_its_last_token_again() -> None:
    one = computed()
    one.set_goal(A, len(PROMPT) + 3)
    assert run(one)[A] == TEXT[:3]


def test_cancel_ends_the_work_inside_a_step_too() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.open(B, spec((7,) * 10), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    one.set_goal(B, 11)
    step = one.begin()
    assert step is not None
    one.cancel(A)
    result = one.finish(step)
    assert A not in result.computed
    assert one.computed(A) == 0
    one.set_goal(A, len(PROMPT) + 1)
    assert A not in run(one)


def test_what_was_truncated_inside_a_step_is_void() -> None:
    one = engine()
    one.open(A, spec(), reuse=False)
    one.set_goal(A, len(PROMPT) + 1)
    step = one.begin()
    assert step is not None
    one.truncate(A, 10)
    assert one.finish(step).computed == {}
    assert one.computed(A) == 0


def test_listeners_hear_of_every_layer_once() -> None:
    heard = []
    one = engine()
    one.on_kv = lambda *what: heard.append(what)
    say(one, 2)
    ranges = [(0, 32), (32, 50), (50, 51), (51, 52)]
    assert heard == [(A, layer, *r) for r, layer in product(ranges, range(3))]


def test_a_decode_step_of_64_sequences_is_cheap() -> None:
    one = SimulatedEngine(MODEL, COSTS, kv_total_tokens=16_384)
    for number in range(64):
        seq = SeqId("x", number)
        one.open(seq, spec((number, 1, 2), reserve=200), reuse=False)
        one.set_goal(seq, 200)
    step = one.begin()
    assert step is not None
    one.finish(step)
    best = 1.0
    for _ in range(60):
        began = process_time()
        step = one.begin()
        assert step is not None
        assert len(one.finish(step).samples) == 64
        best = min(best, process_time() - began)
    assert best < 0.002


# -------------------------------------------------------------------- KV


def carry(source: SimulatedEngine, target: SimulatedEngine, ranges: list[tuple[int, int]]) -> None:
    for (start, stop), layer, part in product(ranges, range(MODEL.layers), Part):
        target.put(B, source.read(A, layer, part, start, stop))


def test_a_slice_has_the_bytes_that_the_wire_will_carry() -> None:
    source = computed()
    piece = source.read(A, 1, Part.VALUE, 3, 10)
    assert piece.data.shape == (7, 2, 6)
    assert piece.data.dtype == np.uint16
    assert list(piece.positions) == list(range(3, 10))
    per_token = 2 * MODEL.layers * piece.data[0].nbytes
    assert per_token == source.info.kv_bytes_per_token


def test_kv_looks_like_small_bfloat16_numbers() -> None:
    bits = computed().read(A, 0, Part.KEY, 0, 50).data.astype(np.uint32) << 16
    values = bits.view(np.float32)
    assert np.isfinite(values).all()
    assert 0 < np.abs(values).max() < 2
    assert (values < 0).any()
    assert (values > 0).any()
    assert len(np.unique(bits)) > 300


def test_kv_differs_by_layer_part_token_and_prefix() -> None:
    source = computed()
    pieces = [source.read(A, n, part, 4, 5).data for n, part in product(range(3), Part)]
    pieces.append(source.read(A, 0, Part.KEY, 5, 6).data)
    pieces.append(computed((1, *PROMPT[1:])).read(A, 0, Part.KEY, 4, 5).data)
    assert len({piece.tobytes() for piece in pieces}) == len(pieces)


def test_an_import_in_any_order_and_with_repeats_goes_on_with_the_same_tokens() -> None:
    source, target = computed(), engine(block_size=8)
    target.open(B, spec(), reuse=False)
    assert target.open_import(B, len(PROMPT)) == 0
    assert target.missing(B) == 2 * MODEL.layers * len(PROMPT)
    carry(source, target, [(30, 50), (0, 13), (30, 50)])
    assert target.missing(B) == 2 * MODEL.layers * 17
    with pytest.raises(ValueError, match="missing"):
        target.commit_import(B)
    carry(source, target, [(10, 31)])
    target.commit_import(B)
    assert target.computed(B) == len(PROMPT)
    target.set_goal(B, len(PROMPT) + 20)
    assert run(target)[B] == TEXT


def test_nothing_runs_while_an_import_is_open() -> None:
    target = engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    target.set_goal(B, len(PROMPT) + 1)
    assert target.begin() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda kv: {"data": kv.data ^ np.uint16(1)},
        lambda kv: {"data": kv.data[:, ::-1]},
        lambda kv: {"data": kv.data.astype(np.uint32)},
        lambda kv: {"data": kv.data[:-1]},
        lambda kv: {"positions": kv.positions + 1},
        lambda kv: {"layer": 2},
        lambda kv: {"layer": 3},
        lambda kv: {"part": Part.VALUE},
        lambda kv: {"start": kv.start + 1, "stop": kv.stop + 1},
        lambda kv: {"start": -1},
        lambda kv: {"stop": 99},
    ],
)
def test_kv_that_this_engine_would_not_have_computed_is_refused(change: object) -> None:
    source, target = computed(), engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    piece = source.read(A, 0, Part.KEY, 5, 20)
    with pytest.raises(ValueError):
        target.put(B, replace(piece, **change(piece)))  # type: ignore[operator]
    assert target.missing(B) == 2 * MODEL.layers * len(PROMPT)


def test_kv_without_an_open_import_is_refused() -> None:
    source, target = computed(), engine()
    piece = source.read(A, 0, Part.KEY, 5, 20)
    with pytest.raises(KeyError):
        target.put(B, piece)
    target.open(B, spec(), reuse=False)
    with pytest.raises(ValueError, match="no import"):
        target.put(B, piece)


def test_only_what_is_there_can_be_read() -> None:
    source = engine()
    source.open(A, spec(), reuse=False)
    source.set_goal(A, len(PROMPT) + 1)
    step = source.begin()
    assert step is not None
    source.finish(step)
    assert isinstance(source.read(A, 0, Part.KEY, 0, 32), KVSlice)
    with pytest.raises(ValueError, match="32 are there"):
        source.read(A, 0, Part.KEY, 0, 33)
    source.close(A)
    with pytest.raises(KeyError):
        source.read(A, 0, Part.KEY, 0, 1)


# -------------------------------------------------------------------- memory and prefixes


def test_a_prefix_that_is_known_is_not_computed_again() -> None:
    one = engine()
    say(one, 20)
    assert one.open(B, spec(), reuse=True) == 48
    assert one.kv_held_tokens() == 80  # A's five blocks; three of them are B's too
    one.set_goal(B, len(PROMPT) + 20)
    assert run(one)[B] == TEXT


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    one = computed(PROMPT[:48])
    one.close(A)
    assert one.open(B, spec(PROMPT[:48]), reuse=True) == 32
    one.close(B)
    one.open(B, spec(PROMPT[:48]), reuse=False)
    assert one.open_import(B, 48) == 48


def test_a_salt_keeps_prefixes_apart() -> None:
    one = computed()
    assert one.open(B, spec(cache_salt="x"), reuse=True) == 0


def test_an_unfinished_import_leaves_its_whole_blocks_as_cache() -> None:
    source, target = computed(), engine()
    target.open(B, spec(), reuse=False)
    target.open_import(B, len(PROMPT))
    carry(source, target, [(0, 40)])
    target.close(B)
    assert target.kv_held_tokens() == 0
    assert target.open(B, spec(), reuse=True) == 32


def test_no_room_is_said_and_nothing_is_held() -> None:
    one = engine(kv_total_tokens=96)
    one.open(A, spec(reserve=60), reuse=False)
    with pytest.raises(NoRoom) as full:
        one.open(B, spec(reserve=60), reuse=False)
    assert (full.value.wanted, full.value.free) == (64, 32)
    with pytest.raises(NoRoom):
        one.grow(A, 97)
    one.grow(A, 96)
    assert one.kv_free_tokens() == 0
    one.close(A)
    assert one.kv_free_tokens() == 96


def test_shared_blocks_are_counted_once() -> None:
    one = computed()
    one.open(B, spec(), reuse=False)
    one.share(A, B, len(PROMPT))
    assert one.computed(B) == len(PROMPT)
    assert one.kv_held_tokens() == 48 + 16 + 16
    one.close(A)
    one.set_goal(B, len(PROMPT) + 20)
    assert run(one)[B] == TEXT
    one.close(B)
    assert one.kv_held_tokens() == 0


def test_only_equal_and_computed_tokens_are_shared() -> None:
    one = computed()
    one.open(B, spec((1, *PROMPT[1:])), reuse=False)
    with pytest.raises(ValueError, match="differ"):
        one.share(A, B, len(PROMPT))
    with pytest.raises(ValueError, match="are computed"):
        one.share(A, B, len(PROMPT) + 1)


@pytest.mark.parametrize("verb", ["close", "cancel", "length", "computed"])
def test_every_verb_on_an_unknown_sequence_raises(verb: str) -> None:
    with pytest.raises(KeyError):
        getattr(engine(), verb)(A)


def test_senseless_sequences_are_refused() -> None:
    one = engine()
    with pytest.raises(ValueError, match="vocabulary"):
        one.open(A, spec((32_000,)), reuse=False)
    with pytest.raises(ValueError, match="context"):
        one.open(A, spec((1,) * 9000), reuse=False)
    with pytest.raises(ValueError, match="prompt"):
        one.open(A, spec((1,), prompt_len=2), reuse=False)
    one.open(A, spec(), reuse=False)
    with pytest.raises(ValueError, match="open already"):
        one.open(A, spec(), reuse=False)
    with pytest.raises(ValueError, match="cannot cut"):
        one.truncate(A, 51)
    one.open_import(A, 50)
    with pytest.raises(ValueError, match="is open"):
        one.open_import(A, 50)
    with pytest.raises(ValueError, match="is open"):
        one.truncate(A, 3)
