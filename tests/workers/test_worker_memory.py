"""A worker whose KV memory runs out: legs wait, and go on when there is some."""

from tests.workers.worker_rig import (
    LIMIT,
    PROMPT,
    Rig,
    continuation,
    feed,
    resync,
    start,
    stop,
)
from workers.api.messages import Role, TokenRun

TEXT = continuation(LIMIT)


def test_a_reserve_that_is_outgrown_grows() -> None:
    rig = Rig()
    rig.send(start(reserve=len(PROMPT) + 2))
    rig.land()
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]


def test_a_leg_without_room_waits_and_goes_on_when_there_is_some() -> None:
    rig = Rig(kv_total_tokens=96)
    rig.send(start(limit=30, reserve=len(PROMPT) + 1))
    rig.land()
    rig.send(feed(TEXT[:1]))
    other = start(Role.PREFILL, epoch=9, prompt_ids=(7,) * 40, reserve=41)
    assert rig.send(other) == []
    text = continuation(30)
    assert rig.tokens() == text[1:8]  # 48 tokens are its three blocks
    assert rig.step() is None
    assert rig.engine.kv_free_tokens() == 0
    rig.send(stop(epoch=9))
    assert rig.tokens() == text[8:]


def test_law_without_room_waits_too_and_resync_knows_it() -> None:
    rig = Rig(kv_total_tokens=96)
    rig.send(start(limit=30, reserve=len(PROMPT) + 1))
    rig.land()
    rig.send(start(Role.PREFILL, epoch=9, prompt_ids=(7,) * 40, reserve=41))
    rig.run()
    text = continuation(30)
    rig.send(feed(text[:20]))
    assert rig.step() is None
    assert rig.worker.load().running == 1
    rig.send(stop(epoch=9))
    assert rig.tokens() == text[20:]


def test_a_truncation_inside_a_shared_block_waits_for_room_too() -> None:
    rig = Rig(kv_total_tokens=80)
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(9)  # own: TEXT[:10]; the third block of 16 is whole, 8 output tokens are in it
    longer = (*PROMPT, *TEXT[:9])
    rig.send(start(Role.PREFILL, epoch=9, prompt_ids=longer, reserve=50, limit=1))
    rig.run()
    assert rig.engine.kv_free_tokens() == 0
    law = (*TEXT[:3], TEXT[3] + 1)
    assert rig.send(feed(law[1:], at=1)) == []
    assert rig.step() is None
    assert rig.send(resync(0)) == [TokenRun(request="r", epoch=2, index=0, ids=law, hist=0, fed=4)]
    rig.send(stop(epoch=9))
    assert rig.tokens() == continuation(LIMIT - 4, law)
