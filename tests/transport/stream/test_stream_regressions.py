"""Mistakes of the machines that were found by others than their own tests."""

from tests.transport.kv_helpers import make_offer, make_slice, token_bytes
from tests.transport.stream.stream_world import World
from transport.base import SliceKey
from transport.codecs.table import encode_slice
from transport.stream.frames import Accept, Ack
from transport.stream.outgoing import Phase
from transport.stream.sender import Sender


def test_early_pieces_whose_leg_does_not_start_leave_credit_for_others():
    """They were sent until the credit was gone, and every other stream waited for that leg."""
    world = World([make_offer("late")], have=None, window=6000, early=("late",))
    world.dial()
    (late,) = world.outs
    world.send(30)
    world.drain()
    assert 0 < len(late.flying) < 7
    assert late.queue
    assert not world.decoding
    world.sink.have = 0  # the next leg is there before it is offered
    other = world.open(make_offer("other"))
    for _ in range(80):
        world.push(1)
        world.write()
        world.drain()
        world.decoded()
        world.answer()
        world.drain_back()
    assert other.phase is Phase.DONE
    assert late.phase is Phase.OFFERED


def test_an_answer_to_an_earlier_attempt_is_left_alone():
    """It was given before pieces were stored that are acknowledged since: none of them is lost."""
    offer = make_offer()
    sender = Sender(connections=2, resume_s=10.0)
    out = sender.open(offer, 0.0, token_bytes=token_bytes(), early=True)
    for conn in ("a", "b"):
        sender.connected(conn, 1 << 20, None, 0.0)
    first = out.attempt
    key = SliceKey(0, "k", 0, 16)
    sender.push(encode_slice(out.stream, make_slice(*key), "raw"))
    assert sender.next_data("b", 0.1) is not None
    sender.handle("b", Ack(out.stream, (key,)), 0.2)
    sender.disconnected("b", "cut", 0.3)
    assert out.attempt > first
    sender.handle("a", Accept(out.stream, first, 0), 0.4)
    assert (out.phase, out.awaiting) == (Phase.OFFERED, True)
    sender.handle("a", Accept(out.stream, out.attempt, 0, (key,)), 0.5)
    assert (out.phase, out.awaiting) == (Phase.OPEN, False)


def test_no_connection_is_given_more_than_its_share() -> None:
    """All that flies on a connection is sent again when it breaks."""
    sender = Sender(connections=2, resume_s=10.0)
    offer = make_offer()
    pieces = [
        encode_slice(offer.stream, make_slice(0, "k", at, at + 16), "raw")
        for at in range(0, 64, 16)
    ]
    for conn in "ab":
        sender.connected(conn, sum(len(piece.body) for piece in pieces), None, 0.0)
    out = sender.open(offer, 0.0, token_bytes=1)
    (conn,) = out.asked_on
    sender.handle(conn, Accept(offer.stream, out.attempt, 0), 0.0)
    for piece in pieces:
        sender.push(piece)
    taken = {conn: [sender.next_data(conn, 0.0) for _ in range(3)] for conn in "ab"}
    assert [taken[conn].count(None) for conn in "ab"] == [1, 1]
    assert {piece.key for conn in "ab" for piece in taken[conn] if piece} == {p.key for p in pieces}
