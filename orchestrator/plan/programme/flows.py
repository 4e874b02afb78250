"""The linear programme of one assignment: the most requests/s, over flows through its paths.

Variables are requests/s of every class into every prefill group, and through every path behind it.
Rows: each class its share of all (demand), what enters a site leaves it (balance), seconds of
prefill, relay and main workers, their memory and slots, bytes of lines, and the part of requests
that may be late. What a path takes, and how far a group can be loaded, are those of a state.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from orchestrator.plan.programme.paths import Ends, Net, Path, State, Terms
from orchestrator.plan.programme.queues import chance_within
from orchestrator.plan.programme.settle import Flows, crowded_lines, decode_chance, service
from workers.api.messages import PREFILL
from workers.api.record import record

MOST_LOAD = 0.98  # of anything with a queue before it
MOST_HELD = 0.92  # of memory: legs are large and come as they like
TIDY = 1e-6  # of a request's worth, for each gigabyte sent and each relay that is not needed
LIKELY = 0.5
TRIES = 12  # until a cap is known to a thousandth


class Row(NamedTuple):
    """One bound. `what`: prefill, relay, main, memory, line or late; `where`: a group or line."""

    what: str
    where: str
    most: float
    unit: str

    def __str__(self) -> str:
        return f"{self.what} of {self.where}" if self.where else self.what


@record
class Answer:
    """The best flows. `rows` with `worth`: requests/s that one unit more of each would add."""

    rate: float
    flows: Flows
    rows: tuple[Row, ...]
    worth: tuple[float, ...]
    used: tuple[float, ...]  # of each row, part of what there is

    @property
    def binding(self) -> Row | None:
        """The row that decides: one per cent more of it brings the most."""
        best, row = 0.0, None
        for worth, candidate in zip(self.worth, self.rows, strict=True):
            if worth * candidate.most > best + 1e-12:
                best, row = worth * candidate.most, candidate
        return row


class Caps(NamedTuple):
    """How far groups can be loaded, by place: seconds of prefill per second, batches of decode."""

    load: dict[int, float]
    batch: dict[int, float]


class Programme:
    """Rows and columns as they are found, and their solution."""

    def __init__(self, columns: int) -> None:
        self.rows: list[Row] = []
        self._columns = columns
        self._cells: list[tuple[int, int, float]] = []
        self._equal: list[tuple[int, int, float]] = []
        self._equals = 0

    def row(self, what: str, where: str, most: float, unit: str) -> Callable[[int, float], None]:
        """A new bound; the answer adds to one of its cells."""
        place = len(self.rows)
        self.rows.append(Row(what, where, most, unit))

        def add(column: int, value: float) -> None:
            if value:
                self._cells.append((place, column, value))

        return add

    def equal(self, cells: list[tuple[int, float]]) -> None:
        """Cells whose sum is 0."""
        self._equal += ((self._equals, column, value) for column, value in cells)
        self._equals += 1

    def solve(self, gain: NDArray[np.float64]) -> "Solution | None":
        """The most of `gain`; None: nothing is possible."""
        most = np.array([row.most for row in self.rows])
        # Rows in parts of what there is: seconds beside 1e9 bytes are hard on a solver.
        scale = np.where(most > 0, most, 1.0)
        cells = [(row, column, value / scale[row]) for row, column, value in self._cells]
        found = linprog(
            -gain,
            A_ub=_matrix(cells, len(self.rows), self._columns),
            b_ub=most / scale,
            A_eq=_matrix(self._equal, self._equals, self._columns),
            b_eq=np.zeros(self._equals),
            method="highs",
        )
        if found.status != 0:
            return None
        worth = tuple(map(float, -found.ineqlin.marginals / scale))
        used = tuple(map(float, most / scale - found.ineqlin.residual))
        return Solution(found.x, worth, used)


class Solution(NamedTuple):
    """[columns] of the best, and for each row its dual and the part of it that is used."""

    x: NDArray[np.float64]
    worth: tuple[float, ...]
    used: tuple[float, ...]


def best_flows(net: Net, state: State, before: Flows | None) -> Answer | None:
    """The most requests/s in that state; None: some class has no way at all."""
    entries, paths = net.entries, net.paths
    if not entries or not paths:
        return None
    terms = [net.terms(path, state) for path in paths]
    caps = caps_of(net, state, terms, before)
    columns = len(entries) + len(paths) + 1
    programme = Programme(columns)
    _demand(net, programme)
    _seconds(net, programme, state, terms, caps)
    _memory(net, programme, state, terms)
    _lines(net, programme, terms)
    _late(net, programme, state, terms, caps)
    gain = np.zeros(columns)
    gain[-1] = 1.0
    for place, (path, term) in enumerate(zip(paths, terms, strict=True), len(entries)):
        gain[place] = -TIDY * ((path.relay is not None) + term.wire_bytes / 1e9)
    found = programme.solve(gain)
    if found is None:
        return None
    cut = np.where(found.x < 1e-9 * max(found.x[-1], 1e-9), 0.0, found.x)
    flows = Flows(
        entering=tuple(map(float, cut[: len(entries)])),
        going=tuple(map(float, cut[len(entries) : -1])),
    )
    return Answer(
        rate=float(found.x[-1]),
        flows=flows,
        rows=tuple(programme.rows),
        worth=found.worth,
        used=found.used,
    )


def caps_of(net: Net, state: State, terms: list[Terms], before: Flows | None) -> Caps:
    """How far each group may be loaded for the wanted share of its requests to keep the goal.

    With the mix of classes that went there `before`, or else the workload's.
    """
    load: dict[int, float] = {}
    batch: dict[int, float] = {}
    for place, group in enumerate(net.groups):
        if group.role is PREFILL:
            load[place] = _most_load(net, state, place, before)
        else:
            batch[place] = _most_batch(net, state, place, terms, before)
    return Caps(load, batch)


def _most_load(net: Net, state: State, place: int, before: Flows | None) -> float:
    goal, group = net.problem.goal, net.groups[place]
    rates = before.entering if before else tuple(net.problem.shares[k] for k, _ in net.entries)
    mix = [
        (rate, kind)
        for (kind, where), rate in zip(net.entries, rates, strict=True)
        if where == place and rate
    ] or [(net.problem.shares[kind], kind) for kind, where in net.entries if where == place]
    if not mix:
        return 0.0
    found = state.found[place]
    mean_s, cv2 = service(net, [(rate, kind, place) for rate, kind in mix], found)
    variation = (net.problem.gap_cv2 + cv2) / 2
    limit_s = min(goal.ttft_s, goal.second_s) - 2 * net.ground.home_s(group.pool.site)
    slack = [(rate, limit_s - net.prefill_s(kind, place, found)) for rate, kind in mix]
    total = sum(rate for rate, _ in slack)

    burst = net.problem.burst

    def kept(load: float) -> float:
        within = 0.0
        for rate, slack_s in slack:
            chance = chance_within(slack_s, group.count, load, mean_s, variation)
            if burst is not None:
                slack_s -= burst.wait_s(load)
                rushed = chance_within(slack_s, group.count, load, mean_s, variation)
                chance += burst.share * (rushed - chance)
            within += rate * chance
        return within / total

    # Those that are late even when nobody waits are the programme's to place, not the queue's.
    return _most(kept, goal.share * kept(0.0), MOST_LOAD)


def _most_batch(
    net: Net, state: State, place: int, terms: list[Terms], before: Flows | None
) -> float:
    goal, slots = net.problem.goal, net.groups[place].pool.slots
    mix: list[tuple[float, Path, Terms]] = []
    shares = net.problem.shares
    for number, (path, term) in enumerate(zip(net.paths, terms, strict=True)):
        if place == path.main or place == path.relay:
            mix.append((before.going[number] if before else shares[path.kind], path, term))
    if not any(rate for rate, _, _ in mix):
        mix = [(shares[path.kind], path, term) for _, path, term in mix]
    mix = [part for part in mix if part[0]]
    if not mix:
        return 0.0
    context, decoding = state.context[place], net.decoding[place]
    most = decoding.batch_within(context, goal.tpot_s, slots)
    if not most:
        return 0.0
    trial = _Trial(net, state, place)
    total = sum(rate for rate, _, _ in mix)

    def kept(batch: float) -> float:
        trial.set(max(1.0, batch), context)
        within = (rate * decode_chance(net, path, term, trial.state) for rate, path, term in mix)
        return sum(within) / total

    return _most(kept, goal.share * kept(1.0), float(most), least=1.0)


class _Trial:
    """A state in which one group's batch is tried."""

    def __init__(self, net: Net, state: State, place: int) -> None:
        self.state = State(
            **{name: getattr(state, name) for name in State.__slots__}
            | {"step_s": state.step_s[:], "variance": state.variance[:]}
        )
        self._count, self._decoding, self._place = (
            net.groups[place].count,
            net.decoding[place],
            place,
        )

    def set(self, batch: float, context: float) -> None:
        """See `settle._decode`."""
        step = self._decoding.step_s(batch, context)
        added_s = self._decoding.step_s(batch + 1, context) - step
        elastic = min(0.99, batch * added_s / step)
        self.state.step_s[self._place] = step
        variance = batch * added_s * added_s / (1 - elastic) / self._count
        self.state.variance[self._place] = variance


def _most(
    kept: Callable[[float], float], wanted: float, most: float, *, least: float = 0.0
) -> float:
    """The largest value up to `most` at which as much is kept as wanted."""
    if kept(most) >= wanted:
        return most
    low, high = least, most
    for _ in range(TRIES):
        middle = (low + high) / 2
        if kept(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


# -------------------------------------------------------------------------------------- rows


def _demand(net: Net, programme: Programme) -> None:
    first, last = len(net.entries), len(net.entries) + len(net.paths)
    entering: dict[tuple[int, str], list[tuple[int, float]]] = {}
    by_kind: dict[int, list[tuple[int, float]]] = {}
    for column, (kind, place) in enumerate(net.entries):
        entering.setdefault((kind, net.groups[place].pool.site), []).append((column, 1.0))
        by_kind.setdefault(kind, []).append((column, 1.0))
    for column, path in enumerate(net.paths, first):
        entering.setdefault((path.kind, path.site), []).append((column, -1.0))
    for kind, share in enumerate(net.problem.shares):
        programme.equal([*by_kind.get(kind, ()), (last, -share)])
    for cells in entering.values():
        programme.equal(cells)


def _seconds(net: Net, programme: Programme, state: State, terms: list[Terms], caps: Caps) -> None:
    """Worker seconds per second: prefill's are limited by waiting, decode's by its batch."""
    adds: dict[int, Callable[[int, float], None]] = {}
    each_s: dict[int, float] = {}
    for place, group in enumerate(net.groups):
        if group.role is PREFILL:
            most = group.count * caps.load[place]
        else:
            most = float(group.count)
            batch = caps.batch[place]
            step_s = net.decoding[place].step_s(batch, state.context[place])
            each_s[place] = step_s / batch if batch else float(group.count)
            most = most if batch else 0.0
        adds[place] = programme.row(group.role.value, group.pool.name, most, "workers")
    for column, (kind, place) in enumerate(net.entries):
        adds[place](column, net.busy_s(kind, place, state.found[place]))
    for column, (path, term) in enumerate(zip(net.paths, terms, strict=True), len(net.entries)):
        main_s = term.main_tokens * each_s[path.main] + term.extend_s
        adds[path.main](column, main_s)
        if path.relay is not None:
            adds[path.relay](column, term.relay_tokens * each_s[path.relay])


def _memory(net: Net, programme: Programme, state: State, terms: list[Terms]) -> None:
    problem = net.problem
    adds: dict[int, tuple[Callable[[int, float], None], Callable[[int, float], None]]] = {}
    for place, group in enumerate(net.groups):
        room = MOST_HELD * group.count
        name = f"{group.pool.name} {group.role.value}"
        adds[place] = (
            programme.row("memory", name, room * group.shape.kv_tokens, "tokens"),
            programme.row("slots", name, room * group.pool.slots, "slots"),
        )
    for column, (kind, place) in enumerate(net.entries):
        seconds = state.prefill_s[kind, net.groups[place].pool.site]
        adds[place][0](column, seconds * problem.classes[kind].prompt)
    for column, (path, term) in enumerate(zip(net.paths, terms, strict=True), len(net.entries)):
        what = problem.classes[path.kind]
        before_s = state.prefill_s[path.kind, path.site]
        life_s = before_s + term.stall_s + term.main_tokens * state.step_s[path.main]
        memory, slots = adds[path.main]
        memory(column, life_s * (what.prompt + what.output))
        slots(column, life_s)
        if path.relay is not None:
            memory, slots = adds[path.relay]
            reserve = what.prompt + min(what.output, 2 * max(16.0, term.relay_tokens))
            memory(column, (before_s + term.hold_s) * reserve)
            slots(column, before_s + term.hold_s)


def _lines(net: Net, programme: Programme, terms: list[Terms]) -> None:
    adds: dict[Ends, Callable[[int, float], None]] = {
        ends: programme.row("line", line_name(ends), MOST_LOAD * net.rates[ends], "bytes/s")
        for ends in net.lines
    }
    for column, (path, term) in enumerate(zip(net.paths, terms, strict=True), len(net.entries)):
        if path.line is not None:
            adds[path.line](column, term.wire_bytes)


def _late(net: Net, programme: Programme, state: State, terms: list[Terms], caps: Caps) -> None:
    """At most so many requests may go where they are probably late."""
    goal = net.problem.goal
    late = programme.row("late", "", 0.0, "requests")
    late(len(net.entries) + len(net.paths), -(1 - goal.share))
    for column, (kind, place) in enumerate(net.entries):
        site = net.groups[place].pool.site
        alone_s = net.prefill_s(kind, place, state.found[place]) + 2 * net.ground.home_s(site)
        if alone_s > goal.ttft_s:
            late(column, 1.0)
    loaded = State(
        **{name: getattr(state, name) for name in State.__slots__} | {"step_s": state.step_s[:]}
    )
    for place, batch in caps.batch.items():
        loaded.step_s[place] = net.decoding[place].step_s(batch, state.context[place])
    burst = net.problem.burst
    rush = loaded if burst is None else crowded_lines(loaded, burst)
    for column, (path, term) in enumerate(zip(net.paths, terms, strict=True), len(net.entries)):
        second_s = 2 * net.ground.home_s(path.site) + term.stall_s
        second_s += state.prefill_s[path.kind, path.site]
        if second_s > goal.second_s or decode_chance(net, path, term, loaded) < LIKELY:
            late(column, 1.0)
        elif burst is not None and path.line is not None:
            rushed = net.terms(path, rush)
            second_s += rushed.stall_s - term.stall_s
            if second_s > goal.second_s or decode_chance(net, path, rushed, rush) < LIKELY:
                late(column, burst.share)


def line_name(ends: Ends) -> str:
    """One way of a line, as the replay names it."""
    return f"{ends[0]}>{ends[1]}"


def _matrix(cells: list[tuple[int, int, float]], rows: int, columns: int) -> csr_array:
    places, along, values = zip(*cells, strict=True) if cells else ((), (), ())
    return csr_array((values, (places, along)), shape=(rows, columns))
