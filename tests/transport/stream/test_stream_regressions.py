"""Mistakes of the machines that were found by others than their own tests."""

from tests.transport.kv_helpers import make_offer
from tests.transport.stream.stream_world import World
from transport.stream.outgoing import Phase


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
