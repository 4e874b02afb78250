"""Sender and receiver, alone and against each other: nothing twice, nothing lost, always an end."""

import dataclasses
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.kv_helpers import make_offer, make_slice
from tests.transport.stream.stream_world import RESUME_S, SESSION, WINDOW, World
from transport.base import Offer, SliceKey, StreamId
from transport.codecs.table import encode_slice
from transport.stream import frames
from transport.stream.outgoing import Phase
from transport.stream.receiver import Receiver, Verdict
from transport.stream.sender import MAX_BREAKS, MAX_DAMAGED, STALL_S, Sender

MOVES = ["push", "write", "arrive", "decoded", "answer", "hear", "notice", "late", "dial", "start"]
ACCIDENTS = ["cut", "flip", "undial"]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(MOVES + MOVES + ACCIDENTS + ["repeat"]), st.integers(0, 50)),
    max_size=150,
)
FIRST = SliceKey(0, "k", 0, 16)
slow_is_fine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def offers() -> list[Offer]:
    return [make_offer("a"), make_offer("b", stop=40), make_offer("c", start=8, stop=24)]


def check_all_arrived(world: World) -> None:
    """With few accidents everything does, and nobody has to lose patience."""
    world.settle()
    for out in world.outs:
        assert out.phase is Phase.DONE, out.reason
        world.sink.check(out.offer)
        assert out.stream in world.sink.completions
    assert not world.sink.breaks
    assert not world.receiver.streams
    assert world.receiver.held_bytes == 0
    assert world.receiver.next_deadline() is None
    assert world.sender.estimate(None).queue_bytes == 0
    assert world.sender._goodput.flying == 0
    assert world.now < RESUME_S


def check_all_ended(world: World) -> None:
    """Nobody is there any more: each stream ends at both ends, and says why."""
    for line in list(world.lines):
        for end in ("sender", "receiver"):
            if line.up[end]:
                world.lose(line, end)
    world.decode()
    for _ in range(300):
        due = world.sender.next_deadline()
        if due is None:
            break
        world.now = max(world.now, due)
        world.sender.expire(world.now)
        world.undial()
    world.receiver.expire(world.now + RESUME_S)
    assert world.sender.next_deadline() is None
    assert not world.sender.streams
    assert not world.receiver.streams
    assert world.receiver.held_bytes == 0
    for out in world.outs:
        assert out.phase is Phase.DONE or out.reason
        if out.phase is Phase.DONE:
            world.sink.check(out.offer)
        assert not (out.stream in world.sink.completions and out.stream in world.sink.breaks)


@given(
    ACTIONS,
    st.sampled_from([0, 16, 24, 64, None]),
    st.integers(1, 4),
    st.sampled_from([(), ("a",), ("a", "b")]),
    st.sampled_from([600, WINDOW, 1 << 20]),
)
@settings(slow_is_fine, max_examples=60)
def test_every_slice_arrives_once_and_intact(actions, have, connections, early, window):
    world = World(offers(), have=have, window=window, connections=connections, early=early)
    accidents = 0
    for action, at in actions:
        accidents += action in ACCIDENTS
        if action not in ACCIDENTS or accidents <= MAX_BREAKS:
            getattr(world, action)(at)
            world.check()
    check_all_arrived(world)


@given(ACTIONS, st.sampled_from([0, 24, None]), st.integers(1, 3), st.sampled_from([(), ("a",)]))
@settings(slow_is_fine, max_examples=60)
def test_whatever_happens_ends_and_is_named(actions, have, connections, early):
    world = World(offers(), have=have, connections=connections, early=early)
    for action, at in actions:
        getattr(world, action)(at)
        world.check()
    check_all_ended(world)


# Deeper than drawn lists go: most of what happens carries something forward.
USUAL = {
    "send_on": 6,
    "write": 4,
    "arrive": 10,
    "decoded": 3,
    "answer": 5,
    "hear": 8,
    "notice": 0.3,
    "late": 4,
    "dial": 4,
    "start": 0.5,
    "repeat": 1,
    "cut": 3,
    "flip": 0.5,
    "undial": 0.1,
}


def long_life(seed: int, most_accidents: int) -> World:
    rng = random.Random(seed)
    early = rng.choice([(), ("a",), ("a", "b", "c")])
    world = World(
        offers(),
        have=rng.choice([0, 0, 0, 24, None]),
        window=rng.choice([600, WINDOW, 1 << 20]),
        connections=rng.randrange(1, 5),
        early=early,
    )
    accidents = 0
    # In each life other things are slow, or seldom happen.
    weights = [weight * rng.choice([0.05, 0.3, 1, 1, 3]) for weight in USUAL.values()]
    for action in rng.choices(list(USUAL), weights, k=rng.randrange(50, 400)):
        accidents += action in ACCIDENTS
        if action not in ACCIDENTS or accidents <= most_accidents:
            getattr(world, action)(rng.randrange(60))
            world.check()
    return world


@pytest.mark.parametrize("seeds", [range(at, at + 50) for at in range(0, 200, 50)], ids=str)
def test_long_lives_with_few_accidents(seeds: range):
    for seed in seeds:
        try:
            check_all_arrived(long_life(seed, MAX_BREAKS))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("seeds", [range(at, at + 50) for at in range(0, 100, 50)], ids=str)
def test_long_lives_with_any_accidents(seeds: range):
    for seed in seeds:
        try:
            check_all_ended(long_life(seed, 1000))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.fixture
def world() -> World:
    world = World([make_offer()], window=1 << 20)
    world.step()
    return world


def piece_of(world: World, key: SliceKey = FIRST) -> frames.Data:
    """A piece as `admit` sees it, by its head."""
    data = encode_slice(world.outs[0].stream, make_slice(0, "k", 0, 16), "raw")
    return dataclasses.replace(data, key=key, body=b"")


def two_connections(**options) -> World:
    """A stream that was accepted, over two connections."""
    world = World([make_offer()], window=1 << 20, connections=2, **options)
    world.step(2)
    assert world.outs[0].phase is Phase.OPEN
    return world


# ------------------------------------------------------------ what is sent again, and what not


def test_only_what_is_missing_is_sent_after_a_cut(world: World):
    (out,) = world.outs
    world.send(10)
    for _ in range(6):
        world.arrive(1)
    for at in range(6):
        world.decoded(at)
    world.lose(world.lines[0], "sender")  # six are stored and not one acknowledgement came back
    world.notice()
    world.settle()
    assert out.phase is Phase.DONE
    world.sink.check(out.offer)
    assert len(world.sent) == 24 + 4
    keys = [data.key for data in world.sent]
    twice = [data for at, data in enumerate(world.sent) if data.key in keys[:at]]
    assert len(twice) == 4
    assert out.resent_bytes == sum(len(data.body) for data in twice)


def test_one_connection_of_two_breaks_and_the_other_goes_on():
    world = two_connections()
    (out,) = world.outs
    for at in range(8):
        world.push()
        world.write(at)
    world.lose(world.lines[1], "sender")
    world.lose(world.lines[1], "receiver")
    assert len(out.flying) == 4
    assert len(out.uncertain) == 4
    world.settle()
    assert out.phase is Phase.DONE
    assert len(world.sent) == 24 + 4


def test_the_answer_waits_for_what_is_still_being_decoded(world: World):
    (out,) = world.outs
    world.send()
    world.arrive(1)
    assert len(world.decoding) == 1
    world.lose(world.lines[0], "sender")
    world.notice()
    world.late()
    world.dial()
    world.write(most=0)
    world.arrive(1)
    world.answer()
    assert not world.lines[0].back
    world.decoded()
    world.answer()
    world.hear(1)
    assert out.phase is Phase.OPEN
    assert not out.unacked


def test_a_repeat_is_acknowledged_and_not_put_twice(world: World):
    world.send()
    world.arrive(1)
    world.decoded()
    world.answer()
    (data,) = world.sent
    assert world.receiver.admit(world.lines[0], data, 99, 0.0) is Verdict.SKIP
    assert world.receiver.take(world.lines[0]) == [frames.Ack(data.stream, (data.key,))]


def test_a_damaged_piece_is_asked_for_again_and_the_connection_stays(world: World):
    (out,) = world.outs
    world.send()
    line = world.lines[0]
    line.there[0] = line.there[0][:-1] + bytes([line.there[0][-1] ^ 1])
    world.arrive(1)
    world.decoded()
    world.answer()
    world.hear(1)
    assert out.flying == {}
    assert list(out.queue) == [world.sent[0].key]
    world.settle()
    assert out.phase is Phase.DONE
    assert world.made == 1
    assert out.resent_bytes == len(world.sent[0].body)


def test_a_path_that_damages_everything_is_given_up(world: World):
    (out,) = world.outs
    world.send()
    for n in range(MAX_DAMAGED + 1):
        assert not out.ended, n
        world.sender.handle(world.lines[0], frames.Again(out.stream, tuple(out.flying)), 0.0)
        world.write()
    assert out.reason == "65 pieces came damaged without progress"


def test_a_piece_that_came_again_while_the_dead_connection_still_held_it_is_acknowledged():
    """The sender knew of the break before the receiver did: both copies must be answered."""
    world = two_connections()
    (out,) = world.outs
    world.send()
    world.drain()
    old = world.decoding[0][0]
    world.lose(old, "sender")
    world.step()  # offered again on the other line, and accepted without the piece
    world.write(most=1)
    assert len(world.sent) == 2
    world.drain()
    world.decoded()
    world.answer()
    world.drain_back()
    assert not out.unacked


def test_a_piece_that_came_again_is_asked_for_when_its_first_copy_breaks_off():
    world = two_connections()
    (out,) = world.outs
    world.send()
    old = next(line for line in world.lines if line.there)
    raw = old.there.pop()
    old.there.append(raw[:-10])  # the rest never comes
    world.drain()
    assert old.reader.unread is not None
    world.lose(old, "sender")
    world.step()
    world.write(most=1)
    world.drain()
    world.lose(old, "receiver")
    world.answer()
    world.drain_back()
    assert list(out.queue) == [world.sent[0].key]
    world.settle()
    assert out.phase is Phase.DONE


def test_a_done_that_is_lost_on_a_dead_connection_is_heard_on_another():
    world = two_connections()
    (out,) = world.outs
    while world.todo[out.stream]:
        world.push()
        world.write(0)
    world.drain()
    world.lose(world.lines[0], "sender")  # and the receiver does not know
    world.decode()
    world.answer()
    world.drain_back()
    assert out.phase is Phase.DONE


def test_a_piece_of_a_stream_that_is_complete_is_answered_with_done(world: World):
    (out,) = world.outs
    world.settle()
    assert world.receiver.admit(world.lines[0], world.sent[0], 9, 0.0) is Verdict.SKIP
    assert world.receiver.take(world.lines[0]) == [frames.Done(out.stream)]


def test_what_an_old_session_still_brings_is_left_alone(world: World):
    (out,) = world.outs
    world.send()
    (data,) = world.sent
    old = world.lines[0]
    assert world.receiver.admit(old, data, 100, 0.0) is Verdict.TAKE
    assert world.receiver.admit(old, data, 100, 0.0) is Verdict.SKIP  # it is being decoded
    world.receiver.dropped(old, data, 100)
    world.receiver.connected("new", b"t" * 16)
    world.receiver.handle("new", frames.Offering(out.offer, 1), 0.0)
    assert world.receiver.admit(old, data, 100, 0.0) is Verdict.SKIP
    assert world.receiver.admit("new", data, 100, 0.0) is Verdict.TAKE


def test_a_receiver_that_forgot_is_found_out(world: World):
    (out,) = world.outs
    world.send()
    world.arrive(1)
    world.decoded()
    world.answer()
    world.hear(1)
    world.lose(world.lines[0], "sender")
    world.lines.clear()
    world.receiver = Receiver(world.sink, window_bytes=WINDOW, resume_s=RESUME_S)
    world.late()
    world.step(2)
    assert out.reason == "the receiver has lost what it had acknowledged"
    assert out.stream in world.sink.breaks


def test_a_lost_done_is_said_again(world: World):
    (out,) = world.outs
    while world.todo[out.stream]:
        world.send()
    world.drain()
    world.decode()
    assert not world.receiver.streams  # complete there, and the sender has heard of nothing
    world.lose(world.lines[0], "sender")
    world.settle()
    assert out.phase is Phase.DONE
    assert len(world.sent) == 24


# ------------------------------------------------------------ offers and answers


def test_a_refusal_gives_its_reason():
    world = World([make_offer("odd")])
    world.sink.refusal = "block 3 is y here, x there"
    world.step()
    (out,) = world.outs
    assert out.phase is Phase.BROKEN
    assert out.reason == "block 3 is y here, x there"
    assert not world.sink.breaks
    assert not world.receiver.streams
    world.sender.push(encode_slice(out.stream, make_slice(0, "k", 0, 16), "raw"))
    assert not out.unacked  # a piece that comes late from a coder's thread is dropped


def test_a_stream_is_opened_once(world: World):
    with pytest.raises(ValueError, match="already"):
        world.open(world.outs[0].offer)


def test_a_full_hit_is_done_without_a_piece():
    world = World([make_offer()], have=64)
    world.settle()
    assert world.outs[0].phase is Phase.DONE
    assert not world.sent
    (stats,) = world.sink.completions.values()
    assert (stats.bytes_raw, stats.bytes_wire, stats.transfer_s) == (0, 0, 0.0)


def test_an_offer_before_its_leg_waits_and_then_is_answered():
    world = World([make_offer()], have=None)
    world.step()
    (out,) = world.outs
    assert out.phase is Phase.OFFERED
    assert world.receiver.asking()
    world.sink.have = 16
    world.receiver.ask_again(0.02)
    world.step()
    assert (out.phase, out.have) == (Phase.OPEN, 16)
    assert not world.receiver.asking()
    assert world.receiver.next_deadline() is None


def test_an_offer_whose_leg_never_starts_is_refused():
    world = World([make_offer()], have=None)
    world.step()
    world.receiver.expire(RESUME_S)
    world.step()
    assert world.outs[0].reason == "the receiving leg has not started"
    assert not world.sink.breaks


def test_the_same_stream_with_other_terms_is_refused(world: World):
    other = dataclasses.replace(world.outs[0].offer, stop=48)
    world.receiver.handle(world.lines[0], frames.Offering(other, 9), 0.0)
    (answer,) = world.receiver.take(world.lines[0])
    assert answer == frames.Refuse(other.stream, "offered before with other terms")


def test_an_attempt_is_answered_once_on_however_many_connections_it_comes():
    world = World([make_offer()], window=1 << 20, connections=3, early=("r",))
    world.dial()
    world.dial()
    for at in range(3):
        world.write(at, most=0)
    world.drain()
    world.answer()
    assert sum(len(line.back) for line in world.lines) == 1
    assert len(world.sink.offers) == 1


def test_an_answer_that_is_lost_with_its_connection_is_asked_for_on_another():
    """The attempt was seen on one of two connections, which broke before its answer was heard."""
    world = World([make_offer()], window=1 << 20, connections=2, early=("r",))
    world.dial()
    world.dial()
    for at in range(2):
        world.write(at, most=0)
    world.drain()
    world.answer()
    answered = next(line for line in world.lines if line.back)
    world.lose(answered, "sender")
    world.lose(answered, "receiver")
    world.step()
    assert world.outs[0].phase is Phase.OPEN


# ------------------------------------------------------------ early streams


def test_an_early_stream_sends_before_it_is_accepted():
    world = World([make_offer()], window=1 << 20, early=("r",))
    world.dial()
    (out,) = world.outs
    world.send(5)
    assert (len(world.sent), out.phase) == (5, Phase.OFFERED)
    world.drain()
    assert len(world.decoding) == 5  # the offer came first on the same connection
    world.settle()
    assert (out.phase, out.resent_bytes) == (Phase.DONE, 0)


def test_what_came_before_the_sink_answered_is_asked_for_where_it_came():
    world = World([make_offer()], have=None, window=1 << 20, connections=2, early=("r",))
    world.dial()
    world.dial()
    (out,) = world.outs
    for at in range(4):
        world.push()
        world.write(at)
    world.drain()
    assert not world.decoding
    world.start()
    world.answer()
    accepted = next(line for line in world.lines if len(line.back) == 2)
    world.lose(accepted, "sender")  # the answer is lost, what the other line asks is not
    world.notice()
    world.settle()
    assert out.phase is Phase.DONE
    world.sink.check(out.offer)


def test_early_pieces_that_reach_into_what_was_there_survive_a_break():
    """`have` lies inside a piece: only the rest of it is counted there, all of it here."""
    world = World([make_offer()], have=24, window=1 << 20, early=("r",))
    world.dial()
    (out,) = world.outs
    world.send(12)
    world.step()
    world.decode()
    world.step()
    assert not out.unacked
    world.lose(world.lines[0], "sender")
    world.settle()
    assert out.phase is Phase.DONE, out.reason
    world.sink.check(out.offer)


def test_too_much_before_the_answer_breaks_the_stream():
    world = World([make_offer(stop=5000)], have=None, early=("r",), step=5000)
    world.step()
    (line,) = world.lines
    for at in range(4098):
        key = SliceKey(0, "k", at, at + 1)
        assert world.receiver.admit(line, piece_of(world, key), 0, 0.0) is Verdict.SKIP
    world.step()
    assert world.outs[0].reason == "too much was sent before the offer was accepted"


def test_a_piece_before_the_answer_is_not_taken():
    world = World([make_offer()], have=None)
    world.step()
    assert world.receiver.admit(world.lines[0], piece_of(world), 100, 0.0) is Verdict.SKIP
    assert world.receiver.take(world.lines[0]) == []


# ------------------------------------------------------------ pieces that are not wanted


def test_a_piece_of_an_unknown_stream_is_refused_by_its_head(world: World):
    stray = dataclasses.replace(piece_of(world), stream=StreamId("stray", 0, 1))
    assert world.receiver.admit(world.lines[0], stray, 100, 0.0) is Verdict.SKIP
    (answer,) = world.receiver.take(world.lines[0])
    assert answer == frames.Refuse(stray.stream, "the receiver does not know this stream")
    assert world.receiver.admit("nobody", stray, 100, 0.0) is Verdict.SKIP


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (SliceKey(0, "k", 60, 76), "tokens 60-76 outside 0-64"),
        (SliceKey(9, "k", 0, 16), "more than 6 slices per token"),
    ],
)
def test_a_piece_outside_the_offer_breaks_the_stream(world: World, key: SliceKey, why: str):
    (out,) = world.outs
    world.send(6)
    world.step()
    world.receiver.admit(world.lines[0], piece_of(world, key), 100, 0.0)
    world.step()
    assert why in out.reason
    assert why in world.sink.breaks[out.stream]


def test_a_piece_the_sink_does_not_take_breaks_the_stream(world: World):
    (out,) = world.outs
    world.send()
    world.arrive(1)
    line, _, data = world.decoding.pop()
    world.receiver.put(line, data, len(world.sent[0].body), ValueError("not mine"), 0.0)
    world.step()
    assert out.reason == "ValueError: not mine"
    assert world.sink.breaks == {out.stream: "ValueError: not mine"}


def test_a_piece_without_bytes_outlives_its_connection(world: World):
    """Another end may declare a body of no bytes; it is stored or fails like any other."""
    (line,) = world.lines
    data = piece_of(world)
    assert world.receiver.admit(line, data, 0, 0.0) is Verdict.TAKE
    world.receiver.disconnected(line, 0.0)
    world.receiver.put(line, data, 0, ValueError("it is empty"), 0.0)
    assert world.receiver.held_bytes == 0
    assert world.sink.breaks == {data.stream: "ValueError: it is empty"}


def test_far_beyond_the_credit_is_refused_and_one_piece_never_is():
    world = World([make_offer()], window=100)
    world.step()
    keys = [SliceKey(0, "k", at, at + 1) for at in range(3)]
    line = world.lines[0]
    assert world.receiver.admit(line, piece_of(world, keys[0]), 300, 0.0) is Verdict.TAKE
    with pytest.raises(frames.OverCredit, match="400 bytes were sent on a credit of 100"):
        world.receiver.admit(line, piece_of(world, keys[1]), 100, 0.0)
    world.receiver.dropped(line, piece_of(world, keys[0]), 300)
    assert world.receiver.held_bytes == 0


# ------------------------------------------------------------ ends


def test_finishing_early_is_told_apart_from_done(world: World):
    (out,) = world.outs
    world.send()
    world.drain()
    world.decoded()
    world.step()
    world.sender.finish(out, 0.0)
    world.step()
    assert out.reason == "finished with 368 slice tokens missing"
    assert out.stream in world.sink.breaks


def test_cancel_reaches_the_other_end(world: World):
    (out,) = world.outs
    world.send()
    world.sender.cancel(out, "the client left")
    assert world.sender.estimate(None).queue_bytes == 0
    assert world.sender._goodput.flying == 0
    world.step()
    assert world.sink.breaks == {out.stream: "the client left"}
    assert not world.receiver.streams


def test_cancel_is_said_again_when_its_connection_breaks():
    """A pong that answers a ping from before the cancel says nothing of it."""
    world = two_connections()
    (out,) = world.outs
    world.open(make_offer("other"))
    world.step()
    world.now = 5.0
    world.sender.expire(5.0)
    first = world.lines[0]
    world.write(0)
    world.sender.cancel(out, "the client left")
    world.sender.control(first)  # written, and lost below
    world.drain()
    world.answer()
    world.drain_back()  # the pong
    world.lose(first, "sender")
    world.lose(first, "receiver")
    world.step()
    assert world.sink.breaks == {out.stream: "the client left"}


def test_a_cancel_that_a_pong_covers_is_not_said_again(world: World):
    (out,) = world.outs
    world.open(make_offer("other"))
    world.sender.cancel(out, "the client left")
    world.now = 5.0
    world.sender.expire(5.0)
    world.step()
    assert world.sender.estimate(None).rtt_s == 0.0
    world.lose(world.lines[0], "sender")
    world.notice()
    world.late()
    world.dial()
    assert [type(f) for f in world.sender.control(world.lines[0])] == [frames.Offering]


def test_a_cancel_while_nobody_is_there_is_told_to_the_next_connection(world: World):
    """The receiver may learn of the old connection's end only after the new one is there."""
    (out,) = world.outs
    world.open(make_offer("other"))
    world.lose(world.lines[0], "sender")
    world.sender.cancel(out, "the client left")
    world.late()
    world.step()
    world.notice()
    world.step()
    assert world.sink.breaks == {out.stream: "the client left"}
    assert [s.request for s in world.receiver.streams] == ["other"]


def test_a_pong_that_nobody_asked_for_is_no_round_trip(world: World):
    world.sender.handle(world.lines[0], frames.Pong(1 << 60), 1.0)
    assert world.sender.estimate(None).rtt_s == 0.01  # the handshake's


def test_cancel_by_the_receiver_holds_for_late_offers(world: World):
    (out,) = world.outs
    world.receiver.cancel(out.stream, "leg stopped")
    world.step()
    assert (out.phase, out.reason) == (Phase.BROKEN, "leg stopped")
    world.receiver.connected("late", SESSION)
    world.receiver.handle("late", frames.Offering(out.offer, 7), 0.0)
    assert world.receiver.take("late") == [frames.Refuse(out.stream, "leg stopped")]
    assert not world.sink.breaks  # its owner asked for it


def test_both_ends_give_up_when_the_connection_stays_away(world: World):
    (out,) = world.outs
    world.now = 5.0
    world.lose(world.lines[0], "sender")
    world.notice()
    world.sender.undialled("refused", 5.0)
    world.sender.expire(14.9)
    assert out.phase is Phase.OPEN
    assert world.sender.next_deadline() is not None
    world.sender.expire(15.0)
    assert out.reason == "not accepted within 10 s: refused"
    assert world.receiver.next_deadline() == 15.0
    world.receiver.expire(15.0)
    assert world.sink.breaks == {out.stream: "not resumed within 10 s"}


def test_breaking_without_progress_ends(world: World):
    (out,) = world.outs
    for _ in range(MAX_BREAKS + 1):
        assert not out.ended
        world.late()
        world.step()
        world.lose(world.lines[0], "sender")
        world.notice()
    assert out.reason == "connection broken 6 times without progress: cut"


def test_a_receiver_that_stops_acknowledging_is_given_up(world: World):
    (out,) = world.outs
    world.send()
    assert out.stall_at == STALL_S
    world.sender.expire(STALL_S)
    assert out.reason == "nothing acknowledged in 60 s"
    assert frames.Cancel(out.stream, out.reason) in world.sender.control(world.lines[0])


def test_a_connection_that_says_nothing_is_named(world: World):
    (line,) = world.lines
    assert world.sender.silent(19.9) == []
    assert world.sender.silent(20.0) == [line]
    world.sender.handle(line, frames.Ping(0), 15.0)  # any frame is a sign of life
    assert world.sender.silent(20.0) == []
    world.sender.cancel(world.outs[0], "enough")
    assert world.sender.silent(99.0) == []  # nothing is under way
    world.sender.open(make_offer("next"), 99.0, token_bytes=1)
    assert world.sender.silent(99.0) == []


def test_a_damaged_length_is_noticed_by_the_silence_that_follows(world: World):
    (out,) = world.outs
    world.send(3)
    (line,) = world.lines
    raw = bytearray(line.there[1])
    raw[8] ^= 0x40  # a head 16 KiB longer
    line.there[1] = bytes(raw)
    world.drain()
    world.decode()
    world.step()
    assert len(out.flying) == 2
    world.now = 20.0
    world.sender.expire(20.0)
    assert world.sender.silent(20.0) == [line]
    world.lose(line, "sender")
    world.notice()
    world.settle()
    assert out.phase is Phase.DONE
    world.sink.check(out.offer)


def test_nobody_will_do():
    world = World([make_offer("a"), make_offer("b")])
    world.sender.fail_all("another model")
    assert [out.reason for out in world.outs] == ["another model"] * 2
    assert set(world.sender.changed()) == {out.stream for out in world.outs}


# ------------------------------------------------------------ credit and order


def test_the_window_holds_the_sender_back():
    world = World([make_offer()])
    world.step()
    (out,) = world.outs
    world.send(30)
    assert 0 < len(out.flying) < 5
    assert world.sender.has_data(world.lines[0]) is False
    world.drain()
    world.decoded()
    world.step()
    assert world.sender.has_data(world.lines[0])


def test_a_window_smaller_than_a_piece_lets_one_fly():
    world = World([make_offer()], window=1)
    world.settle()
    assert world.outs[0].phase is Phase.DONE


def test_a_stream_stops_coding_ahead_when_enough_waits(monkeypatch):
    monkeypatch.setattr("transport.stream.sender.STREAM_AHEAD_BYTES", 1000)
    world = World([make_offer()], window=1)
    world.step()
    world.send(20)
    (out,) = world.outs
    assert 1000 <= out.queued_bytes < 1000 + 1000


def test_who_waits_for_the_room_of_others_is_told_when_there_is_some(monkeypatch):
    monkeypatch.setattr("transport.stream.sender.AHEAD_BYTES", 1000)
    world = World([make_offer("big"), make_offer("small", stop=16), make_offer("late")])
    world.step()
    big, small, late = world.outs
    for _ in range(4):
        world.push(0)
    assert big.queued_bytes >= 1000
    world.sender.changed()
    assert world.sender.has_room(small, 0.0)  # it ranks first
    assert not world.sender.has_room(late, 0.0)
    assert world.sender.changed() == []
    world.write()
    assert set(world.sender.changed()) == {big.stream, late.stream}


def test_the_smaller_stream_goes_first():
    world = World([make_offer("big"), make_offer("small", stop=16)], window=1 << 20)
    world.step()
    for at in range(6):
        world.push(at)
    for _ in range(6):
        world.write()
    assert [data.stream.request for data in world.sent] == ["small"] * 3 + ["big"] * 3


def test_pieces_are_striped_over_the_connections():
    world = World([make_offer()], window=1 << 20, connections=4)
    world.step(2)
    for at in range(8):
        world.push()
        world.write(at)
    assert [len(line.there) for line in world.lines] == [2, 2, 2, 2]


def test_goodput_is_learnt_from_acknowledgements():
    sender = Sender(connections=1, resume_s=RESUME_S)
    assert sender.estimate(None).goodput_bytes_per_s is None
    world = World([make_offer()], window=1 << 20)
    world.step()
    world.send(10)
    world.now = 1.0
    world.drain()
    world.decode()
    world.step()
    wire = sum(len(data.body) for data in world.sent)
    assert world.sender.estimate(0.5).goodput_bytes_per_s == pytest.approx(wire, rel=0.5)
    assert world.sender.estimate(0.5).loss == 0.5
