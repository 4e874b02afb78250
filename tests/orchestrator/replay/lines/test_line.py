"""KV over a line: first come, first served."""

from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.replay.lines.model import LineModel, Sharing
from orchestrator.virtual.schedule import Schedule


class Wire:
    def __init__(self) -> None:
        self.schedule = Schedule()
        self.left: list[tuple[str, float]] = []
        self.landed: list[tuple[str, float]] = []
        self.line = Line(
            self.schedule,
            LineModel(bytes_per_s=100.0, delay_s=0.5, share=Sharing.FIFO),
            leaving=lambda t, at: self.left.append((t.target[0], at)),
            landed=self._landed,
        )

    def _landed(self, transfer: Transfer) -> None:
        if not transfer.dropped:
            self.landed.append((transfer.target[0], self.schedule.now))

    def send(
        self, at: float, name: str, nbytes: int, since: float | None = None, last_nbytes: int = 0
    ) -> Transfer:
        since = at if since is None else since
        transfer = Transfer(
            source=(name, 0),
            target=(name, 1),
            to_worker="w",
            line=self.line,
            nbytes=nbytes,
            since=since,
            ramp=((since, nbytes - last_nbytes),),
        )
        self.schedule.at(at, self.line.send, transfer)
        return transfer


def test_one_after_the_other() -> None:
    wire = Wire()
    wire.send(1.0, "a", 200)
    wire.send(2.0, "b", 100)
    wire.send(9.0, "c", 100)
    wire.schedule.run(20.0)
    assert wire.left == [("a", 3.0), ("b", 4.0), ("b", 4.0), ("c", 10.0)]
    assert wire.landed == [("a", 3.5), ("b", 4.5), ("c", 10.5)]


def test_what_was_sent_while_it_was_computed_needs_no_time() -> None:
    wire = Wire()
    wire.send(1.0, "whole", 100, since=0.0)
    wire.send(5.0, "half", 200, since=4.0)
    wire.send(6.0, "after", 100, since=4.0)  # the line was free from 6.0 on only
    wire.schedule.run(20.0)
    assert wire.landed == [("whole", 1.5), ("half", 6.5), ("after", 7.5)]


def test_the_last_chunk_is_sent_after_the_others() -> None:
    wire = Wire()
    wire.send(5.0, "long ago", 200, since=0.0, last_nbytes=50)
    wire.send(9.0, "one chunk", 100, since=0.0, last_nbytes=100)
    wire.send(20.0, "one of many", 1000, since=15.0, last_nbytes=100)
    wire.schedule.run(40.0)
    assert wire.landed == [("long ago", 6.0), ("one chunk", 10.5), ("one of many", 25.5)]


def test_what_nobody_wants_gives_the_line_to_the_next() -> None:
    wire = Wire()
    first, second = wire.send(0.0, "a", 1000), wire.send(0.0, "b", 1000)
    wire.send(0.0, "c", 100)
    wire.schedule.at(1.0, wire.line.drop, second)
    wire.schedule.at(2.0, wire.line.drop, first)
    wire.schedule.run(20.0)
    assert wire.landed == [("c", 3.5)]
