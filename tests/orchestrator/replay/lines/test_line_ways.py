"""A line in virtual time: overlap, faults, order, and that nothing gets lost."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.replay.lines.model import CodecModel, LineModel, Sharing
from orchestrator.replay.lines.ramp import Ramp, layerwise
from orchestrator.virtual.schedule import Schedule

PLAIN = LineModel(bytes_per_s=100.0, delay_s=0.5)


@dataclass
class Way:
    """A line of 100 bytes/s, 0.5 s long, and what it tells."""

    model: LineModel = PLAIN
    left: list[tuple[float, str, float]] = field(default_factory=list)  # told at, name, as it looks
    landed: dict[str, float] = field(default_factory=dict)
    sent: dict[str, Transfer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedule = Schedule()
        self.line = Line(
            self.schedule,
            self.model,
            leaving=lambda t, at: self.left.append((self.schedule.now, t.target[0], at)),
            landed=self._landed,
            use_every_s=1.0,
        )

    def _landed(self, transfer: Transfer) -> None:
        assert not transfer.dropped
        assert transfer.landed_at == self.schedule.now
        self.landed[transfer.target[0]] = self.schedule.now

    def send(
        self,
        at: float,
        name: str,
        nbytes: int,
        *,
        since: float | None = None,
        last: int | None = None,
        ramp: Ramp = (),
        weight: float = 1.0,
    ) -> Transfer:
        since = at if since is None else since
        transfer = self.sent[name] = Transfer(
            source=(name, 0),
            target=(name, 1),
            to_worker="w",
            line=self.line,
            nbytes=nbytes,
            since=since,
            ramp=ramp or (() if last is None else ((since, nbytes - last),)),
            weight=weight,
        )
        self.schedule.at(at, self.line.send, transfer)
        return transfer

    def run(self, until: float = 1000.0) -> dict[str, float]:
        self.schedule.run(until)
        return self.landed


def one_chunk(ended_at: float, nbytes: int, layers: int, began_at: float = 0.0) -> Ramp:
    """Of a prompt whose tokens take a byte each."""
    chunks = [(ended_at, nbytes)]
    return layerwise(began_at, chunks, layers, hit=0, first=0, stop=nbytes, token_bytes=1.0)


def way(share: Sharing, **changes: Any) -> Way:
    return Way(replace(PLAIN, share=share, **changes))


# ------------------------------------------------------------------ whose bytes go


def test_a_small_one_overtakes() -> None:
    one = way(Sharing.OURS)
    big = one.send(0.0, "big", 1000)
    small = one.send(1.0, "small", 100)
    assert one.run() == {"small": 2.5, "big": 11.5}
    assert (big.began_at, big.left_at) == (0.0, 11.0)
    assert (small.began_at, small.left_at) == (1.0, 2.0)
    # The big one was told its end when it began; that it became later is not told.
    assert one.left == [(0.0, "big", 10.0), (1.0, "small", 2.0)]


def test_weight_goes_before_size() -> None:
    one = way(Sharing.OURS)
    one.send(0.0, "first", 100)
    one.send(0.1, "small", 200)
    one.send(0.2, "urgent", 400, weight=4.0)
    assert one.run() == pytest.approx({"first": 1.5, "urgent": 5.5, "small": 7.5})


def test_both_at_once() -> None:
    one = way(Sharing.FAIR)
    one.send(0.0, "a", 300)
    one.send(1.0, "b", 100)
    assert one.run() == {"b": 3.5, "a": 4.5}
    assert one.left == [
        (0.0, "a", 3.0),
        (1.0, "b", 3.0),  # the next to leave
    ]


def test_a_pool_gives_each_its_connection() -> None:
    one = way(Sharing.POOL, connections=2, connection_bytes_per_s=40.0)
    for name in "abc":
        one.send(0.0, name, 80)
    assert one.run() == {"a": 2.5, "b": 2.5, "c": 4.5}
    assert one.sent["c"].began_at == 2.0


def test_told_again_if_it_leaves_earlier() -> None:
    one = way(Sharing.FIFO)
    first = one.send(0.0, "a", 1000)
    one.send(0.0, "b", 100)
    one.schedule.at(2.0, one.line.drop, first)
    one.schedule.at(2.5, one.line.set_rate, 2.0)
    assert one.run() == {"b": 3.25}
    assert one.left == [
        (0.0, "a", 10.0),
        (0.0, "b", 11.0),
        (2.0, "b", 3.0),
        (2.5, "b", 2.75),
    ]


# ------------------------------------------------------------------ overlap with prefill


@pytest.mark.parametrize("share", Sharing)
def test_all_but_one_layer_is_there_when_prefill_ends(share: Sharing) -> None:
    one = way(share, connections=1, connection_bytes_per_s=100.0)
    ramp = one_chunk(10.0, 400, 4)
    moved = one.send(10.0, "r", 400, since=0.0, ramp=ramp)
    assert one.run() == pytest.approx({"r": 11.5})
    assert moved.began_at == 2.5  # the first layer is computed
    assert one.line.sent_bytes == pytest.approx(400)


def test_a_thin_line_is_busy_while_prefill_computes() -> None:
    one = way(Sharing.OURS)
    ramp = one_chunk(10.0, 4000, 4)
    one.send(10.0, "r", 4000, since=0.0, ramp=ramp)
    assert one.run() == pytest.approx({"r": 2.5 + 40 + 0.5})


def test_nothing_goes_before_the_far_end_has_answered() -> None:
    one = way(Sharing.OURS)
    one.send(10.0, "r", 400, since=9.0, ramp=one_chunk(10.0, 400, 4))
    assert one.run() == pytest.approx({"r": 10 + 3.0 + 0.5})


def test_what_others_sent_meanwhile_is_not_free() -> None:
    one = way(Sharing.OURS)
    one.send(2.0, "other", 700)
    one.send(10.0, "r", 400, since=0.0, ramp=one_chunk(10.0, 400, 40))
    # The line was free before 2 and from 9 on: 70 bytes were there by 2.
    assert one.run()["r"] == pytest.approx(10 + (400 - 70 - 100) / 100 + 0.5)
    assert one.line.sent_bytes == pytest.approx(1100)


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize("share", Sharing)
def test_a_cut_stops_everything_until_it_is_restored(share: Sharing) -> None:
    one = way(share)
    one.send(0.0, "a", 200)
    one.schedule.at(1.0, one.line.cut)
    one.send(3.0, "b", 500)
    one.schedule.at(11.0, one.line.restore)
    landed = one.run()
    # 600 bytes were left: a's alone if it goes first, shared if it does not.
    assert landed["a"] == pytest.approx(13.5 if share in (Sharing.FAIR, Sharing.POOL) else 12.5)
    assert landed["b"] == pytest.approx(17.5)


def test_what_was_on_its_way_is_sent_again() -> None:
    one = way(Sharing.OURS)
    one.send(0.0, "there", 100)
    one.send(0.0, "lost", 150)
    one.schedule.at(2.75, one.line.cut)  # "there" has landed at 1.5; "lost" has left at 2.5
    one.schedule.at(9.0, one.line.restore)
    assert one.run() == {"there": 1.5, "lost": 9.5}
    assert one.sent["lost"].left_at == 2.5


def test_what_is_complete_while_it_is_cut_waits() -> None:
    one = way(Sharing.OURS)
    one.schedule.at(3.0, one.line.cut)
    one.send(4.0, "r", 100, since=0.0, last=0)  # it had all gone before the cut, but never landed
    one.schedule.at(6.0, one.line.restore)
    assert one.run() == {"r": 6.5}


def test_a_line_at_half_its_rate() -> None:
    one = way(Sharing.FAIR)
    one.send(0.0, "a", 400)
    one.schedule.at(1.0, one.line.set_rate, 0.5)
    one.schedule.at(3.0, one.line.set_rate, 1.0)
    assert one.run() == {"a": 5.5}
    assert one.line.use().samples[:6] == pytest.approx([1, 0.5, 0.5, 1, 1, 0])


def test_dropped_on_its_way_never_lands() -> None:
    one = way(Sharing.OURS)
    one.schedule.at(1.25, one.line.drop, one.send(0.0, "a", 100))
    one.schedule.at(2.5, one.line.drop, one.send(2.0, "b", 100))
    one.send(2.1, "c", 100)
    assert one.run() == {"c": 4.0}
    assert one.line.sent_bytes == pytest.approx(250)
    assert one.line.waiting_bytes == 0


# ------------------------------------------------------------------ slow start, codec


def test_a_silent_line_starts_slowly() -> None:
    model = LineModel(bytes_per_s=1e8, delay_s=0.025, connections=1, slow_start=True)
    one = Way(model)
    one.send(0.0, "cold", 10**7)
    one.send(0.5, "warm", 10**7)  # begins as soon as the first has gone
    one.send(9.0, "cold again", 10**7)
    landed = one.run()
    late = model.starting_s(1e7)
    assert late > 0.3
    assert landed["cold"] == pytest.approx(late + 0.1 + 0.025)
    assert landed["warm"] == pytest.approx(0.5 + 0.1 + 0.025)
    assert landed["cold again"] - 9 == pytest.approx(landed["cold"])


def test_a_slow_start_is_over_before_a_long_prefill_ends() -> None:
    model = LineModel(bytes_per_s=1e8, delay_s=0.025, connections=1, slow_start=True)
    one = Way(model)
    one.send(4.0, "r", 10**7, since=0.0, ramp=one_chunk(4.0, 10**7, 10))
    assert one.run() == pytest.approx({"r": 4 + 0.01 + 0.025})


def test_after_a_cut_connections_start_slowly() -> None:
    model = LineModel(bytes_per_s=1e8, delay_s=0.025, connections=1, slow_start=True)
    one = Way(model)
    one.send(0.0, "r", 10**8)
    one.schedule.at(1.0, one.line.cut)
    one.schedule.at(3.0, one.line.restore)
    late = model.starting_s(1e8)  # the same for all that is larger than what fills the line
    assert one.run() == pytest.approx({"r": late + 1.0 + 2.0 + late + 0.025})


def test_coded_kv_is_less_on_the_wire() -> None:
    one = Way(replace(PLAIN, codec=CodecModel(ratio=2.0)))
    moved = one.send(0.0, "r", 400)
    assert one.run() == {"r": 2.5}
    assert (moved.wire_bytes, one.line.sent_bytes) == (200, 200)


# ------------------------------------------------------------------ nothing gets lost


def storm(share: Sharing, seed: int) -> Way:
    draw = random.Random(seed)
    one = way(
        share,
        connections=8,
        connection_bytes_per_s=30.0,
        jitter_s=0.05,
        slow_start=True,
        codec=CodecModel(ratio=1.5, encode_bytes_per_s=1e4, decode_bytes_per_s=1e4),
    )
    at = 0.0
    for number in range(300):
        at += draw.expovariate(1.0)
        nbytes, began = draw.randrange(1, 280), at - draw.uniform(0, 3)
        ramp = one_chunk(at, nbytes, 8, began) if draw.random() < 0.5 else ()
        moved = one.send(at, f"r{number}", nbytes, since=began, ramp=ramp)
        if draw.random() < 0.1:
            one.schedule.at(at + draw.uniform(0, 5), one.line.drop, moved)
    for fault in range(5):
        one.schedule.at(50.0 * fault + 20, one.line.cut)
        one.schedule.at(50.0 * fault + 25, one.line.restore)
        one.schedule.at(50.0 * fault + 40, one.line.set_rate, draw.uniform(0.5, 1.0))
    one.run()
    return one


@pytest.mark.parametrize("share", Sharing)
@pytest.mark.parametrize("seed", range(3))
def test_bytes_in_are_bytes_out(share: Sharing, seed: int) -> None:
    one = storm(share, seed)
    wanted = [moved for moved in one.sent.values() if not moved.dropped]
    assert {moved.target[0] for moved in wanted} <= set(one.landed)
    least = sum(moved.wire_bytes for moved in wanted)
    most = sum(moved.wire_bytes for moved in one.sent.values())
    assert least * (1 - 1e-9) <= one.line.sent_bytes <= most * (1 + 1e-9)
    assert one.line.waiting_bytes == 0
    assert sum(one.line.use().samples) * 100 == pytest.approx(one.line.sent_bytes)
    for moved in wanted:
        assert moved.began_at is not None
        assert moved.left_at is not None
        assert moved.landed_at is not None
        assert moved.since <= moved.began_at <= moved.left_at < moved.landed_at - 0.5


@pytest.mark.parametrize("share", Sharing)
def test_the_same_every_time(share: Sharing) -> None:
    one, other = storm(share, 7), storm(share, 7)
    assert one.landed == other.landed
    assert one.left == other.left
    assert one.line.use() == other.line.use()


@pytest.mark.parametrize("share", Sharing)
def test_few_calls_for_each(share: Sharing) -> None:
    """However many wait: the line is asked for twice what it carries."""
    assert _calls(share, 4000) <= 1.1 * _calls(share, 500) <= 5


def _calls(share: Sharing, transfers: int) -> float:
    one = way(share)
    for number in range(transfers):
        one.send(number * 1.0, f"r{number}", 150 + 7 * number % 100)
    one.run(1e6)
    assert len(one.landed) == transfers
    return one.schedule.done / transfers


# ------------------------------------------------------------------ told of late, and in time


def test_a_full_line_carries_as_much_as_if_it_had_been_told_in_time() -> None:
    """Prefills of 4 s each side by side, in time steps: the line takes what is there, in order."""
    draw = random.Random(3)
    one, at = way(Sharing.FIFO), 0.0
    began, nbytes, layers, prefill_s = [], [], 8, 4.0
    for number in range(250):
        at += draw.expovariate(1.6 if 60 < at < 90 else 0.7)
        began.append(at)
        nbytes.append(draw.randrange(20, 200))
        ramp = one_chunk(at + prefill_s, nbytes[-1], layers, at)
        one.send(at + prefill_s, f"r{number}", nbytes[-1], since=at, ramp=ramp)
    landed = one.run()
    step, now, first = 0.01, 0.0, 0
    left = [float(n) for n in nbytes]
    ended = [0.0] * len(left)
    while first < len(left):
        now += step
        room = one.model.bytes_per_s * step
        for number in range(first, len(left)):
            part = (now - began[number] - prefill_s / layers) / prefill_s
            if part <= 0 or room <= 0:
                break
            kept = 0.0 if now >= began[number] + prefill_s else 1 - min(part, 1 - 1 / layers)
            goes = min(room, max(0.0, left[number] - kept * nbytes[number]))
            left[number] -= goes
            room -= goes
            if left[number] < 1e-9 and not ended[number]:
                ended[number] = now
        while first < len(left) and ended[first]:
            first += 1
    late = [landed[f"r{number}"] - one.model.delay_s - ended[number] for number in range(len(left))]
    assert max(ended[n] - began[n] - prefill_s for n in range(len(left))) > 10  # it was full
    assert max(map(abs, late)) < 0.5
    assert abs(sum(late)) / len(late) < 0.05
