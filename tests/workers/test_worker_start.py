"""Legs begin once and end once: start, stop, refusals, tombstones, slots."""

import pytest

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
    stop,
)
from workers.api.messages import Cause, Feed, KVFailed, Landed, Paused, Refused, Role, TokenRun
from workers.engines.base import SeqId
from workers.outputs import CloseStream, OpenStream


def refused(reason: str, *, epoch: int = 2, cause: Cause = Cause.BUSY) -> Refused:
    return Refused(request="r", epoch=epoch, reason=reason, cause=cause)


def test_a_prefill_samples_once_and_then_holds() -> None:
    rig = Rig()
    assert rig.send(start(Role.PREFILL)) == []
    first = continuation(1)
    assert rig.run() == [TokenRun(request="r", epoch=1, index=0, ids=first, hist=0, fed=0)]
    assert rig.step() is None
    assert rig.engine.kv_held_tokens() == 48
    rig.send(stop(epoch=1))
    assert rig.engine.kv_held_tokens() == 0
    assert rig.worker.idle


def test_a_prefill_computes_prompt_and_law_and_samples_the_next_index() -> None:
    law = continuation(5)
    rig = Rig()
    rig.send(start(Role.PREFILL, law_ids=law))
    (run,) = rig.run()
    assert run == TokenRun(
        request="r", epoch=1, index=5, ids=continuation(1, law), hist=history(law), fed=5
    )


def test_a_prefill_at_the_limit_computes_but_does_not_sample() -> None:
    law = continuation(3)
    rig = Rig()
    rig.send(start(Role.PREFILL, law_ids=law, limit=3))
    assert rig.run() == []
    assert rig.engine.computed(SeqId("r", 1)) == len(PROMPT) + 3
    assert rig.worker.next_deadline() is not None
    rig.wait(31.0)
    assert rig.worker.idle


def test_with_one_token_allowed_the_prefill_gives_it() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL, limit=1))
    assert rig.tokens(epoch=1) == continuation(1)


def test_a_start_that_is_repeated_opens_nothing_again() -> None:
    rig = Rig()
    rig.send(start())
    held = rig.engine.kv_held_tokens()
    assert rig.send(start()) == []
    assert rig.engine.kv_held_tokens() == held


def test_a_repeated_start_says_again_what_it_was_answered_with() -> None:
    rig = Rig()
    rig.landed_main()
    landed = Landed(request="r", epoch=2, covered=0)
    assert rig.send(start()) == [landed]
    first = continuation(1)
    rig.send(feed(first))
    own = rig.tokens(3)
    again = TokenRun(request="r", epoch=2, index=1, ids=own, hist=history(first), fed=1)
    assert rig.send(start()) == [landed, again]


def test_stop_before_start() -> None:
    rig = Rig()
    assert rig.send(stop()) == []
    assert rig.send(start()) == []
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


def test_a_repeated_start_after_stop() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(stop(epoch=1))
    assert rig.send(start(Role.PREFILL)) == []
    assert rig.step() is None
    assert rig.worker.idle


def test_a_tombstone_is_forgotten_in_time() -> None:
    rig = Rig()
    rig.send(stop())
    assert rig.worker.next_deadline() == 60.0
    rig.wait(59.9)
    rig.send(start())
    assert rig.worker.idle
    rig.wait(0.1)
    rig.send(start())
    assert not rig.worker.idle


def test_a_second_end_changes_nothing() -> None:
    rig = Rig()
    rig.worker.drain(rig.now)
    told = rig.send(start())
    rig.wait(50.0)
    rig.send(stop())
    assert rig.send(start()) == told
    rig.wait(10.0)
    assert rig.worker.next_deadline() is None


def test_stop_in_the_middle_of_a_step_waits_for_its_end() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    step = rig.worker.begin(rig.now)
    assert step is not None
    rig.worker.abandoned("r", 1)
    assert rig.send(stop(epoch=1)) == []
    assert not rig.worker.idle
    assert rig.note(rig.worker.finish(step, rig.now)) == []
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


def test_abandoning_what_is_not_here_is_harmless() -> None:
    rig = Rig()
    rig.worker.abandoned("r", 1)
    assert rig.worker.idle


# -------------------------------------------------------------------- refusals


def test_no_room_is_refused_and_holds_nothing() -> None:
    rig = Rig(kv_total_tokens=64)
    rig.send(start(Role.PREFILL))
    reason = "no KV memory: 64 tokens wanted, 0 free"
    assert rig.send(start()) == [refused(reason)]
    assert rig.send(start()) == [refused(reason)]
    rig.send(stop(epoch=1))
    assert rig.worker.idle


def test_no_slot_is_refused() -> None:
    rig = Rig(slots=1)
    rig.send(start(Role.PREFILL))
    assert rig.send(start()) == [refused("all 1 slots of w are taken")]


def test_a_held_prefill_takes_no_slot() -> None:
    rig = Rig(slots=1)
    rig.send(start(Role.PREFILL))
    rig.run()
    assert rig.send(start()) == []


def test_a_paused_leg_takes_no_slot_and_is_not_refused_when_it_resumes() -> None:
    rig = Rig(slots=1)
    rig.landed_main()
    rig.send(feed(continuation(1)))
    rig.send(pause(1))
    assert rig.send(start(Role.RELAY)) == []
    assert rig.send(start(Role.PREFILL)) == [refused("all 1 slots of w are taken", epoch=1)]
    assert rig.send(resume(2)) == []
    assert rig.tokens() == continuation(LIMIT)[1:]


def test_a_draining_worker_refuses_new_legs_and_finishes_old_ones() -> None:
    rig = Rig()
    rig.landed_main()
    rig.worker.drain(rig.now)
    assert rig.send(start(Role.RELAY)) == [refused("w is draining", epoch=3)]
    rig.send(feed(continuation(1)))
    assert rig.tokens() == continuation(LIMIT)[1:]
    assert not rig.worker.idle
    rig.send(stop())
    assert rig.worker.idle


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"limit": 8192}, "40 prompt tokens and 8192 output tokens exceed the context of 8192"),
        ({"prompt_ids": ()}, "the prompt is empty"),
        ({"cover": 1}, "cover 1, law 0 and limit 12 must not decrease"),
        ({"cover": -1}, "cover -1, law 0 and limit 12 must not decrease"),
        ({"limit": -1}, "cover 0, law 0 and limit -1 must not decrease"),
        ({"law_ids": (5, 32_000)}, "token ids must be within [0, 32000)"),
        ({"prompt_ids": (5, -1)}, "token ids must be within [0, 32000)"),
    ],
)
def test_what_no_worker_could_take_is_refused_for_good(
    changes: dict[str, object], reason: str
) -> None:
    rig = Rig()
    assert rig.send(start(**changes)) == [refused(reason, cause=Cause.SENSELESS)]
    assert rig.worker.idle


def test_what_was_parked_for_a_refused_leg_is_refused_with_it() -> None:
    rig = Rig()
    rig.worker.drain(rig.now)
    rig.send(send_kv())
    assert rig.send(start(Role.PREFILL)) == [
        refused("w is draining", epoch=1),
        refused("w is draining", epoch=1),
    ]


# -------------------------------------------------------------------- before the start


def test_feed_before_start() -> None:
    rig = Rig()
    first = continuation(1)
    assert rig.send(feed(first)) == []
    rig.landed_main()
    assert rig.tokens() == continuation(LIMIT)[1:]


def test_sendkv_before_start() -> None:
    rig = Rig()
    assert rig.send(send_kv()) == []
    rig.send(start(Role.PREFILL))
    (opened,) = rig.made(OpenStream)
    assert (opened.stream, opened.address, opened.stop) == (("r", 1, 2), "far:1", len(PROMPT))


def test_pause_before_start() -> None:
    rig = Rig()
    assert rig.send(pause(1)) == []
    assert rig.send(start()) == [Paused(request="r", epoch=2, seq=1, at=0)]


def test_resync_before_start() -> None:
    rig = Rig()
    assert rig.send(resync()) == []
    empty = TokenRun(request="r", epoch=2, index=0, ids=(), hist=0, fed=0)
    assert rig.send(start()) == [empty]


def test_parked_messages_are_given_up_in_time_and_answered_where_somebody_waits() -> None:
    rig = Rig()
    rig.send(feed((5,)))
    rig.send(send_kv())
    rig.send(resync())
    assert rig.wait(9.9) == []
    reason = "leg 1 is not known at w"
    failed = KVFailed(request="r", epoch=2, source=1, reason=reason)
    assert rig.wait(0.2) == [refused("leg 2 is not known at w"), failed]
    assert rig.worker.next_deadline() is None


def test_parked_messages_are_bounded() -> None:
    rig = Rig()
    for index in range(200):
        rig.send(Feed(request="r", epoch=2, law=index + 1, start=index, ids=(7,)))
    rig.landed_main()
    assert rig.send(resync())[0] == TokenRun(
        request="r", epoch=2, index=0, ids=(), hist=0, fed=0
    )  # the oldest were dropped, so the rest leaves a gap
    for request in range(2000):
        rig.send(Feed(request=f"{request}", epoch=2, law=1, start=0, ids=(7,)))
    assert len(rig.worker._absent._parked) == 1024


def test_stop_ends_the_streams_of_a_leg() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.send(send_kv())
    rig.send(stop(epoch=1))
    assert [out.stream for out in rig.made(CloseStream)] == [("r", 1, 2)]
