"""The sampler against a slow reference, and against what probability says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.api.messages import Sampling
from workers.engines.sampler import draw, gumbel, noise_words


def noise(seed: int, index: int, size: int) -> np.ndarray:
    return gumbel(noise_words(seed, index, size))


def reference_candidates(logits: np.ndarray, sampling: Sampling) -> set[int]:
    """temperature, min_p, top_k, top_p in turn, by sorting everything."""
    scaled = [float(x) / sampling.temperature for x in logits]
    weights = [np.exp(x - max(scaled)) for x in scaled]
    kept = [i for i, w in enumerate(weights) if w >= sampling.min_p]
    if sampling.top_k:
        ordered = sorted(kept, key=lambda i: -logits[i])
        last = logits[ordered[min(sampling.top_k, len(ordered)) - 1]]
        kept = [i for i in kept if logits[i] >= last]
    total = sum(weights[i] for i in kept)
    nucleus, mass = set(), 0.0
    for i in sorted(kept, key=lambda i: (-weights[i], i)):
        if nucleus and mass >= sampling.top_p * total:
            break
        nucleus.add(i)
        mass += weights[i]
    return nucleus


def reference_penalties(logits, sampling, tokens, prompt_len) -> np.ndarray:
    out = logits.astype(np.float64)
    for token in set(tokens):
        out[token] *= (
            1 / sampling.repetition_penalty if out[token] > 0 else sampling.repetition_penalty
        )
    for token in set(tokens[prompt_len:]):
        count = tokens[prompt_len:].count(token)
        out[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return out


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.99, 0.7, 0.31, 0.013]),
    top_k=st.sampled_from([None, 1, 3, 50, 5000]),
    min_p=st.sampled_from([0.0, 0.03, 0.4]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 2**70),
    margins=st.just(True),
)


@settings(max_examples=150, deadline=None)
@given(
    sampling=samplings,
    vocab=st.sampled_from([3, 40, 700]),
    spread=st.sampled_from([0.2, 3.0]),
    start=st.integers(0, 1000),
)
def test_draws_the_best_noisy_token_of_the_reference_candidates(
    sampling: Sampling, vocab: int, spread: float, start: int
) -> None:
    rng = np.random.default_rng(start)
    logits = (rng.standard_normal(vocab) * spread).astype(np.float32)
    tokens = rng.integers(0, vocab, 12).tolist()
    adjusted = reference_penalties(logits, sampling, tokens, 5).astype(np.float32)
    candidates = reference_candidates(adjusted, sampling)
    noisy = adjusted + sampling.temperature * noise(sampling.seed, 7, vocab)
    drawn = draw(logits, sampling, tokens, 5)
    assert drawn.token in candidates
    best = sorted(noisy[i] for i in candidates)
    assert noisy[drawn.token] >= best[-1] - 1e-5
    if len(best) > 1:
        assert drawn.margin == pytest.approx(best[-1] - best[-2], abs=2e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_p=0.8),
    ],
    ids=str,
)
def test_frequencies_follow_the_probabilities(sampling: Sampling) -> None:
    logits = np.array([2.0, 1.0, 0.0, 1.5, -3.0], np.float32)
    weights = np.exp(logits / sampling.temperature)
    kept = sorted(reference_candidates(logits, sampling))
    expected = weights[kept] / weights[kept].sum()
    draws = 4000
    counts = np.zeros(5)
    for index in range(draws):
        counts[draw(logits, sampling, [0] * (index + 1), 1).token] += 1
    assert counts.sum() == counts[kept].sum()
    chi = ((counts[kept] - draws * expected) ** 2 / (draws * expected)).sum()
    assert chi < 20  # one in a thousand for four degrees of freedom is 18.5; the draw is seeded


def test_noise_of_different_indices_and_seeds_shares_nothing() -> None:
    noises = [noise(seed, index, 1000) for seed, index in ((0, 0), (0, 1), (1, 0), (0, 2**40))]
    words = [set(drawn.tolist()) for drawn in noises]
    assert all(not a & b for i, a in enumerate(words) for b in words[:i])
    np.testing.assert_array_equal(noise(0, 1, 10), noises[1][:10])  # a prefix, any vocabulary
    assert np.isfinite(np.concatenate(noises)).all()


def test_the_noise_is_fixed_for_ever() -> None:
    """Two ends with different numpy versions must draw alike."""
    np.testing.assert_allclose(
        noise(42, 3, 3), [0.3256566857744243, 0.2426331992089652, 1.232450129399395], rtol=1e-12
    )


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = np.array([0.5, 2.0, 2.0, 1.0], np.float32)
    drawn = draw(logits, Sampling(margins=True), [0], 1)
    assert (drawn.token, drawn.margin, drawn.logprobs) == (1, 0.0, None)


def test_margin_is_the_lead_in_logits_noise_included() -> None:
    logits = np.array([0.5, 2.0, 1.0], np.float32)
    assert draw(logits, Sampling(margins=True), [0], 1).margin == pytest.approx(1.0)
    hot = Sampling(temperature=0.5, seed=3, margins=True)
    best = np.sort(logits + 0.5 * noise(3, 4, 3))
    assert draw(logits, hot, [0] * 6, 2).margin == pytest.approx(best[2] - best[1])
    single = Sampling(temperature=0.5, seed=3, top_k=1, margins=True)
    assert draw(logits, single, [0] * 6, 2).margin == pytest.approx(1.0)


def test_banned_ids_cannot_be_drawn_and_logits_stay() -> None:
    logits = np.array([0.5, 9.0, 1.0], np.float32)
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1), Sampling(presence_penalty=1)):
        assert all(draw(logits, sampling, [0] * n, 1, (1,)).token != 1 for n in range(1, 50))
    assert logits.tolist() == [0.5, 9.0, 1.0]


def test_logprobs_are_the_models_own() -> None:
    logits = np.array([0.5, 2.0, 2.0, 1.0], np.float32)
    logs = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sampling = Sampling(temperature=0.7, top_k=1, logprobs=3, frequency_penalty=1.0)
    drawn = draw(logits, sampling, [0, 1, 2], 1)
    assert drawn.logprobs.logprob == pytest.approx(logs[drawn.token])
    assert [i for i, _ in drawn.logprobs.top] == [1, 2, 3]
    assert [p for _, p in drawn.logprobs.top] == pytest.approx([logs[1], logs[2], logs[3]])
    assert draw(logits, Sampling(logprobs=0), [0], 1).logprobs.top == ()
    assert len(draw(logits, Sampling(logprobs=9), [0], 1).logprobs.top) == 4


def test_penalties_see_the_output_and_repetition_sees_the_prompt_too() -> None:
    logits = np.array([1.0, 1.1, 0.9], np.float32)
    assert draw(logits, Sampling(presence_penalty=0.5), [1, 1], 2).token == 1  # only the prompt
    assert draw(logits, Sampling(presence_penalty=0.5), [1, 1], 1).token == 0
    assert draw(logits, Sampling(frequency_penalty=0.06), [1, 1], 1).token == 1
    assert draw(logits, Sampling(frequency_penalty=0.06), [1, 1, 1], 1).token == 0
    assert draw(logits, Sampling(repetition_penalty=1.5), [1, 1], 2).token == 0


# ---------------------------------------------------------------- biases and grammars


def test_a_bias_is_added_before_anything_chooses() -> None:
    logits = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    before = logits.copy()
    biased = Sampling(logit_bias=((0, 3.5), (3, -100.0)), margins=True, logprobs=0)
    drawn = draw(logits, biased, [0], 1)
    assert drawn.token == 0
    assert drawn.margin == pytest.approx(1.5)
    alone = draw(logits, Sampling(logprobs=0), [0], 1, (1, 2, 3))
    assert drawn.logprobs == alone.logprobs  # the model's own
    assert (logits == before).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(margins=True),
        Sampling(temperature=1.0, seed=4, margins=True),
        Sampling(temperature=1.0, seed=4, top_k=50, margins=True),
        Sampling(temperature=1.0, seed=4, top_p=0.9, min_p=0.01, margins=True),
        Sampling(temperature=1.0, seed=4, repetition_penalty=1.3, margins=True),
    ],
)
@pytest.mark.parametrize("left", [1, 2, 40, 400])
def test_only_what_is_allowed_is_drawn_and_its_lead_is_finite(
    sampling: Sampling, left: int
) -> None:
    rng = np.random.default_rng(left)
    for index in range(20):
        logits = rng.normal(size=1000).astype(np.float32)
        allowed = np.zeros(1000, dtype=bool)
        allowed[rng.choice(1000, left, replace=False)] = True
        drawn = draw(logits, sampling, [0] * (index + 1), 1, allowed=allowed)
        assert allowed[drawn.token]
        assert 0 <= drawn.margin < np.inf


def test_noise_does_not_depend_on_what_is_allowed() -> None:
    """A mask that leaves the token drawn without it changes nothing."""
    logits = np.random.default_rng(3).normal(size=5000).astype(np.float32)
    hot = Sampling(temperature=1.5, seed=11)
    for index in range(30):
        tokens = [0] * (index + 1)
        free = draw(logits, hot, tokens, 1).token
        allowed = np.random.default_rng(index).random(5000) < 0.5
        allowed[free] = True
        assert draw(logits, hot, tokens, 1, allowed=allowed).token == free
