"""KV between virtual workers: the transport's real machines, and whatever happens to a line."""

from collections import Counter
from random import Random

import pytest

from orchestrator.virtual.kv import inlet as kv_inlet
from orchestrator.virtual.kv import pipe as kv_pipe
from orchestrator.virtual.kv.inlet import WINDOW_BYTES
from orchestrator.virtual.kv.outlet import CONNECTIONS
from orchestrator.virtual.kv.pipe import Pipe, damaged, read
from orchestrator.virtual.network import Accidents
from tests.orchestrator.virtual.kv.kv_faults import Trouble
from tests.orchestrator.virtual.kv.kv_rig import COSTS, KVWorld
from tests.workers.worker_rig import MODEL
from transport.base import StreamId
from transport.stream.connections import SILENCE_S
from transport.stream.frames import Data, Finish, FrameError
from transport.stream.framing import encode
from transport.stream.receiver import RESUME_S as RECEIVER_RESUME_S
from transport.stream.sender import RESUME_S
from workers.api.messages import KVFailed, Landed

TOKEN_BYTES = 2 * 2 * MODEL.layers * MODEL.kv_heads * MODEL.head_size
SLOW = 10_000.0  # bytes per second


@pytest.fixture
def world() -> KVWorld:
    return KVWorld()


def under_way(at: float = 2.0) -> tuple[KVWorld, StreamId]:
    """A stream of 38 kB on a slow line, some of it there."""
    world = KVWorld(bytes_per_s=SLOW)
    stream = world.transfer("r", 600)
    world.run(at)
    assert 0 < world.hosts["a"].kv.sent_bytes < 600 * TOKEN_BYTES
    assert not world.landed("r")
    return world, stream


def test_a_stream_arrives_intact(world: KVWorld):
    stream = world.transfer("r", 100)
    world.run(1.0)
    assert world.landed("r")
    assert not world.failed("r")
    assert world.stats("r").bytes_raw == 100 * TOKEN_BYTES
    assert world.hosts["a"].kv.sent_bytes == 100 * TOKEN_BYTES
    world.check_nothing_is_left([("a", "b", stream)])


def test_what_a_step_computed_is_sent_at_its_end(world: KVWorld):
    world.transfer("r", 600)
    prefill_s = 600 / COSTS.prefill_tokens_per_s
    world.run(prefill_s - 0.05)
    assert world.hosts["a"].kv.sent_bytes > 400 * TOKEN_BYTES
    world.run(prefill_s + 0.05)
    assert world.landed("r")


def test_kv_takes_its_time_on_the_line():
    world = KVWorld(bytes_per_s=SLOW)
    world.transfer("r", 600)
    least = 600 * TOKEN_BYTES / SLOW
    world.run(least)
    assert not world.landed("r")
    world.run(least + 1.0)
    assert world.landed("r")
    assert least / 2 < world.stats("r").transfer_s < least + 0.5


def test_a_small_stream_is_not_held_up_behind_a_large_one():
    world = KVWorld(bytes_per_s=SLOW)
    world.transfer("large", 2000)
    world.run(3.0)
    world.transfer("small", 20)
    world.run(6.0)
    assert world.landed("small")
    assert not world.landed("large")
    world.run(20.0)
    assert world.landed("large")
    assert not world.failed("large")


def test_what_crossed_before_a_reset_is_not_sent_again():
    world, stream = under_way()
    for connection in list(world.hosts["a"].process.connections):
        connection.reset("cut by the test")
    world.run(10.0)
    assert world.landed("r")
    plane = world.hosts["a"].kv
    assert plane.sent_bytes - plane.resent_bytes == 600 * TOKEN_BYTES
    assert 0 < plane.resent_bytes < 150 * TOKEN_BYTES
    world.check_nothing_is_left([("a", "b", stream)])


def test_pieces_are_striped_over_connections(monkeypatch: pytest.MonkeyPatch):
    world = KVWorld(bytes_per_s=SLOW)
    carried: Counter[Pipe] = Counter()
    write = Pipe.write

    def count(pipe: Pipe, end, frames) -> None:
        carried[pipe] += sum(isinstance(frame, Data) for frame in frames)
        write(pipe, end, frames)

    monkeypatch.setattr(kv_pipe.Pipe, "write", count)
    world.transfer("r", 2000)
    world.run(20.0)
    assert world.landed("r")
    assert len(carried) == CONNECTIONS > 1
    assert min(carried.values()) > 0.4 * max(carried.values())


def test_the_loss_of_one_connection_of_several_costs_what_flew_on_it():
    world, stream = under_way()
    process = world.hosts["a"].process
    first, *others = process.connections
    assert others
    first.reset("cut by the test")
    world.run(2.2)
    assert list(process.connections)[: len(others)] == others
    assert len(process.connections) == CONNECTIONS  # it was dialled again
    world.run(10.0)
    assert world.landed("r")
    assert 0 < world.hosts["a"].kv.resent_bytes < 150 * TOKEN_BYTES
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_peer_with_another_secret_gets_nothing(world: KVWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_inlet, "SECRET", b"of another deployment")
    stream = world.transfer("r", 100)
    world.run(1.0)
    (reason,) = world.failed("r")
    assert reason == "b: b has another secret than a"
    assert world.hosts["a"].kv.sent_bytes == 0
    world.stop("b", "r", stream.target)
    world.check_nothing_is_left([("a", "b", stream)])


def test_credit_bounds_what_flies():
    world, stream = under_way()
    world.network.cut("y", "x")
    world.run(10.0)
    window_tokens = WINDOW_BYTES // TOKEN_BYTES
    before = world.hosts["a"].kv.sent_bytes
    world.run(15.0)
    assert world.hosts["a"].kv.sent_bytes == before < (2.0 * SLOW + WINDOW_BYTES)
    assert before < (600 - window_tokens // 4) * TOKEN_BYTES
    world.network.heal("y", "x")
    world.run(25.0)
    assert world.landed("r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_lost_done_is_said_again(world: KVWorld):
    stream = world.transfer("r", 100)
    assert world.schedule.run(1.0, lambda: world.landed("r"))
    for connection in list(world.hosts["a"].process.connections):
        connection.reset("cut by the test")
    assert not world.hosts["a"].kv.idle
    world.run(world.schedule.now + 1.0)
    assert not world.failed("r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_line_that_breaks_all_the_time_is_given_up():
    world, stream = under_way()
    world.network.accidents = Accidents(lost=0.9)
    world.run(2.0 + RESUME_S + 1.0)
    assert world.failed("r")
    world.run(40.0)
    assert world.hosts["b"].told(KVFailed, "r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_damaged_piece_is_asked_for_again_and_no_more(monkeypatch: pytest.MonkeyPatch):
    world, stream = under_way()
    connections = list(world.hosts["a"].process.connections)
    write = Pipe.write

    def hurt(pipe: Pipe, end, frames) -> None:
        if any(isinstance(frame, Data) for frame in frames):
            monkeypatch.setattr(kv_pipe.Pipe, "write", write)
            monkeypatch.setattr(kv_pipe, "damaged", flip_a_bit_of_the_body)
            world.network.accidents = Accidents(corrupt=1.0)
        write(pipe, end, frames)
        world.network.accidents = Accidents()

    monkeypatch.setattr(kv_pipe.Pipe, "write", hurt)
    world.run(7.0)
    assert world.landed("r")
    assert not world.failed("r")
    assert 0 < world.hosts["a"].kv.resent_bytes <= 64 * TOKEN_BYTES
    assert list(world.hosts["a"].process.connections) == connections
    world.check_nothing_is_left([("a", "b", stream)])


def flip_a_bit_of_the_body(frame: Data, random: Random) -> bytes:
    raw = bytearray(b"".join(map(bytes, encode(frame))))
    raw[-1] ^= 1
    return bytes(raw)


@pytest.mark.parametrize("ends", [("x", "y"), ("y", "x")])
def test_a_short_cut_one_way_only_delays(ends: tuple[str, str]):
    world, stream = under_way()
    world.network.cut(*ends)
    world.run(7.0)
    assert not world.idle
    world.network.heal(*ends)
    world.run(15.0)
    assert world.landed("r")
    assert not world.failed("r")
    assert world.hosts["a"].kv.resent_bytes == 0
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_long_cut_on_the_way_there_breaks_the_stream_at_both_ends():
    world, stream = under_way()
    world.network.cut("x", "y")
    world.run(2.0 + SILENCE_S + RESUME_S + 1.0)
    assert "not accepted within" in world.failed("r")[0]
    world.run(2.0 + SILENCE_S + RECEIVER_RESUME_S + 1.0)
    (failed,) = world.hosts["b"].told(KVFailed, "r")
    assert "not resumed within" in failed.reason
    world.network.heal("x", "y")
    world.run(90.0)
    assert not world.landed("r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_long_cut_on_the_way_back_leaves_only_the_sender_in_the_dark():
    world, stream = under_way(3.0)  # what is left is within the credit
    world.network.cut("y", "x")
    world.run(3.0 + SILENCE_S + RESUME_S + 1.0)
    assert world.landed("r")
    assert "not accepted within" in world.failed("r")[0]
    world.network.heal("y", "x")
    world.run(90.0)
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_frozen_receiver_goes_on_where_it_was():
    world, stream = under_way()
    world.hosts["b"].process.freeze()
    world.run(12.0)
    world.hosts["b"].process.thaw()
    world.run(20.0)
    assert world.landed("r")
    assert world.hosts["a"].kv.resent_bytes == 0
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_frozen_sender_loses_its_stream_when_it_is_too_late():
    world, stream = under_way()
    world.hosts["a"].process.freeze()
    world.run(2.0 + SILENCE_S + RECEIVER_RESUME_S + 1.0)
    assert world.hosts["b"].told(KVFailed, "r")
    world.hosts["a"].process.thaw()
    world.run(60.0)
    assert world.failed("r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_killed_receiver_breaks_the_stream_and_knows_nothing_of_it():
    world, stream = under_way()
    world.hosts["b"].process.kill()
    world.run(3.0)
    assert world.find("b") is None
    world.hosts["b"].boot()
    world.run(2.0 + RESUME_S + 1.0)
    assert world.failed("r")
    world.run(30.0)
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_receiver_that_is_gone_is_given_up_in_time():
    world, _ = under_way()
    world.hosts["b"].process.kill()
    world.run(2.0 + RESUME_S - 0.5)
    assert not world.failed("r")
    world.run(2.0 + RESUME_S + 0.5)
    (reason,) = world.failed("r")
    assert "refused" in reason
    assert world.hosts["a"].kv.idle


def test_a_killed_sender_is_given_up_in_time():
    world, stream = under_way()
    world.hosts["a"].process.kill()
    world.run(2.0 + RECEIVER_RESUME_S - 1.0)
    assert not world.hosts["b"].told(KVFailed, "r")
    world.run(2.0 + RECEIVER_RESUME_S + 1.0)
    (failed,) = world.hosts["b"].told(KVFailed, "r")
    assert "not resumed" in failed.reason
    world.hosts["a"].boot()
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_stopped_target_stops_the_stream():
    world, stream = under_way()
    world.stop("b", "r", stream.target)
    world.run(3.0)
    assert world.failed("r") == []
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_stopped_source_breaks_the_import():
    world, stream = under_way()
    world.stop("a", "r", stream.source)
    world.run(4.0)
    (failed,) = world.hosts["b"].told(KVFailed, "r")
    assert failed.source == stream.source
    world.check_nothing_is_left([("a", "b", stream)])


def test_a_target_that_has_not_started_is_waited_for(world: KVWorld):
    stream = world.transfer("r", 100, target_starts_at=3.0)
    world.run(2.9)
    assert not world.landed("r")
    assert not world.idle
    world.run(4.0)
    assert world.landed("r")
    world.check_nothing_is_left([("a", "b", stream)])


def test_damage_is_what_the_transport_says_it_is(world: KVWorld):
    for frame in (Finish(StreamId("r", 1, 2)), world.piece()):
        for _ in range(200):
            with pytest.raises(FrameError):
                read(damaged(frame, world.random)).check()


@pytest.mark.parametrize("corrupt", [0.02, 0.2])
def test_corrupt_frames_are_never_taken_for_good(corrupt: float):
    world = KVWorld(bytes_per_s=SLOW)
    world.network.accidents = Accidents(corrupt=corrupt)
    stream = world.transfer("r", 300)
    world.run(30.0)
    world.network.accidents = Accidents()
    world.run(60.0)
    assert world.landed("r") or world.failed("r")
    world.check_nothing_is_left([("a", "b", stream)])


@pytest.mark.parametrize("block", range(8))
def test_every_stream_ends_well_or_is_broken_at_both_ends(block: int):
    landed = broken = 0
    for seed in range(30 * block, 30 * block + 30):
        trouble = Trouble(seed)
        trouble.run()
        landed += trouble.landed
        broken += trouble.broken
    assert landed > broken > 0, "the accidents should be neither too few nor too many"


def test_the_same_seed_gives_the_same_frames(monkeypatch: pytest.MonkeyPatch):
    frames: list[tuple[float, str, object]] = []
    arrived = Pipe._arrived

    def note(pipe: Pipe, source, carried) -> None:
        frames.append((trouble.world.schedule.now, source.name, carried))
        arrived(pipe, source, carried)

    monkeypatch.setattr(kv_pipe.Pipe, "_arrived", note)
    runs = []
    for seed in (7, 7, 8):
        frames.clear()
        trouble = Trouble(seed)
        trouble.run()
        runs.append(list(frames))
    assert runs[0] == runs[1]
    assert runs[1] != runs[2]
    assert any(isinstance(frame, Data) for _, _, carried in runs[0] for frame in carried)


def test_the_planes_of_one_worker_serve_both_directions(world: KVWorld):
    there = world.transfer("there", 100)
    back = world.transfer("back", 100, source="b", target="a")
    world.run(1.0)
    assert world.landed("there")
    assert world.hosts["a"].told(Landed, "back")
    world.check_nothing_is_left([("a", "b", there), ("b", "a", back)])
