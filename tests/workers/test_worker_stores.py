"""Legs at a site with stores: when they ask, how long they wait, what is kept."""

import pytest

from tests.workers.worker_rig import (
    LIMIT,
    MODEL,
    PROMPT,
    Rig,
    continuation,
    feed,
    offer,
    send_kv,
    start,
    stop,
)
from transport.base import StreamId
from workers.api.info import Part
from workers.api.messages import Landed, Role, TokenRun
from workers.engines.base import SeqId
from workers.outputs import LoadBlocks, SaveBlocks
from workers.storing import LEAST_S, UNKNOWN_S
from workers.worker import NotYet

TEXT = continuation(LIMIT)
STREAM = StreamId("r", 1, 2)
PREFILL, MAIN = SeqId("r", 1), SeqId("r", 2)


def put(rig: Rig, seq: SeqId, tokens: int) -> None:
    """Blocks come from a store: the KV of the prompt's first `tokens`."""
    source = Rig()
    source.send(start(Role.PREFILL))
    source.run()
    for layer in range(MODEL.layers):
        for part in Part:
            rig.engine.put(seq, source.engine.read(PREFILL, layer, part, 0, tokens))


def loaded(rig: Rig, seq: SeqId) -> list[object]:
    return rig.note(rig.worker.blocks_loaded(seq, rig.now))


def said(messages: list[object]) -> list[tuple[tuple[int, ...], int]]:
    return [(m.ids, m.cached) for m in messages if isinstance(m, TokenRun)]


def test_a_prefill_asks_for_whole_blocks_and_waits() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL, cache_salt="s"))
    assert rig.made(LoadBlocks) == [
        LoadBlocks(
            seq=PREFILL,
            tokens=PROMPT[:32],
            cache_salt="s",
            have=0,
            prefill_tokens_per_s=None,
            sent_otherwise=False,
            limit_s=UNKNOWN_S,
        )
    ]
    assert rig.step() is None


def test_what_came_is_not_computed_and_is_told_as_cached() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL))
    put(rig, PREFILL, 32)
    loaded(rig, PREFILL)
    began = rig.now
    assert said(rig.run()) == [(TEXT[:1], 32)]
    assert rig.now - began < 40 / 1000.0  # as many tokens a second


@pytest.mark.parametrize("came", [0, 16])
def test_a_load_that_is_cut_short_leaves_what_came(came: int) -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL))
    if came:
        put(rig, PREFILL, came)
    assert rig.worker.next_deadline() == rig.now + UNKNOWN_S
    assert rig.wait(UNKNOWN_S) == []
    assert said(rig.run()) == [(TEXT[:1], came)]
    assert loaded(rig, PREFILL) == []  # too late, and of no consequence


def test_nobody_waits_longer_than_computing_would_take() -> None:
    rig = Rig(stores=True, kv_total_tokens=8192)
    rig.send(start(Role.PREFILL, request="before", prompt_ids=tuple(range(3000))))
    loaded(rig, SeqId("before", 1))
    rig.run()
    rig.send(start(Role.PREFILL))
    rig.send(start(Role.PREFILL, request="long", prompt_ids=tuple(range(5000, 8000))))
    short, long = rig.made(LoadBlocks)[1:]
    assert short.limit_s == LEAST_S
    assert long.limit_s == pytest.approx(3.0, rel=0.1)


def test_a_prompt_that_the_engine_has_asks_nobody() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL))
    loaded(rig, PREFILL)
    rig.run()
    rig.send(start(Role.PREFILL, request="again"))
    rig.send(start(Role.PREFILL, request="short", prompt_ids=PROMPT[:16]))
    assert len(rig.made(LoadBlocks)) == 1


def test_main_tells_its_source_only_what_its_site_lacks() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.MAIN))
    (order,) = rig.made(LoadBlocks)
    assert (order.tokens, order.sent_otherwise) == (PROMPT[:32], True)
    with pytest.raises(NotYet):
        rig.worker.offered(offer(STREAM), rig.now)
    put(rig, MAIN, 16)
    assert loaded(rig, MAIN) == []
    assert rig.worker.offered(offer(STREAM), rig.now) == 16


def test_main_that_has_everything_lands_by_itself() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.MAIN, prompt_ids=PROMPT[:32]))
    put(rig, MAIN, 32)
    assert loaded(rig, MAIN) == [Landed(request="r", epoch=2, covered=0)]


def test_main_does_not_wait_for_ever() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.MAIN))
    rig.wait(UNKNOWN_S)
    assert rig.worker.offered(offer(STREAM), rig.now) == 0
    rig.land()
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]


def test_main_beside_its_source_takes_the_blocks_from_there() -> None:
    """Both legs on one worker: what comes from a store meanwhile is of no use any more."""
    rig = Rig(name="far", stores=True)
    rig.send(start(Role.PREFILL))
    loaded(rig, PREFILL)
    rig.run()
    rig.send(start(Role.MAIN))
    told = rig.send(send_kv())
    assert Landed(request="r", epoch=2, covered=0) in told
    assert loaded(rig, MAIN) == []


def test_a_relay_waits_for_its_source_only() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.RELAY))
    assert rig.made(LoadBlocks) == []


def test_a_leg_that_ends_while_it_waits_leaves_nothing() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL))
    rig.send(stop(epoch=1))
    assert loaded(rig, PREFILL) == []
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0
    rig.wait(UNKNOWN_S)


def test_a_leg_that_nobody_knows_changes_nothing() -> None:
    """A wrong name in a notification must not give another leg's memory away, or keep it."""
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL))
    free = rig.engine.kv_free_tokens()
    assert loaded(rig, SeqId("r", 9)) == loaded(rig, SeqId("another", 1)) == []
    assert rig.step() is None
    put(rig, PREFILL, 32)
    loaded(rig, PREFILL)
    assert said(rig.run()) == [(TEXT[:1], 32)]
    rig.send(stop(epoch=1))
    assert rig.engine.kv_free_tokens() > free


def test_a_prefill_is_kept_when_it_is_done_and_only_then() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.PREFILL, cache_salt="s", tenant="acme"))
    loaded(rig, PREFILL)
    assert rig.made(SaveBlocks) == []
    rig.run()
    kept = [SaveBlocks(tokens=PROMPT[:32], cache_salt="s", tenant="acme")]
    assert rig.made(SaveBlocks) == kept
    rig.send(stop(epoch=1))
    assert rig.made(SaveBlocks) == kept


def test_main_keeps_prompt_and_answer_at_its_end() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.MAIN))
    loaded(rig, MAIN)
    rig.land()
    rig.send(feed(TEXT[:1]))
    rig.run()
    rig.send(stop())
    (kept,) = rig.made(SaveBlocks)
    assert kept.tokens == (*PROMPT, *TEXT)[:48]


def test_a_leg_without_kv_keeps_nothing() -> None:
    rig = Rig(stores=True)
    rig.send(start(Role.MAIN))
    rig.send(stop())
    assert rig.made(SaveBlocks) == []


def test_without_stores_nobody_asks_or_keeps() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(stop(epoch=1))
    assert rig.made(LoadBlocks) == rig.made(SaveBlocks) == []
