"""KV at the worker: exports, imports, the local hand-over."""

from dataclasses import replace

import pytest

from tests.workers.worker_rig import (
    LIMIT,
    MODEL,
    PROMPT,
    Rig,
    continuation,
    feed,
    offer,
    pause,
    send_kv,
    start,
    stop,
)
from transport.base import OfferRefused, StreamId
from workers.api.info import Part
from workers.api.messages import KVFailed, Landed, Refused, Role, Stop, TokenRun
from workers.engines.base import SeqId
from workers.handover import LEG_ENDED
from workers.kv.prefix import block_names
from workers.outputs import CloseStream, DropImport, OpenStream
from workers.worker import NotYet

TEXT = continuation(LIMIT)
STREAM = StreamId("r", 1, 2)
NAMES = block_names(MODEL.fingerprint.canonical, "", PROMPT)
LANDED = Landed(request="r", epoch=2, covered=0)


def failed(reason: str, *, source: int = 1, epoch: int = 2) -> KVFailed:
    return KVFailed(request="r", epoch=epoch, source=source, reason=reason)


def prefilled() -> Rig:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.run()
    return rig


# -------------------------------------------------------------------- exports


def test_sendkv_opens_one_stream() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL, cache_salt="s"))
    rig.send(send_kv(codec="raw", weight=2.5))
    rig.send(send_kv(codec="raw", weight=2.5))
    assert rig.made(OpenStream) == [
        OpenStream(
            stream=STREAM,
            seq=SeqId("r", 1),
            address="far:1",
            start=0,
            stop=len(PROMPT),
            codec="raw",
            weight=2.5,
            cache_salt="s",
            blocks=block_names(MODEL.fingerprint.canonical, "s", PROMPT),
        )
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stop": len(PROMPT) + 1}, "tokens [0, 41) never exist in leg 1"),
        ({"start": 40}, "tokens [40, 40) never exist in leg 1"),
        ({"start": -1}, "tokens [-1, 40) never exist in leg 1"),
        ({"to_epoch": 1}, "a leg cannot be its own source"),
        ({"weight": 0.0}, "weight 0: must be above 0"),
        ({"weight": -1.0}, "weight -1: must be above 0"),
        ({"address": None}, "no address of far was given"),
    ],
)
def test_a_sendkv_that_cannot_be_done_fails_at_once(
    changes: dict[str, object], reason: str
) -> None:
    rig = prefilled()
    (answer,) = rig.send(send_kv(**changes))
    assert answer == failed(reason, epoch=changes.get("to_epoch", 2))  # type: ignore[arg-type]
    assert rig.made(OpenStream) == []


def test_sendkv_of_a_stopped_source_needs_no_answer() -> None:
    rig = prefilled()
    rig.send(stop(epoch=1))
    assert rig.send(send_kv()) == []


def test_a_target_that_has_ended_waits_for_nothing() -> None:
    """Its worker tells why it is gone, or its gateway has stopped it: not the source's business."""
    rig = prefilled()
    rig.send(send_kv())
    (opened,) = rig.made(OpenStream)
    ended = rig.worker.export_failed(opened.stream, LEG_ENDED, rig.now)
    assert rig.note(ended) == []
    assert rig.send(stop(epoch=1)) == []


def test_a_failed_export_is_told_again_when_asked_again() -> None:
    rig = prefilled()
    rig.send(send_kv())
    told = [failed("it was refused")]
    assert rig.note(rig.worker.export_failed(STREAM, "it was refused", rig.now)) == told
    assert rig.note(rig.worker.export_failed(STREAM, "it was refused", rig.now)) == []
    assert rig.send(send_kv()) == told
    rig.send(send_kv(to_epoch=4))
    assert [out.stream.target for out in rig.made(OpenStream)] == [2, 4]


def test_a_completed_export_is_not_closed_again() -> None:
    rig = prefilled()
    rig.send(send_kv())
    assert rig.worker.export_completed(STREAM, rig.now) == []
    assert rig.send(stop(epoch=1)) == []
    assert rig.made(CloseStream) == []


def test_stopping_the_source_closes_its_stream_and_tells_who_waits() -> None:
    rig = prefilled()
    rig.send(send_kv())
    assert rig.send(stop(epoch=1)) == [failed("the source was stopped")]
    assert rig.made(CloseStream) == [CloseStream(stream=STREAM)]


def test_what_is_still_to_be_sent_is_not_evicted() -> None:
    """The send is asynchronous: others want the memory long before it is read."""
    rig = Rig(kv_total_tokens=160)
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(send_kv())
    seq = SeqId("r", 1)
    before = [rig.engine.read(seq, 0, part, 0, len(PROMPT)).data.tobytes() for part in Part]
    for number in range(20):
        other = tuple(range(1000 * number, 1000 * number + 60))
        rig.send(start(Role.PREFILL, request=f"q{number}", prompt_ids=other, reserve=64))
        rig.run()
        rig.send(Stop(request=f"q{number}", epoch=1))
    waits = [
        start(Role.PREFILL, request=f"w{n}", prompt_ids=tuple(range(n, n + 60)), reserve=64)
        for n in (25_000, 26_000, 27_000)
    ]
    told = [answer for wait in waits for answer in rig.send(wait)]
    assert [type(answer) for answer in told] == [Refused, Refused], "who has no room is told so"
    after = [rig.engine.read(seq, 0, part, 0, len(PROMPT)).data.tobytes() for part in Part]
    assert before == after
    far = Rig("far")
    far.send(start())
    assert far.carry(rig.engine, seq, stop=len(PROMPT)) == [LANDED]
    far.send(feed(TEXT[:1]))
    assert far.tokens() == TEXT[1:]


def test_a_wrong_name_in_a_notification_neither_keeps_nor_frees_anything() -> None:
    rig = prefilled()
    rig.send(send_kv())
    held = rig.engine.kv_held_tokens()
    for wrong in (StreamId("r", 9, 2), StreamId("r", 1, 9), StreamId("another", 1, 2)):
        assert rig.note(rig.worker.export_completed(wrong, rig.now)) == []
        assert rig.note(rig.worker.export_failed(wrong, "it was refused", rig.now)) == []
        assert rig.note(rig.worker.import_completed(wrong, rig.now)) == []
        assert rig.note(rig.worker.import_broken(wrong, "not resumed", rig.now)) == []
    for message in (stop(epoch=9), Stop(request="another", epoch=1)):
        rig.send(message)
    assert rig.engine.kv_held_tokens() == held > 0
    rig.worker.export_completed(STREAM, rig.now)
    rig.send(stop(epoch=1))
    assert rig.engine.kv_held_tokens() == 0
    assert rig.worker.idle


def test_an_export_of_tokens_that_were_taken_back_fails() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(5)
    rig.send(send_kv(epoch=2, to_epoch=4, stop=len(PROMPT) + 4))
    rig.send(send_kv(epoch=2, to_epoch=5, stop=len(PROMPT) + 2))
    told = rig.send(feed((TEXT[1], TEXT[2] + 1), at=1))
    assert told == [failed("the source took tokens back", source=2, epoch=4)]
    assert [out.stream.target for out in rig.made(CloseStream)] == [4]


def test_an_export_of_tokens_still_to_come_survives_a_truncation() -> None:
    law = (TEXT[0], TEXT[1] + 1, 9, 8)
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(1)  # own: TEXT[:2], computed up to TEXT[:1]
    rig.send(send_kv(epoch=2, to_epoch=4, stop=len(PROMPT) + 4))
    assert rig.send(feed(law[1:], at=1)) == []
    rig.send(pause(1))
    rig.run()
    target = Rig("far")
    target.send(start(epoch=4, law_ids=law, cover=4))
    stop_at = len(PROMPT) + 4
    ups = target.carry(rig.engine, SeqId("r", 2), stop=stop_at, epoch=4, source=2)
    assert ups == [Landed(request="r", epoch=4, covered=4)]
    assert target.tokens(1, epoch=4) == continuation(1, law)


# -------------------------------------------------------------------- offers and imports


def test_an_offer_before_start_is_asked_again() -> None:
    rig = Rig()
    with pytest.raises(NotYet):
        rig.worker.offered(offer(STREAM), rig.now)
    rig.send(start())
    assert rig.worker.offered(offer(STREAM), rig.now) == 0


def test_an_offer_is_answered_while_a_step_runs() -> None:
    rig = prefilled()
    rig.send(start())
    rig.send(start(Role.PREFILL, epoch=9))
    step = rig.worker.begin(rig.now)
    assert step is not None
    assert rig.worker.offered(offer(STREAM), rig.now) == 32  # what the prefill left in the cache


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        (
            {"blocks": (*NAMES[:1], b"other" * 3 + b"!")},
            (NAMES[1].hex(), "tokens 16-32", "6f7468"),
        ),
        ({"slices_per_token": 60}, ("here 4", "offered 60")),
        ({"cache_salt": "x"}, ("here ''", "offered 'x'")),
        ({"stop": 41}, ("here 40", "offered up to 41")),
        ({"start": 16}, ("here 0", "offered from 16")),
    ],
)
def test_an_offer_of_other_kv_is_refused_with_both_values(
    changes: dict[str, object], both: tuple[str, ...]
) -> None:
    rig = Rig()
    rig.send(start())
    with pytest.raises(OfferRefused) as refusal:
        rig.worker.offered(replace(offer(STREAM), **changes), rig.now)
    assert all(value in str(refusal.value) for value in both)


def test_an_offer_from_another_model_is_refused() -> None:
    rig = Rig()
    rig.send(start())
    with pytest.raises(OfferRefused, match="content of tokens 0-16"):
        rig.worker.offered(offer(STREAM, model=replace(MODEL, name="other")), rig.now)


def test_a_prefill_and_an_ended_leg_take_no_offers() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    with pytest.raises(OfferRefused, match="is a prefill"):
        rig.worker.offered(offer(StreamId("r", 5, 1)), rig.now)
    rig.send(stop(epoch=1))
    with pytest.raises(OfferRefused, match="has ended"):
        rig.worker.offered(offer(StreamId("r", 5, 1)), rig.now)


def test_a_cached_prefix_need_not_be_sent() -> None:
    rig = prefilled()
    rig.send(stop(epoch=1))
    rig.send(start())
    assert rig.worker.offered(offer(STREAM), rig.now) == 32
    other = prefilled()
    assert rig.carry(other.engine, SeqId("r", 1), stop=len(PROMPT)) == [LANDED]
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]


def test_a_full_hit_lands_at_once_and_still_extends_the_last_token() -> None:
    prompt = PROMPT[:32]
    text = continuation(LIMIT, prompt=prompt)
    rig = Rig()
    rig.send(start(Role.PREFILL, prompt_ids=prompt))
    rig.run()
    rig.send(stop(epoch=1))
    assert rig.send(start(prompt_ids=prompt)) == [LANDED]
    assert rig.worker.offered(offer(STREAM, stop=32), rig.now) == 32
    assert rig.note(rig.worker.import_completed(STREAM, rig.now)) == []
    rig.send(feed(text[:1]))
    assert rig.tokens() == text[1:]


def test_a_cache_salt_keeps_prefixes_apart() -> None:
    rig = prefilled()
    rig.send(stop(epoch=1))
    rig.send(start(cache_salt="other"))
    assert rig.worker.offered(offer(STREAM, cache_salt="other", blocks=()), rig.now) == 0


def test_an_import_that_ends_short_fails_and_another_source_completes_it() -> None:
    other = prefilled()
    rig = Rig()
    rig.send(start())
    rig.worker.offered(offer(STREAM), rig.now)
    seq = SeqId("r", 2)
    for part in Part:
        rig.engine.put(seq, other.engine.read(SeqId("r", 1), 0, part, 0, len(PROMPT)))
    told = rig.note(rig.worker.import_completed(STREAM, rig.now))
    assert told == [failed("it ended with 80 slices missing")]
    second = StreamId("r", 3, 2)
    rig.worker.offered(offer(second), rig.now)
    for part in Part:
        rig.engine.put(seq, other.engine.read(SeqId("r", 1), 1, part, 0, len(PROMPT)))
    assert rig.note(rig.worker.import_completed(second, rig.now)) == [LANDED]


def test_a_broken_import_is_told_unless_the_kv_has_landed() -> None:
    rig = Rig()
    rig.send(start())
    rig.worker.offered(offer(STREAM), rig.now)
    told = rig.note(rig.worker.import_broken(STREAM, "not resumed", rig.now))
    assert told == [failed("not resumed")]
    rig.land(source=3)
    assert rig.note(rig.worker.import_broken(STREAM, "not resumed", rig.now)) == []


def test_landing_drops_what_other_sources_still_send() -> None:
    rig = Rig()
    rig.send(start())
    rig.worker.offered(offer(STREAM), rig.now)
    rig.land(source=3)
    assert rig.made(DropImport) == [DropImport(stream=STREAM)]


def test_stopping_the_target_drops_its_import_and_keeps_whole_blocks_as_cache() -> None:
    other = prefilled()
    rig = Rig()
    rig.send(start())
    rig.worker.offered(offer(STREAM), rig.now)
    rig.put_all(other.engine, SeqId("r", 1), 0, 39)
    rig.send(stop())
    assert rig.made(DropImport) == [DropImport(stream=STREAM)]
    assert rig.engine.kv_held_tokens() == 0
    rig.send(start(epoch=4))
    assert rig.worker.offered(offer(StreamId("r", 1, 4)), rig.now) == 32


def test_kv_of_another_prompt_is_refused_by_the_engine() -> None:
    other = Rig("p")
    other.send(start(Role.PREFILL, prompt_ids=(1, *PROMPT[1:])))
    other.run()
    rig = Rig()
    rig.send(start())
    with pytest.raises(ValueError, match="not what this engine would have computed"):
        rig.carry(other.engine, SeqId("r", 1), stop=len(PROMPT))


def test_messages_between_begin_and_complete_wait_for_the_end() -> None:
    other = prefilled()
    rig = Rig()
    rig.send(start())
    rig.worker.offered(offer(STREAM), rig.now)
    rig.put_all(other.engine, SeqId("r", 1), 0, len(PROMPT))
    rig.send(start(Role.PREFILL, epoch=9))
    step = rig.worker.begin(rig.now)
    assert step is not None
    assert rig.worker.import_completed(STREAM, rig.now) == []
    assert rig.send(feed(TEXT[:1])) == []
    assert LANDED in rig.note(rig.worker.finish(step, rig.now))
    assert rig.tokens() == TEXT[1:]


# -------------------------------------------------------------------- the short way


def test_on_the_same_worker_kv_is_shared() -> None:
    rig = prefilled()
    rig.send(start())
    assert rig.send(send_kv(to_worker="w", address=None)) == [LANDED]
    assert rig.made(OpenStream) == []
    assert rig.engine.kv_held_tokens() == 64  # two whole blocks shared, the rest copied
    rig.send(stop(epoch=1))
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]


def test_a_share_needs_no_more_room_than_its_import_had() -> None:
    """The import has found blocks in the cache that its source holds too; nothing else is free."""
    rig = Rig(kv_total_tokens=160)
    rig.send(start(Role.PREFILL))
    rig.run()
    rig.send(start(Role.MAIN))
    full = rig.engine.kv_free_tokens()
    rig.send(start(Role.PREFILL, request="other", prompt_ids=(7,), limit=1, reserve=full))
    assert rig.engine.kv_free_tokens() == 0
    told = rig.send(send_kv(to_worker="w"))
    assert told == [Landed(request="r", epoch=2, covered=0)]
    rig.send(feed(TEXT[:1]))
    assert rig.tokens() == TEXT[1:]


def test_a_share_waits_for_the_target_and_for_the_source() -> None:
    rig = Rig()
    rig.send(send_kv(to_worker="w"))
    rig.send(start(Role.PREFILL))
    assert rig.send(start()) == []
    ups = rig.run()
    assert [type(up) for up in ups] == [TokenRun, Landed]
    late = prefilled()
    assert late.send(send_kv(to_worker="w")) == []
    assert late.send(start()) == [LANDED]


def test_landed_comes_again_when_sendkv_is_repeated() -> None:
    rig = prefilled()
    rig.send(start())
    rig.send(send_kv(to_worker="w"))
    assert rig.send(send_kv(to_worker="w")) == [LANDED]
    assert rig.send(start()) == [LANDED]


def test_a_share_covers_law_that_the_relay_computed() -> None:
    rig = Rig()
    rig.landed_main()
    rig.send(feed(TEXT[:1]))
    rig.run(3)  # own: TEXT[:4]
    rig.send(pause(1))
    rig.send(start(epoch=4, law_ids=TEXT[:4], cover=4))
    rig.send(send_kv(epoch=2, to_epoch=4, stop=len(PROMPT) + 4, to_worker="w"))
    rig.run(1)
    assert Landed(request="r", epoch=4, covered=4) in [
        out.message for out in rig.outputs if hasattr(out, "message")
    ]
    assert rig.tokens(epoch=4) == TEXT[4:]


def test_a_share_of_other_tokens_fails() -> None:
    rig = prefilled()
    rig.send(start(prompt_ids=(1, *PROMPT[1:])))
    told = rig.send(send_kv(to_worker="w"))
    assert told == [failed("the source holds other tokens")]
    assert rig.send(send_kv(to_worker="w")) == told


def test_a_share_whose_source_ends_fails() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.send(start())
    rig.send(send_kv(to_worker="w"))
    assert rig.send(stop(epoch=1)) == [failed("the source was stopped")]


def test_a_share_whose_target_ends_is_forgotten() -> None:
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.send(start())
    rig.send(send_kv(to_worker="w"))
    assert rig.send(stop()) == []
    assert [type(up) for up in rig.run()] == [TokenRun]
    assert rig.send(send_kv(to_worker="w")) == []
    assert rig.send(stop(epoch=1)) == []
