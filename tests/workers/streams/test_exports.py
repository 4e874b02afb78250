"""What of a stream is sent next, and how far its sequence is computed."""

from tests.workers.worker_rig import PROMPT, Rig, feed, send_kv, start
from workers.api.info import Part
from workers.api.messages import Role
from workers.engines.base import SeqId
from workers.outputs import OpenStream
from workers.streams.exports import SLICE_TOKENS, Exports, Unsent, why_failed


def prefill() -> tuple[Rig, Exports, OpenStream]:
    """A started prefill whose export is followed."""
    rig = Rig()
    rig.send(start(Role.PREFILL))
    rig.send(send_kv())
    (order,) = rig.made(OpenStream)
    exports = Exports(rig.engine)
    exports.follow(order)
    return rig, exports, order


def test_k_and_v_of_each_layer_earlier_tokens_first():
    unsent = Unsent(2, 10, 10 + SLICE_TOKENS + 5)
    taken = []
    while (piece := unsent.take([1000, 1000])) is not None:
        taken.append(piece)
    assert unsent.empty
    middle = 10 + SLICE_TOKENS
    ranges = [(10, middle), (middle, middle + 5)]
    assert taken == [(n, part, a, b) for a, b in ranges for n in range(2) for part in Part]


def test_only_what_is_in_the_pool_is_taken():
    unsent = Unsent(2, 0, 20)
    assert unsent.take([0, 0]) is None
    assert [unsent.take([8, 0]) for _ in range(3)] == [
        (0, Part.KEY, 0, 8),
        (0, Part.VALUE, 0, 8),
        None,
    ]
    assert unsent.take([20, 6]) == (1, Part.KEY, 0, 6)
    assert not unsent.empty


def test_nothing_is_left_to_send_of_what_is_there_already():
    assert Unsent(2, 20, 20).empty


def test_a_sequence_is_followed_layer_by_layer_and_at_a_steps_end():
    rig, exports, order = prefill()
    assert list(exports.ready(order.stream)) == [0, 0]
    assert exports.computed(order.seq, 0, 0, 16)
    assert list(exports.ready(order.stream)) == [16, 0]
    assert not exports.computed(order.seq, 1, 16, 32), "tokens before it are missing"
    assert not exports.computed(SeqId("another", 1), 1, 0, 16)
    assert not exports.refresh()
    rig.step()
    assert exports.refresh()
    assert min(exports.ready(order.stream)) >= len(PROMPT)
    assert not exports.refresh()


def test_a_closed_sequence_is_not_followed_further():
    rig, exports, order = prefill()
    rig.engine.close(order.seq)
    assert not exports.refresh()
    assert why_failed(KeyError(order.seq)) == "its source is gone"
    exports.forget(order.stream)
    exports.forget(order.stream)


def test_what_a_relay_has_at_once_is_there_from_the_first_moment():
    rig = Rig()
    rig.landed_main()
    rig.send(feed((5,)))
    rig.send(send_kv(epoch=2, to_epoch=3, stop=len(PROMPT)))
    (order,) = rig.made(OpenStream)
    exports = Exports(rig.engine)
    exports.follow(order)
    assert list(exports.ready(order.stream)) == [len(PROMPT)] * 2
    assert exports.offer(order).slices_per_token == 4


def test_what_is_followed_loses_no_token_until_it_is_forgotten():
    rig, exports, order = prefill()
    state = rig.engine._sequences[order.seq]
    assert state.pins == 1
    exports.forget(order.stream)
    assert state.pins == 0
    exports.forget(order.stream)
    assert state.pins == 0
