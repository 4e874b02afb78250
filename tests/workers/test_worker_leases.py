"""What a worker frees by itself, what it says of itself, and when it wants to be called."""

import pytest

from tests.workers.worker_rig import (
    COSTS,
    LIMIT,
    Rig,
    continuation,
    feed,
    pause,
    resync,
    send_kv,
    start,
    stop,
)
from workers.api.messages import KVFailed, Refused, Role, TokenRun
from workers.meter import StepMeter
from workers.outputs import CloseStream, Up

TEXT = continuation(LIMIT)


def test_legs_of_a_gateway_that_is_not_seen_are_freed() -> None:
    rig = Rig(lease_s=10.0)
    rig.send(start())
    rig.send(start(epoch=4, request="other", gateway="h"))
    assert rig.worker.next_deadline() == 10.0
    rig.now = 9.0
    rig.worker.gateway_seen("h", rig.now)
    gone = Refused(request="r", epoch=2, reason="lease expired: g was not seen")
    assert rig.wait(1.0) == [gone]
    assert rig.worker.next_deadline() == 19.0
    assert rig.engine.kv_held_tokens() == 48
    assert rig.send(start()) == [gone]
    assert rig.send(resync()) == [gone]
    rig.wait(9.0)
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


def test_a_hold_expires() -> None:
    rig = Rig(hold_s=5.0)
    rig.send(start(Role.PREFILL))
    rig.run()
    sampled_at = rig.now
    rig.send(send_kv())
    assert rig.worker.next_deadline() == sampled_at + 5.0
    gone = Refused(request="r", epoch=1, reason="hold expired")
    failed = KVFailed(request="r", epoch=2, source=1, reason="hold expired")
    assert rig.wait(5.0) == [gone, failed]
    assert rig.made(CloseStream) != []
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


def test_a_hold_that_is_stopped_does_not_expire() -> None:
    rig = Rig(hold_s=5.0)
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(stop(epoch=1))
    assert rig.wait(5.0) == []


def test_nothing_expires_inside_a_step() -> None:
    rig = Rig(lease_s=1.0)
    rig.send(start(Role.PREFILL))
    step = rig.worker.begin(rig.now)
    assert step is not None
    assert rig.worker.next_deadline() is None
    assert rig.wait(2.0) == []
    run, gone = rig.note(rig.worker.finish(step, rig.now))
    assert isinstance(run, TokenRun)
    assert isinstance(gone, Refused)
    assert rig.worker.idle


def test_after_expire_the_next_deadline_is_later_than_now() -> None:
    rig = Rig(lease_s=10.0, hold_s=3.0)
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(feed((5,)))
    rig.send(stop(epoch=7))
    seen = []
    while (deadline := rig.worker.next_deadline()) is not None:
        assert deadline > rig.now
        rig.now = deadline
        rig.note(rig.worker.expire(rig.now))
        seen.append(deadline)
        assert len(seen) < 10
    assert rig.worker.idle


def test_every_answer_goes_to_its_own_gateway() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL, gateway="g"))
    rig.send(start(Role.PREFILL, gateway="h", request="other"))
    rig.run()
    ups = {out.message.request: out.gateway for out in rig.made(Up)}  # type: ignore[union-attr]
    assert ups == {"r": "g", "other": "h"}


def test_load_counts_what_runs_and_what_is_still_to_compute() -> None:
    rig = Rig()
    empty = rig.worker.load()
    assert (empty.worker, empty.running, empty.prefill_tokens) == ("w", 0, 0)
    assert (empty.kv_free_tokens, empty.kv_held_tokens, empty.kv_total_tokens) == (4096, 0, 4096)
    assert (empty.step_s, empty.prefill_tokens_per_s) == (None, None)
    rig.send(start(Role.PREFILL, epoch=9, prompt_ids=tuple(range(200)), reserve=201))
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.send(start(Role.RELAY))
    load = rig.worker.load()
    assert (load.running, load.prefill_tokens) == (2, 199)
    assert load.kv_free_tokens == 4096 - 208 - 64 - 32  # main and relay share two blocks
    rig.run(1)
    assert rig.worker.load().prefill_tokens == 199 - 64
    rig.send(pause(1))
    assert rig.worker.load().running == 1


def test_load_measures_steps() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run()
    rig.send(start(Role.PREFILL, epoch=9, prompt_ids=tuple(range(200)), reserve=201))
    rig.run()
    load = rig.worker.load()
    assert load.step_s == pytest.approx(COSTS.decode_step_s)
    assert load.prefill_tokens_per_s == pytest.approx(COSTS.prefill_tokens_per_s, rel=0.03)


def test_the_meter_leaves_decode_out_of_a_mixed_step() -> None:
    meter = StepMeter()
    meter.measure(0.0, 0, decodes=True)
    assert meter == StepMeter()
    meter.measure(0.02, 0, decodes=True)
    meter.measure(0.12, 100, decodes=True)
    assert meter.step_s == pytest.approx(0.02)
    assert meter.prefill_tokens_per_s == pytest.approx(1000.0)
    meter.measure(0.03, 0, decodes=True)
    assert meter.step_s == pytest.approx(0.021)


def test_one_step_at_a_time() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    step = rig.worker.begin(rig.now)
    assert step is not None
    with pytest.raises(RuntimeError, match="not complete"):
        rig.worker.begin(rig.now)
    rig.worker.finish(step, rig.now)
    with pytest.raises(RuntimeError, match="not the one"):
        rig.worker.finish(step, rig.now)
