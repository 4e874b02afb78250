"""The law at the worker: feeds, truncation, end-of-text, resync, own history's hash."""

from dataclasses import replace

import pytest

from tests.workers.worker_rig import (
    END,
    LIMIT,
    MODEL,
    PROMPT,
    Rig,
    continuation,
    feed,
    history,
    resync,
    start,
)
from workers.api.messages import Feed, Role, Sampling, TokenRun
from workers.engines.base import SeqId
from workers.engines.simulated.model import SimulatedModel

TEXT = continuation(LIMIT)


def run_of(index: int, ids: tuple[int, ...], fed: int, own: tuple[int, ...] = TEXT) -> TokenRun:
    return TokenRun(request="r", epoch=2, index=index, ids=ids, hist=history(own[:index]), fed=fed)


def ending_model() -> tuple[SimulatedModel, int]:
    """A model that says end-of-text after PROMPT, and where: an output index in 2 .. 8."""
    for number in range(200):
        model = replace(MODEL, name=f"ending{number}", end_rate=0.15)
        text = continuation(LIMIT, model=model, stop_ids=(END,))
        if END in text and 2 <= text.index(END) <= 8:
            return model, text.index(END)
    raise AssertionError("no such model in 200")


# -------------------------------------------------------------------- feeds


def test_main_never_samples_index_0() -> None:
    rig = Rig()
    rig.landed_main()
    assert rig.step() is None
    rig.send(feed(TEXT[:1]))
    assert rig.run(1) == [run_of(1, TEXT[1:2], fed=1)]


def test_main_waits_for_its_kv() -> None:
    rig = Rig()
    rig.send(start())
    rig.send(feed(TEXT[:3]))
    assert rig.step() is None
    rig.land()
    assert rig.tokens() == TEXT[3:]


def test_law_beyond_the_cover_is_computed_in_one_extend() -> None:
    rig = Rig()
    rig.landed_main(law=TEXT[:6], cover=2)
    assert rig.engine.computed(SeqId("r", 2)) == len(PROMPT) + 2
    assert rig.run(1) == [run_of(6, TEXT[6:7], fed=6)]


def test_law_equal_to_the_cover_goes_on() -> None:
    rig = Rig()
    rig.landed_main(law=TEXT[:4], cover=4)
    assert rig.tokens() == TEXT[4:]


def test_fed_is_at_first_the_law_of_the_start() -> None:
    rig = Rig()
    rig.send(start(law_ids=TEXT[:3]))
    assert rig.send(resync(3)) == [run_of(3, (), fed=3)]


def test_main_runs_ahead_of_what_it_was_fed() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(5)
    assert rig.send(feed(TEXT[1:3], at=1)) == []  # a prefix of own history
    assert rig.run(1) == [run_of(6, TEXT[6:7], fed=3)]


def test_history_shorter_than_the_law_is_extended() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(2)
    rig.send(feed(TEXT[1:8], at=1))
    assert rig.run(1) == [run_of(8, TEXT[8:9], fed=8)]


def test_overlap_is_harmless() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:3]))
    rig.send(feed(TEXT[:3]))
    rig.send(feed(TEXT[1:5], at=1))
    rig.send(feed(TEXT[:2]))
    assert rig.run(1) == [run_of(5, TEXT[5:6], fed=5)]


def test_a_lost_feed_shows_in_fed_and_changes_nothing() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.send(feed((9, 9), at=3))
    assert rig.run(1) == [run_of(1, TEXT[1:2], fed=1)]
    rig.send(feed(TEXT[1:4], at=1))
    assert rig.run(1) == [run_of(4, TEXT[4:5], fed=4)]


def test_ids_may_be_left_out_for_the_leg_that_produced_them() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(4)
    rig.send(Feed(request="r", epoch=2, law=4, start=1))
    assert rig.send(resync(5)) == [run_of(5, (), fed=4)]
    rig.send(Feed(request="r", epoch=2, law=9, start=4))  # it has not produced so much
    assert rig.send(resync(5)) == [run_of(5, (), fed=4)]


@pytest.mark.parametrize(
    "senseless",
    [
        Feed(request="r", epoch=2, law=1, start=2, ids=()),
        Feed(request="r", epoch=2, law=4, start=1, ids=(5,)),
        Feed(request="r", epoch=2, law=2, start=1, ids=(5, 6)),
        Feed(request="r", epoch=2, law=2, start=1, ids=(32_000,)),
        Feed(request="r", epoch=2, law=2, start=1, ids=(-1,)),
        Feed(request="r", epoch=2, law=0, start=-1, ids=(5,)),
        Feed(request="r", epoch=2, law=LIMIT + 1, start=1, ids=(5,) * LIMIT),
    ],
)
def test_a_feed_that_makes_no_sense_is_ignored(senseless: Feed) -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    assert rig.send(senseless) == []
    assert rig.tokens() == TEXT[1:]


def test_a_feed_in_the_middle_of_a_step_waits_for_its_end() -> None:
    other = (TEXT[1] + 1, 7)
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    step = rig.worker.begin(rig.now)
    assert step is not None
    assert rig.send(feed(other, at=1)) == []
    # The run that was computed is of the old history, and says so.
    assert rig.note(rig.worker.finish(step, rig.now)) == [run_of(1, TEXT[1:2], fed=1)]
    law = (TEXT[0], *other)
    assert rig.run(1) == [run_of(3, continuation(1, law), fed=3, own=law)]


# -------------------------------------------------------------------- another history


def test_late_and_different_truncates_to_the_common_prefix() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(5)  # own: TEXT[:6]
    law = (*TEXT[:3], TEXT[3] + 1, 8)
    rig.send(feed(law[1:], at=1))
    assert rig.send(resync(0)) == [run_of(0, law, fed=5)]
    assert rig.run(1) == [run_of(5, continuation(1, law), fed=5, own=law)]


def test_a_token_of_an_old_run_after_a_truncation_is_told_apart_by_its_history() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    old = rig.run(4)[-1]  # index 4 after TEXT[:4]
    law = (*TEXT[:2], TEXT[2] + 1)
    rig.send(feed(law[1:], at=1))
    new = rig.run(2)[-1]  # index 4 again, after another history
    assert isinstance(old, TokenRun)
    assert isinstance(new, TokenRun)
    assert (old.index, new.index) == (4, 4)
    assert old.hist == history(TEXT[:4])
    assert new.hist == history((*law, *continuation(1, law)))
    assert old.hist != new.hist


def test_main_guesses_end_of_text_and_the_law_says_otherwise() -> None:
    model, end = ending_model()
    text = continuation(end + 1, model=model, stop_ids=(END,))
    rig = Rig(model=model)
    rig.send(start(law_ids=text[:1]))
    land_as(rig, model)
    assert rig.tokens() == text[1:]
    assert rig.step() is None  # idle, not finished
    law = (*text[:end], 77)
    rig.send(feed(law[1:], at=1))
    (run,) = rig.run(1)
    assert isinstance(run, TokenRun)
    assert (run.index, run.hist) == (len(law), history(law))


def test_end_of_text_that_is_law_leaves_the_leg_idle() -> None:
    model, end = ending_model()
    text = continuation(end + 1, model=model, stop_ids=(END,))
    rig = Rig(model=model)
    rig.send(start(law_ids=text))
    land_as(rig, model)
    assert rig.step() is None


def test_end_of_text_below_min_tokens_is_not_sampled() -> None:
    model, end = ending_model()
    text = continuation(end, model=model, stop_ids=(END,))
    rig = Rig(model=model)
    rig.send(start(law_ids=text, min_tokens=LIMIT))
    land_as(rig, model)
    said = rig.tokens()
    assert len(said) == LIMIT - end
    assert END not in said


def test_a_stop_id_below_min_tokens_ends_nothing() -> None:
    law = (TEXT[0], END)
    rig = Rig()
    rig.landed_main(law=law, min_tokens=2)
    assert rig.tokens() == continuation(LIMIT - 2, law)
    ended = Rig()
    ended.landed_main(law=law, min_tokens=1)
    assert ended.step() is None


def test_the_limit_in_own_history_is_idle_and_a_feed_can_revive_it() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]
    assert rig.step() is None
    law = (*TEXT[:5], TEXT[5] + 1)
    rig.send(feed(law[1:], at=1))
    assert rig.tokens() == continuation(LIMIT - 6, law)


def test_numerics_that_differ_end_in_the_laws_text() -> None:
    relay = replace(MODEL, name="near", divergence=3, salt=0)
    main = replace(relay, salt=1)
    law = continuation(LIMIT, model=relay)
    rig = Rig(model=main)
    rig.send(start(law_ids=law[:1]))
    land_as(rig, main)
    different = 0
    for index in range(1, LIMIT):
        (run,) = rig.run(1)
        assert isinstance(run, TokenRun)
        assert (run.index, run.hist) == (index, history(law[:index]))
        different += run.ids[0] != law[index]
        rig.send(feed(law[index : index + 1], at=index))
    assert 0 < different < LIMIT - 1


# -------------------------------------------------------------------- prefill and the law


def test_a_prefill_remembers_the_law_but_keeps_its_own_history() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(feed((TEXT[0] + 1, 8), epoch=1))
    assert rig.step() is None
    (run,) = rig.send(resync(0, epoch=1))
    assert run == TokenRun(request="r", epoch=1, index=0, ids=TEXT[:1], hist=0, fed=2)


# -------------------------------------------------------------------- resync and details


def test_resync_is_always_answered() -> None:
    rig = Rig()
    rig.landed_main()
    assert rig.send(resync(0)) == [run_of(0, (), fed=0)]
    rig.send(feed(TEXT[:1]))
    rig.run(4)
    assert rig.send(resync(2)) == [run_of(2, TEXT[2:5], fed=1)]
    assert rig.send(resync(5)) == [run_of(5, (), fed=1)]
    assert rig.send(resync(99)) == [run_of(5, (), fed=1)]
    assert rig.send(resync(-3)) == [run_of(0, TEXT[:5], fed=1)]


def test_logprobs_and_margins_come_again_with_a_resync() -> None:
    sampling = Sampling(logprobs=2, margins=True)
    rig = Rig()
    rig.landed_main(law=TEXT[:2], sampling=sampling)
    said = rig.run(3)
    fed, own = rig.send(resync(0))
    assert isinstance(fed, TokenRun)
    assert isinstance(own, TokenRun)
    assert (fed.index, fed.ids, fed.logprobs) == (0, TEXT[:2], None)
    runs = [run for run in said if isinstance(run, TokenRun)]
    assert own.ids == TEXT[2:5]
    assert own.logprobs == tuple(run.logprobs[0] for run in runs if run.logprobs)
    assert own.margins == tuple(run.margins[0] for run in runs if run.margins)
    assert len(own.logprobs) == 3
    assert own.logprobs[0].top[0][0] == TEXT[2]


def test_details_of_tokens_that_were_taken_back_are_gone() -> None:
    rig = Rig()
    rig.landed_main(law=TEXT[:1], sampling=Sampling(margins=True))
    rig.run(5)
    law = (*TEXT[:3], TEXT[3] + 1)
    rig.send(feed(law[1:], at=1))
    _, own, taken = rig.send(resync(0))
    assert isinstance(own, TokenRun)
    assert isinstance(taken, TokenRun)
    assert (own.index, own.ids, own.margins is not None) == (1, law[1:3], True)
    assert (taken.index, taken.ids, taken.margins) == (3, law[3:], None)


def test_sampling_with_a_seed_draws_alike_after_a_handoff() -> None:
    sampling = Sampling(temperature=0.8, seed=11)
    text = continuation(LIMIT, sampling=sampling)
    assert text != TEXT
    rig = Rig()
    rig.landed_main(law=text[:5], sampling=sampling)
    assert rig.tokens() == text[5:]
    assert continuation(LIMIT, sampling=replace(sampling, seed=12)) != text


def land_as(rig: Rig, model: SimulatedModel) -> None:
    """The prompt's KV arrives from an engine of the same model."""
    source = Rig("p", model=model)
    source.send(start(Role.PREFILL))
    source.run()
    rig.carry(source.engine, SeqId("r", 1), stop=len(PROMPT), model=model)
