"""Biases move simulated tokens as they move a model's."""

import pytest

from tests.workers.engines.simulated.simulated_rig import MODEL, PROMPT, engine, say
from workers.api.messages import Sampling

END = MODEL.stop_ids[0]


def biased(*pairs: tuple[int, float]) -> Sampling:
    return Sampling(logit_bias=pairs)


def test_a_large_bias_wins_and_a_small_one_does_not() -> None:
    plain = say(engine(), 6)
    assert say(engine(), 6, sampling=biased((77, 100.0))) == [77] * 6
    assert say(engine(), 6, sampling=biased((77, 0.01))) == plain


def test_a_token_that_is_pushed_down_gives_way_and_the_text_goes_another_way() -> None:
    first, *rest = say(engine(), 6)
    other, *others = say(engine(), 6, sampling=biased((first, -100.0)))
    assert other != first
    assert others != rest
    assert first not in others


def test_the_better_of_two_biases_wins() -> None:
    assert say(engine(), 1, sampling=biased((70, 30.0), (71, 40.0), (72, 35.0))) == [71]


def test_a_bias_does_not_bring_the_end_too_early() -> None:
    sampling = biased((END, 100.0))
    wanted = {"stop_ids": (END,), "min_tokens": 2}
    said = say(engine(), 3, sampling=sampling, **wanted)
    assert END not in said[:2]
    assert said[2] == END


@pytest.mark.parametrize("at", [1, 3])
def test_another_engine_goes_on_alike(at: int) -> None:
    sampling = Sampling(temperature=1.0, seed=8, logit_bias=((5, 2.0), (9, 2.5), (11, -3.0)))
    whole = say(engine(), 8, sampling=sampling)
    assert {5, 9} & set(whole)
    law = (*PROMPT, *whole[:at])
    assert (
        say(engine(), 8 - at, tokens=law, prompt_len=len(PROMPT), sampling=sampling) == whole[at:]
    )
