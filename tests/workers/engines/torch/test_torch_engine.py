"""Sequences and steps: memory, reuse, sharing, truncation, cancelling, batching."""

import threading

import numpy as np
import pytest

from tests.workers.engines.torch.helpers import collect, complete, near_ties, sequence_spec
from workers.api.info import Part
from workers.api.messages import Sampling
from workers.engines.base import NoRoom, SeqId
from workers.engines.torch.load import build_engine

A, B, C = SeqId("a", 0), SeqId("b", 0), SeqId("c", 0)


def prompt(length: int, stride: int = 7) -> list[int]:
    return [(i * stride) % 500 + 3 for i in range(length)]


def start(engine, seq, tokens, new=16, *, reuse=False, **more) -> int:
    found = engine.open(seq, sequence_spec(tokens, new, **more), reuse=reuse)
    engine.set_goal(seq, len(tokens) + new)
    return found


def all_bits(engine, seq, tokens: int) -> np.ndarray:
    layers = engine.info.fingerprint.layers
    return np.stack(
        [engine.read(seq, i, part, 0, tokens).data for i in range(layers) for part in Part]
    )


def as_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ---------------------------------------------------------------- computing


def test_prefill_decode_and_pause(engine) -> None:
    tokens = prompt(20)
    engine.open(A, sequence_spec(tokens, 8), reuse=False)
    assert engine.begin() is None  # no goal yet
    engine.set_goal(A, 20)
    assert engine.finish(engine.begin()).samples == ()
    assert (engine.computed(A), engine.length(A)) == (20, 20)
    assert engine.begin() is None
    engine.set_goal(A, 22)
    first = engine.finish(engine.begin())
    assert engine.length(A) == 21
    assert [s.seq for s in first.samples] == [A]
    engine.set_goal(A, None)
    assert engine.begin() is None
    engine.set_goal(A, 22)
    second = engine.finish(engine.begin())
    assert second.computed == {A: 21}
    whole = complete(engine, [tokens], 2)[0].tokens
    assert [first.samples[0].token, second.samples[0].token] == whole


def test_goal_at_the_length_computes_what_is_missing_without_sampling(engine) -> None:
    tokens = prompt(20)
    start(engine, A, tokens, 1)
    collect(engine, [A])
    assert (engine.length(A), engine.computed(A)) == (21, 21)


@pytest.mark.parametrize("chunk_tokens", [5, 32, 1000])
def test_chunk_size_does_not_matter(tiny, chunk_tokens: int) -> None:
    tokens = prompt(100)
    whole = build_engine(tiny, kv_tokens=1024)
    chunked = build_engine(tiny, kv_tokens=1024, chunk_tokens=chunk_tokens)
    bits = []
    for engine in (whole, chunked):
        start(engine, A, tokens, 20)
        while engine.computed(A) < 100:
            engine.finish(engine.begin())
        bits.append(as_float(all_bits(engine, A, 100)))
    # The order of sums may differ: now and then a value rounds to the neighbouring bfloat16.
    assert np.mean(bits[0] != bits[1]) < 0.01
    np.testing.assert_allclose(bits[0], bits[1], rtol=2**-6, atol=1e-2)
    ours, theirs = (collect(engine, [A])[0] for engine in (whole, chunked))
    assert near_ties(ours, theirs.tokens) == 0


def test_mixed_batch_equals_alone(engine) -> None:
    prompts = [prompt(n, k) for n, k in ((3, 5), (150, 7), (40, 11), (41, 13), (9, 17))]
    together = complete(engine, prompts, 12)
    for tokens, out in zip(prompts, together, strict=True):
        assert near_ties(out, complete(engine, [tokens], 12)[0].tokens) == 0


def test_batch_order_decodes_then_extends_then_prompts_within_the_budget(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=1024, chunk_tokens=32)
    start(engine, A, prompt(100))
    start(engine, B, prompt(5, 11))
    assert engine.begin().seqs == (A,)  # the first prompt takes the whole budget
    extended = SeqId("extended", 0)
    start(engine, extended, prompt(20, 13), prompt_len=8)
    step = engine.begin()
    assert step.seqs == (extended, A)
    assert [entry.count for entry in step.entries] == [20, 12]
    result = engine.finish(step)
    assert result.computed == {extended: 20, A: 12}
    assert result.prefill_tokens == 30
    step = engine.begin()
    assert step.seqs == (extended, A)  # now a decode row, which is outside the budget
    assert [entry.count for entry in step.entries] == [1, 32]


def test_on_kv_follows_each_layer_and_the_bits_are_final(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=1024, chunk_tokens=16)
    seen: list[tuple[int, int, int]] = []
    early: dict[tuple[int, int, int], np.ndarray] = {}

    def listen(seq, layer, first, stop) -> None:
        assert seq == A
        seen.append((layer, first, stop))
        early[layer, first, stop] = engine.read(A, layer, Part.VALUE, first, stop).data
        with pytest.raises(ValueError, match="are there"):
            engine.read(A, layer, Part.VALUE, first, stop + 1)

    engine.on_kv = listen
    start(engine, A, prompt(40), 3)
    outputs = collect(engine, [A])
    ranges = [(0, 16), (16, 32), (32, 40), (40, 41), (41, 42), (42, 43)]
    assert seen == [(layer, *span) for span in ranges for layer in range(4)]
    for (layer, first, stop), bits in early.items():
        np.testing.assert_array_equal(bits, engine.read(A, layer, Part.VALUE, first, stop).data)
    assert len(outputs[0].tokens) == 3


# ---------------------------------------------------------------- sampling


def test_seeded_sampling_is_equal_in_any_batch_and_pool(tiny) -> None:
    hot = Sampling(temperature=0.8, top_p=0.95, seed=1234, margins=True)
    prompts = [prompt(30), prompt(50, 11), prompt(12, 13)]
    one = build_engine(tiny, kv_tokens=1024)
    other = build_engine(tiny, kv_tokens=1024, block_size=24, chunk_tokens=10)
    together = complete(one, prompts, 20, sampling=hot)
    for tokens, out in zip(prompts, together, strict=True):
        assert near_ties(complete(other, [tokens], 20, sampling=hot)[0], out.tokens) == 0
    reseeded = complete(one, prompts, 20, sampling=Sampling(temperature=0.8, seed=99))
    assert all(a.tokens != b.tokens for a, b in zip(together, reseeded, strict=True))


def test_continuing_another_legs_output_draws_the_same(tiny) -> None:
    """The counter is the output index, so prompt + law as a new sequence goes on alike."""
    hot = Sampling(temperature=0.8, seed=5, margins=True, frequency_penalty=0.5)
    engine = build_engine(tiny, kv_tokens=1024)
    tokens = prompt(30)
    whole = complete(engine, [tokens], 20, sampling=hot)[0]
    law = tokens + whole.tokens[:8]
    rest = complete(engine, [law], 12, sampling=hot, prompt_len=30)[0]
    assert near_ties(rest, whole.tokens[8:]) == 0


def test_min_tokens_keeps_stop_ids_out(engine) -> None:
    tokens = prompt(30)
    first = complete(engine, [tokens], 1)[0].tokens[0]
    later = complete(engine, [tokens], 3, stop_ids=(first,), min_tokens=3)[0].tokens
    assert first not in later
    assert complete(engine, [tokens], 1, stop_ids=(first,), min_tokens=0)[0].tokens == [first]


def test_logprobs_come_with_the_token(engine) -> None:
    start(engine, A, prompt(10), 1, sampling=Sampling(logprobs=3))
    (sample,) = engine.finish(engine.begin()).samples
    assert sample.margin is None
    assert len(sample.logprobs.top) == 3
    assert sample.logprobs.top[0] == (sample.token, sample.logprobs.logprob)


# ---------------------------------------------------------------- prefix reuse


@pytest.mark.parametrize(("block_size", "found"), [(8, 64), (16, 64), (24, 48), (32, 64), (48, 48)])
def test_prefix_is_found_and_gives_the_same_tokens(tiny, block_size: int, found: int) -> None:
    engine = build_engine(tiny, kv_tokens=960, block_size=block_size)
    tokens = prompt(70)
    fresh = complete(engine, [tokens], 10)[0]
    assert engine.kv_held_tokens() == 0
    assert engine.kv_free_tokens() == engine.info.kv_total_tokens
    assert start(engine, A, tokens, 10, reuse=True) == found
    assert near_ties(collect(engine, [A])[0], fresh.tokens) == 0
    # A longer conversation finds what the first answer computed, too.
    talk = [*tokens, *fresh.tokens, *prompt(60, 11)]
    unit = np.lcm(block_size, 16)
    assert start(engine, B, talk, 1, reuse=True) == 80 // unit * unit
    assert engine.open(C, sequence_spec(tokens, 1), reuse=False) == 0


def test_the_last_token_is_never_taken_from_the_cache(engine) -> None:
    tokens = prompt(64)
    fresh = complete(engine, [tokens], 4)[0]
    assert start(engine, A, tokens, 4, reuse=True) == 48
    assert near_ties(collect(engine, [A])[0], fresh.tokens) == 0


def test_a_cache_salt_keeps_tenants_apart(engine) -> None:
    tokens = prompt(64)
    complete(engine, [tokens], 1, cache_salt="mine")
    assert start(engine, A, tokens, reuse=True, cache_salt="yours") == 0
    assert start(engine, B, tokens, reuse=True, cache_salt="mine") == 48


def test_cache_is_evicted_before_anybody_is_refused(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=128)
    complete(engine, [prompt(100)], 1)
    assert len(complete(engine, [prompt(110, 11)], 10)[0].tokens) == 10
    assert start(engine, A, prompt(100), reuse=True) == 0


# ---------------------------------------------------------------- reservations


def test_a_reservation_is_kept_and_a_refusal_changes_nothing(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=128)
    start(engine, A, prompt(30), 50)
    assert engine.kv_free_tokens() == 48
    with pytest.raises(NoRoom) as caught:
        start(engine, B, prompt(30, 11), 20)
    assert (caught.value.wanted, caught.value.free) == (64, 48)
    with pytest.raises(KeyError):
        engine.length(B)
    start(engine, B, prompt(30, 11), 18)
    with pytest.raises(NoRoom):
        engine.grow(A, 81)
    first, second = collect(engine, [A, B])
    assert (len(first.tokens), len(second.tokens)) == (50, 18)
    engine.close(B)
    engine.grow(A, 128)
    engine.set_goal(A, 128)
    assert len(collect(engine, [A])[0].tokens) == 48
    engine.close(A)
    assert (engine.kv_held_tokens(), engine.kv_free_tokens()) == (0, 128)


def test_a_sequence_at_its_reserve_waits_until_it_grows(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=128)
    engine.open(A, sequence_spec(prompt(30), 2), reuse=False)
    engine.set_goal(A, 40)
    assert len(collect(engine, [A])[0].tokens) == 3  # the last one needs no memory yet
    engine.grow(A, 40)
    assert len(collect(engine, [A])[0].tokens) == 7
    assert (engine.length(A), engine.computed(A)) == (40, 40)


def test_append_grows_or_refuses(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=64)
    start(engine, A, prompt(20), 0)
    engine.append(A, prompt(30, 11))
    assert engine.length(A) == 50
    with pytest.raises(NoRoom):
        engine.append(A, prompt(30, 11))
    assert engine.length(A) == 50


@pytest.mark.parametrize("ids", [[5, -1], [5, 512]])
def test_foreign_tokens_are_refused(engine, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        engine.open(A, sequence_spec(ids), reuse=True)
    start(engine, A, prompt(5))
    with pytest.raises(ValueError, match="vocabulary"):
        engine.append(A, ids)
    with pytest.raises(ValueError, match="context"):
        engine.append(A, prompt(1020))
    with pytest.raises(ValueError, match="open already"):
        engine.open(A, sequence_spec(prompt(5)), reuse=True)


def test_every_verb_on_an_unknown_sequence_is_a_key_error(engine) -> None:
    start(engine, B, prompt(5))
    for verb in (
        lambda: engine.grow(A, 10),
        lambda: engine.append(A, [1]),
        lambda: engine.truncate(A, 1),
        lambda: engine.set_goal(A, 1),
        lambda: engine.length(A),
        lambda: engine.computed(A),
        lambda: engine.open_import(A, 1),
        lambda: engine.missing(A),
        lambda: engine.commit_import(A),
        lambda: engine.share(A, B, 1),
        lambda: engine.share(B, A, 1),
        lambda: engine.read(A, 0, Part.KEY, 0, 1),
        lambda: engine.cancel(A),
        lambda: engine.close(A),
    ):
        with pytest.raises(KeyError):
            verb()


# ---------------------------------------------------------------- truncate, share, cancel


@pytest.mark.parametrize("cut", [30, 36, 40, 48])
def test_truncate_then_append_equals_a_fresh_sequence(tiny, cut: int) -> None:
    engine = build_engine(tiny, kv_tokens=512)
    tokens = prompt(30)
    start(engine, A, tokens, 20)
    before = tokens + collect(engine, [A])[0].tokens
    engine.truncate(A, cut)
    assert (engine.length(A), engine.computed(A)) == (cut, cut)
    engine.append(A, [9, 8, 7])
    engine.set_goal(A, cut + 10)
    law = [*before[:cut], 9, 8, 7]
    ours = collect(engine, [A])[0]
    engine.close(A)
    # The cache knows what the sequence became, and what is left of what it was is true.
    assert start(engine, B, [*law, *ours.tokens, 5], 1, reuse=True) == (cut + 10) // 16 * 16
    engine.close(B)
    assert near_ties(ours, complete(engine, [law], 7, prompt_len=30)[0].tokens) == 0
    reused, fresh = (complete(engine, [before], 5, reuse=reuse)[0] for reuse in (True, False))
    assert near_ties(reused, fresh.tokens) == 0


def test_share_copies_the_tail_and_neither_disturbs_the_other(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=512)
    tokens = prompt(41)
    start(engine, A, tokens, 12)
    while engine.length(A) < 45:
        engine.finish(engine.begin())
    held = engine.kv_held_tokens()
    assert engine.open(B, sequence_spec(tokens, 12), reuse=False) == 0
    engine.share(A, B, 41)
    assert engine.kv_held_tokens() == held + 16  # the tail only
    assert engine.computed(B) == 41
    np.testing.assert_array_equal(all_bits(engine, A, 41), all_bits(engine, B, 41))
    engine.append(B, [9, 8, 7])
    engine.set_goal(B, 53)
    first, second = collect(engine, [A, B])
    engine.close(A)
    engine.close(B)
    assert near_ties(first, complete(engine, [tokens], 12)[0].tokens[4:]) == 0
    assert near_ties(second, complete(engine, [[*tokens, 9, 8, 7]], 9)[0].tokens) == 0
    assert engine.kv_held_tokens() == 0


def test_share_outlives_its_source_and_survives_its_truncation(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=512)
    tokens = prompt(48)
    start(engine, A, tokens, 0)
    collect(engine, [A])
    engine.open(B, sequence_spec(tokens, 8), reuse=False)
    engine.share(A, B, 48)
    bits = all_bits(engine, B, 48)
    engine.truncate(A, 20)
    engine.append(A, prompt(20, 11))
    engine.set_goal(A, 46)
    cut = collect(engine, [A])[0]
    engine.close(A)
    assert near_ties(cut, complete(engine, [tokens[:20] + prompt(20, 11)], 6)[0].tokens) == 0
    np.testing.assert_array_equal(all_bits(engine, B, 48), bits)
    engine.set_goal(B, 56)  # everything is computed: the last token runs again for its logits
    ours = collect(engine, [B])[0]
    np.testing.assert_array_equal(all_bits(engine, B, 48), bits)
    engine.close(B)
    assert near_ties(ours, complete(engine, [tokens], 8)[0].tokens) == 0


def test_share_refuses_what_is_not_the_same(engine) -> None:
    start(engine, A, prompt(20), 0)
    collect(engine, [A])
    engine.open(B, sequence_spec(prompt(20, 11)), reuse=False)
    with pytest.raises(ValueError, match="differ"):
        engine.share(A, B, 20)
    engine.open(C, sequence_spec(prompt(30)), reuse=False)
    with pytest.raises(ValueError, match="are computed"):
        engine.share(A, C, 21)


def test_cancel_between_layers_of_a_long_prefill(tiny) -> None:
    engine = build_engine(tiny, kv_tokens=1024, chunk_tokens=512)
    layers: list[int] = []

    def listen(seq, layer, first, stop) -> None:
        layers.append(layer)
        if layer == 1:
            canceller = threading.Thread(target=engine.cancel, args=(A,))
            canceller.start()
            canceller.join(timeout=5)

    engine.on_kv = listen
    start(engine, A, prompt(500))
    result = engine.finish(engine.begin())
    assert layers == [0, 1]
    assert (result.samples, result.computed, engine.computed(A)) == ((), {}, 0)
    assert engine.begin() is None
    engine.close(A)
    assert (engine.kv_held_tokens(), engine.kv_free_tokens()) == (0, 1024)


def test_cancel_leaves_the_others_of_the_step_alone(engine) -> None:
    start(engine, A, prompt(30), 5)
    start(engine, B, prompt(40, 11), 5)
    engine.on_kv = lambda seq, layer, first, stop: engine.cancel(A)
    result = engine.finish(engine.begin())
    assert [sample.seq for sample in result.samples] == [B]
    engine.on_kv = None
    rest = collect(engine, [B])[0]
    assert engine.length(A) == 30
    engine.close(A)
    engine.close(B)
    assert result.samples[0].token == complete(engine, [prompt(40, 11)], 1)[0].tokens[0]
    assert len(rest.tokens) == 4


def test_what_happens_between_begin_and_finish_voids_only_that_part(engine) -> None:
    for seq, stride in ((A, 7), (B, 11), (C, 13)):
        start(engine, seq, prompt(20, stride), 5)
    step = engine.begin()
    engine.close(A)
    engine.truncate(B, 10)
    result = engine.finish(step)
    assert result.computed == {C: 20}
    assert [sample.seq for sample in result.samples] == [C]
    assert (engine.length(B), engine.computed(B)) == (10, 0)
