"""Sender and receiver, alone and against each other: nothing twice, nothing lost, always an end."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import make_offer, make_slice
from tests.transport.stream.stream_world import RESUME_S, WINDOW, World
from transport.base import SliceKey, StreamId
from transport.codecs.table import encode_slice
from transport.stream import frames
from transport.stream.receiver import Receiver, Verdict
from transport.stream.sender import MAX_BREAKS, STALL_S, Phase, Sender, StreamBroken

ACTIONS = ["push", "write", "arrive", "decoded", "answer", "hear", "cut", "notice", "corrupt"]


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 50)), max_size=120),
    st.sampled_from([0, 16, 32]),
)
@settings(max_examples=80, deadline=None)
def test_every_slice_arrives_once_and_intact(actions, have):
    world = World([make_offer("a"), make_offer("b", stop=40)], have=have)
    accidents = 0
    for action, at in actions:
        world.connect()
        sender = world.senders[at % 2]
        match action:
            case "push":
                world.push(sender)
            case "write":
                world.write(sender)
            case "decoded":
                world.decoded(at)
            case "cut" | "corrupt":
                accidents += 1
                if accidents <= MAX_BREAKS and action == "cut":
                    world.cut()
                elif accidents <= MAX_BREAKS:
                    world.corrupt(at)
            case _:
                getattr(world, action)()
    world.settle()
    for sender in world.senders:
        assert sender.phase is Phase.DONE, sender.reason
        world.sink.check(sender.offer)
        assert sender.offer.stream in world.sink.completions
    assert not world.receiver.streams
    assert not world.sink.breaks
    assert all(s.next_deadline() is None for s in world.senders)
    assert world.receiver.next_deadline() is None


@pytest.fixture
def world() -> World:
    return World([make_offer()], window=1 << 20)


def test_only_what_is_missing_is_sent_after_a_cut(world: World):
    sender = world.accepted()
    world.send(sender, 10)
    for _ in range(6):
        world.arrive()
        world.decoded(0)
    world.cut()  # six are stored and not one acknowledgement came back
    world.settle()
    assert sender.phase is Phase.DONE
    world.sink.check(sender.offer)
    assert len(world.sent) == 24 + 4


def test_the_answer_waits_for_what_is_still_being_decoded(world: World):
    sender = world.accepted()
    world.send(sender)
    world.arrive()
    assert len(world.decoding) == 1
    world.cut()
    world.connect()
    world.arrive()
    world.answer()
    assert not world.back
    world.decoded(0)
    world.answer()
    world.hear()
    assert sender.phase is Phase.OPEN
    assert sender.unacked_bytes == 0


def test_a_refusal_names_both_values(world: World):
    offer = dataclasses.replace(make_offer("odd"), fingerprint='{"tensors":"t9"}')
    sender = Sender(offer, 0.0, resume_s=RESUME_S)
    world.senders = [sender]
    world.connect()
    world.step()
    assert sender.phase is Phase.BROKEN
    assert '"t0"' in sender.reason
    assert '"t9"' in sender.reason
    assert not world.sink.breaks
    assert not world.receiver.streams
    with pytest.raises(StreamBroken):
        sender.push(encode_slice(offer.stream, make_slice(0, "k", 0, 16), "raw"))


def test_a_piece_of_an_unknown_stream_is_refused_by_its_head(world: World):
    stray = encode_slice(StreamId("stray", 0, 1), make_slice(0, "k", 0, 16), "raw")
    assert world.receiver.admit("c", dataclasses.replace(stray, body=b""), 0.0) is Verdict.SKIP
    (answer,) = world.receiver.take("c")
    assert answer == frames.Refuse(stray.stream, "the receiver does not know this stream")
    assert not world.receiver.streams


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (SliceKey(0, "k", 60, 76), "tokens 60-76 outside 0-64"),
        (SliceKey(9, "k", 0, 16), "more than 6 slices per token"),
    ],
)
def test_a_piece_outside_the_offer_breaks_the_stream(world: World, key: SliceKey, why: str):
    sender = world.accepted()
    world.send(sender, 6)
    world.step(6)
    data = encode_slice(sender.offer.stream, make_slice(0, "k", 0, 16), "raw")
    world.receiver.admit(world.conn, dataclasses.replace(data, key=key), 0.0)
    world.step()
    assert why in sender.reason
    assert why in world.sink.breaks[sender.offer.stream]


def test_a_repeat_is_acknowledged_and_not_put_twice(world: World):
    sender = world.accepted()
    world.send(sender)
    world.step()
    (data,) = world.sent
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert frames.Ack(data.stream, (data.key,)) in world.receiver.take(world.conn)


def test_what_an_old_connection_still_brings_is_left_alone(world: World):
    sender = world.accepted()
    world.send(sender)
    (data,) = world.sent
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.TAKE
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP  # it is being decoded
    world.receiver.dropped(data)
    world.receiver.handle("new", frames.Offering(sender.offer), 0.0)
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert world.receiver.admit("new", data, 0.0) is Verdict.TAKE


def test_a_piece_before_the_answer_is_not_taken(world: World):
    world.sink.have = None
    world.connect()
    world.step()
    data = encode_slice(world.senders[0].offer.stream, make_slice(0, "k", 0, 16), "raw")
    assert world.receiver.admit(world.conn, data, 0.0) is Verdict.SKIP
    assert world.receiver.take(world.conn) == []


def test_finishing_early_is_told_apart_from_done(world: World):
    sender = world.accepted()
    world.send(sender)
    world.step()
    world.post(sender.finish(0.0))
    world.step()
    assert "finished with 368 slice tokens missing" in sender.reason
    assert sender.offer.stream in world.sink.breaks


def test_a_receiver_that_forgot_is_found_out(world: World):
    sender = world.accepted()
    world.send(sender)
    world.step()
    world.cut()
    world.receiver = Receiver(world.sink, window_bytes=WINDOW, resume_s=RESUME_S)
    world.connect()
    world.step(2)
    assert sender.reason == "the receiver has lost what it had acknowledged"
    assert sender.offer.stream in world.sink.breaks


def test_a_full_hit_is_done_without_a_piece():
    world = World([make_offer()], have=64)
    world.settle()
    assert world.senders[0].phase is Phase.DONE
    assert not world.sent
    (stats,) = world.sink.completions.values()
    assert (stats.bytes_raw, stats.bytes_wire, stats.transfer_s) == (0, 0, 0.0)


def test_a_lost_done_is_said_again(world: World):
    sender = world.accepted()
    while world.todo[id(sender)]:
        world.send(sender)
        world.arrive()
        world.decoded(0)
    assert not world.receiver.streams  # complete there, and the sender has heard of nothing
    world.cut()
    world.settle()
    assert sender.phase is Phase.DONE
    assert len(world.sent) == 24


def test_cancel_reaches_the_other_end(world: World):
    sender = world.accepted()
    world.push(sender)
    world.post(sender.cancel("the client left"))
    world.step()
    assert world.sink.breaks == {sender.offer.stream: "the client left"}
    assert sender.unacked_bytes == 0
    assert not world.receiver.streams


def test_cancel_by_the_receiver_holds_for_late_offers(world: World):
    sender = world.accepted()
    world.receiver.cancel(sender.offer.stream, "leg stopped")
    world.step()
    assert (sender.phase, sender.reason) == (Phase.BROKEN, "leg stopped")
    world.receiver.handle("late", frames.Offering(sender.offer), 0.0)
    assert world.receiver.take("late") == [frames.Refuse(sender.offer.stream, "leg stopped")]
    assert not world.sink.breaks  # its owner asked for it


def test_an_offer_before_its_leg_waits_and_then_is_answered(world: World):
    world.sink.have = None
    sender = world.accepted()
    assert sender.phase is Phase.OFFERED
    assert world.receiver.asking()
    world.sink.have = 16
    world.receiver.ask_again(0.02)
    world.step()
    assert (sender.phase, sender.have) == (Phase.OPEN, 16)
    assert not world.receiver.asking()
    assert world.receiver.next_deadline() is None


def test_an_offer_whose_leg_never_starts_is_refused(world: World):
    world.sink.have = None
    world.connect()
    world.step()
    world.receiver.expire(RESUME_S)
    world.step()
    assert world.senders[0].reason == "the receiving leg has not started"
    assert not world.sink.breaks


def test_both_ends_give_up_when_the_connection_stays_away(world: World):
    sender = world.accepted()
    world.now = 5.0
    world.cut()
    world.notice()
    assert sender.next_deadline() == 15.0
    assert sender.expire(14.9) == []
    assert sender.phase is Phase.WAITING
    sender.expire(15.0)
    assert sender.reason == "not accepted within 10 s: cut"
    assert world.receiver.next_deadline() == 15.0
    world.receiver.expire(15.0)
    assert world.sink.breaks == {sender.offer.stream: "not resumed within 10 s"}


def test_breaking_without_progress_ends(world: World):
    (sender,) = world.senders
    for _ in range(MAX_BREAKS + 1):
        assert not sender.ended
        world.connect()
        world.step()
        world.cut()
        world.notice()
    assert "broken 6 times without progress" in sender.reason


def test_a_receiver_that_stops_acknowledging_is_given_up(world: World):
    sender = world.accepted()
    world.send(sender)
    assert sender.next_deadline() == STALL_S
    assert sender.expire(STALL_S) == [
        frames.Cancel(sender.offer.stream, "nothing acknowledged in 60 s")
    ]


def test_the_window_holds_the_sender_back():
    world = World([make_offer()])
    sender = world.accepted()
    left = len(world.todo[id(sender)])
    world.send(sender, 30)
    assert len(world.todo[id(sender)]) > left - 6
    assert not sender.has_room
