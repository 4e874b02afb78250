"""Pause and resume at the worker alone: there, no deadline hides a mistake."""

from tests.workers.worker_rig import (
    LIMIT,
    PROMPT,
    Rig,
    continuation,
    feed,
    history,
    pause,
    resume,
    resync,
    send_kv,
    start,
)
from workers.api.messages import Paused, Role, TokenRun
from workers.engines.base import SeqId

TEXT = continuation(LIMIT)


def paused(seq: int, at: int) -> Paused:
    return Paused(request="r", epoch=2, seq=seq, at=at)


def running(fed: int = 1) -> Rig:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:fed]))
    return rig


def test_pause_reports_the_first_index_that_is_not_produced() -> None:
    rig = running()
    rig.run(3)
    assert rig.send(pause(1)) == [paused(1, 4)]
    assert rig.step() is None
    assert rig.engine.computed(SeqId("r", 2)) == len(PROMPT) + 3  # the KV stays


def test_pause_in_the_middle_of_a_step_finishes_the_step() -> None:
    rig = running()
    step = rig.worker.begin(rig.now)
    assert step is not None
    assert rig.send(pause(1)) == []
    run, answer = rig.note(rig.worker.finish(step, rig.now))
    assert isinstance(run, TokenRun)
    assert (run.index, answer) == (1, paused(1, 2))
    assert rig.step() is None


def test_pause_at_an_index_decodes_up_to_it() -> None:
    rig = running()
    assert rig.send(pause(1, at=4)) == []
    assert rig.send(pause(1, at=4)) == []  # repeated while it is still to be reached
    *runs, answer = rig.run()
    assert [run.index for run in runs if isinstance(run, TokenRun)] == [1, 2, 3]
    assert answer == paused(1, 4)


def test_pause_at_an_index_that_is_past_reports_where_the_leg_is() -> None:
    rig = running()
    rig.run(5)
    assert rig.send(pause(1, at=3)) == [paused(1, 6)]


def test_a_repeated_pause_is_answered_again() -> None:
    rig = running()
    rig.run(3)
    rig.send(pause(1))
    assert rig.send(pause(1)) == [paused(1, 4)]


def test_a_pause_before_anything_runs_is_answered() -> None:
    rig = Rig()
    rig.send(start(law_ids=TEXT[:2]))
    assert rig.send(pause(1)) == [paused(1, 2)]
    rig.land()
    assert rig.step() is None
    assert rig.send(resume(2)) == []
    assert rig.tokens() == TEXT[2:]


def test_a_pause_at_an_index_is_answered_at_once_when_nothing_can_come() -> None:
    rig = Rig()
    rig.send(start())
    assert rig.send(pause(1, at=5)) == [paused(1, 0)]


def test_a_leg_that_ends_before_the_index_of_its_pause_answers_where_it_ended() -> None:
    rig = running()
    rig.send(pause(1, at=LIMIT + 5))
    assert rig.run()[-1] == paused(1, LIMIT)


def test_resume_goes_on_with_the_next_index() -> None:
    rig = running()
    rig.run(3)
    rig.send(pause(1))
    assert rig.send(resume(2)) == []
    assert rig.tokens() == TEXT[4:]


def test_a_late_pause_after_resume_is_ignored() -> None:
    rig = running()
    rig.send(pause(1))
    rig.send(resume(2))
    assert rig.send(pause(1)) == []
    assert rig.tokens() == TEXT[1:]


def test_resume_that_overtakes_its_pause() -> None:
    rig = running()
    assert rig.send(resume(2)) == []
    assert rig.send(pause(1)) == []
    assert rig.tokens() == TEXT[1:]


def test_a_pause_with_the_number_of_a_resume_is_ignored() -> None:
    rig = running()
    rig.send(resume(2))
    assert rig.send(pause(2)) == []
    assert rig.tokens() == TEXT[1:]


def test_paused_carries_the_number_of_its_own_pause() -> None:
    rig = running()
    rig.send(pause(1))
    rig.send(resume(2))
    rig.run(2)
    assert rig.send(pause(3)) == [paused(3, 3)]
    assert rig.send(pause(1)) == []
    assert rig.send(resume(2)) == []
    assert rig.step() is None
    rig.send(resume(4))
    assert rig.tokens() == TEXT[3:]


def test_a_newer_pause_replaces_one_that_was_not_reached() -> None:
    rig = running()
    rig.send(pause(1, at=9))
    rig.run(2)
    assert rig.send(pause(3)) == [paused(3, 3)]


def test_a_paused_leg_learns_the_law_and_goes_on_after_it() -> None:
    rig = running()
    rig.run(3)
    rig.send(pause(1))
    law = (*TEXT[:2], TEXT[2] + 1, 9, 8)
    assert rig.send(feed(law[1:], at=1)) == []
    assert rig.step() is None
    assert rig.send(resync(0)) == [TokenRun(request="r", epoch=2, index=0, ids=law, hist=0, fed=5)]
    assert rig.send(pause(1)) == [paused(1, 4)]
    rig.send(resume(2))
    (run,) = rig.run(1)
    assert isinstance(run, TokenRun)
    assert (run.index, run.hist, run.ids) == (5, history(law), continuation(1, law))


def test_a_paused_relay_still_computes_what_its_export_needs() -> None:
    rig = running()
    rig.run(3)  # own: TEXT[:4], the last one's KV is not computed
    rig.send(pause(1))
    rig.send(send_kv(epoch=2, to_epoch=7, stop=len(PROMPT) + 4))
    assert rig.run() == []
    assert rig.engine.computed(SeqId("r", 2)) == len(PROMPT) + 4
    rig.send(resume(2))
    assert rig.tokens() == TEXT[4:]


def test_a_prefill_is_paused_like_any_leg() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    answer = Paused(request="r", epoch=1, seq=1, at=0)
    assert rig.send(pause(1, epoch=1)) == [answer]
    assert rig.step() is None
    rig.send(resume(2, epoch=1))
    assert rig.tokens(epoch=1) == TEXT[:1]
