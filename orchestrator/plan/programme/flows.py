"""The linear programme of one assignment: the most requests/s, over flows through its paths.

Columns are requests/s of every class into every prefill group, and through every path behind it,
and the rate of all. Rows: each class its share of all (demand), what enters a site leaves it
(balance), seconds of prefill, relay and main workers, their memory and slots, bytes of lines, and
the part of requests that may be late. What a path takes, and how far a group can be loaded, are
those of a state.

Where a line is full, KV that has had no turn when its answer ends is not sent at all. So a relayed
path over such a line has a second column, for requests that relay decodes to the end; which
requests those are is the line's queue to say, so both columns are one flow to everybody else. The
router goes such a way only for want of another, so there it is only where all go over that line.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from orchestrator.plan.programme.caps import MOST_LOAD, Way, caps_of
from orchestrator.plan.programme.keeping import crowded_lines, decode_chance
from orchestrator.plan.programme.lp import Add, Cell, LinearProgramme, Solution
from orchestrator.plan.programme.paths import Ends, Net, Path
from orchestrator.plan.programme.settle import Flows
from orchestrator.plan.programme.terms import (
    State,
    Terms,
    relay_reserve,
    terms_of,
    unsent_terms,
)
from workers.api.messages import PREFILL
from workers.api.record import record

MOST_HELD = 0.92  # of memory: legs are large and come as they like
TIDY = 1e-6  # of a request's worth, for each gigabyte sent and each relay that is not needed
SORRY = 1e-4  # of a request's worth, for each that is late: only where it brings others
LIKELY = 0.5  # a path whose requests are late more often than that is a late one
NOISE = 1e-9  # of the rate: a flow so small is the solver's
TURNS = 0.9  # of a line's load: below it all KV has its turn


class Limit(StrEnum):
    """What a row is about, and what it is counted in."""

    PREFILL = "prefill"  # workers
    RELAY = "relay"  # workers
    MAIN = "main"  # workers
    MEMORY = "memory"  # tokens of KV
    SLOTS = "slots"
    LINE = "line"  # bytes/s
    LATE = "late"  # requests/s


class Row(NamedTuple):
    """One bound: `most` of a limit. `where`: of what, in words; `place`: of that group."""

    limit: Limit
    where: str
    most: float
    place: int | None = None
    line: Ends | None = None

    def __str__(self) -> str:
        return f"{self.limit} of {self.where}" if self.where else str(self.limit)


@record
class Answer:
    """The best flows. `duals`: requests/s that one unit more of each of the `rows` would add."""

    rate: float
    flows: Flows
    rows: tuple[Row, ...]
    duals: tuple[float, ...]

    @property
    def binding(self) -> Row | None:
        """The row that decides: one per cent more of it brings the most."""
        best, row = 0.0, None
        for dual, candidate in zip(self.duals, self.rows, strict=True):
            if dual * candidate.most > best + 1e-12:
                best, row = dual * candidate.most, candidate
        return row


def best_flows(net: Net, state: State, before: Flows | None) -> Answer | None:
    """The most requests/s in that state; None: some class has no way at all.

    `before`: the flows of a state near this one, whose mix of classes tells how far groups can be
    loaded.
    """
    if not net.entries or not net.paths:
        return None
    made = _Programme(net, state, before)
    found = made.solve()
    if found is None:
        return None
    rate, entries = float(found.x[-1]), len(net.entries)
    cut = np.where(found.x < NOISE * max(rate, NOISE), 0.0, found.x)
    going = [0.0] * len(net.paths)
    for flow, one in zip(cut[entries:-1], made.ways, strict=True):
        going[one.number] += float(flow)
    return Answer(
        rate=rate,
        flows=Flows(entering=tuple(map(float, cut[:entries])), going=tuple(going)),
        rows=tuple(made.rows),
        duals=found.duals,
    )


class _Programme:
    """The rows of a net in a state. Columns: its entries, then `ways`, then the rate."""

    def __init__(self, net: Net, state: State, before: Flows | None) -> None:
        self.rows: list[Row] = []
        self._net, self._state = net, state
        lines: dict[int, set[Ends | None]] = {}
        for path in net.paths:
            lines.setdefault(path.kind, set()).add(path.line)
        self._choice = {kind for kind, over in lines.items() if len(over) > 1}
        self.ways = [
            Way(number, path, terms)
            for number, path in enumerate(net.paths)
            for terms in self._terms(path, before)
        ]
        self._caps = caps_of(net, state, self.ways, before)
        self._lp = LinearProgramme(len(net.entries) + len(self.ways) + 1)
        self._rate = self._lp.columns - 1

    def _terms(self, path: Path, before: Flows | None) -> Iterator[Terms]:
        """Of every way to take a path. An empty net does not tell which lines will be full."""
        net, state = self._net, self._state
        yield terms_of(net, path, state)
        if path.relay is None or path.line is None or path.kind in self._choice:
            return
        if before is None or state.line_load[path.line] >= TURNS:
            yield unsent_terms(net, path, state)

    def solve(self) -> Solution | None:
        """The most requests/s; None: nothing is possible."""
        self._demand_and_balance()
        self._workers()
        self._memory()
        self._lines()
        gain = np.zeros(self._lp.columns)
        gain[self._rate] = 1.0
        for column, path, terms in self._paths():
            gain[column] = -TIDY * ((path.relay is not None) + terms.wire_bytes / 1e9)
        late = self._row(Row(Limit.LATE, "", 0.0))
        late(self._rate, -(1 - self._net.problem.goal.share))
        for column, part in self._late():
            late(column, part)
            gain[column] -= SORRY * part
        return self._lp.maximise(gain)

    def _paths(self) -> Iterator[tuple[int, Path, Terms]]:
        """Of every way, with its column."""
        for column, way in enumerate(self.ways, len(self._net.entries)):
            yield column, way.path, way.terms

    def _row(self, row: Row) -> Add:
        self.rows.append(row)
        return self._lp.at_most(row.most)

    def _demand_and_balance(self) -> None:
        net = self._net
        demand: dict[int, list[Cell]] = {}
        balance: dict[tuple[int, str], list[Cell]] = {}
        for column, (kind, place) in enumerate(net.entries):
            balance.setdefault((kind, net.groups[place].pool.site), []).append((column, 1.0))
            demand.setdefault(kind, []).append((column, 1.0))
        for column, path, _ in self._paths():
            balance.setdefault((path.kind, path.site), []).append((column, -1.0))
        for kind, share in enumerate(net.problem.shares):
            self._lp.zero([*demand.get(kind, ()), (self._rate, -share)])
        for cells in balance.values():
            self._lp.zero(cells)

    def _workers(self) -> None:
        """Worker seconds per second: prefill's are limited by waiting, decode's by its batch."""
        net, state = self._net, self._state
        adds: list[Add] = []
        token_s: dict[int, float] = {}  # of a worker, for each token that it decodes
        for place, group in enumerate(net.groups):
            most = float(group.count)
            if group.role is PREFILL:
                most *= self._caps.load[place]
            elif batch := self._caps.batch[place]:
                token_s[place] = net.decoding[place].step_s(batch, state.context[place]) / batch
            else:  # not even one sequence keeps the goal: none of them, whatever a token takes
                token_s[place], most = most, 0.0
            limit = Limit(group.role.value)
            adds.append(self._row(Row(limit, group.pool.name, most, place=place)))
        for column, (kind, place) in enumerate(net.entries):
            adds[place](column, net.busy_s(kind, place, state.cached[place]))
        for column, path, terms in self._paths():
            adds[path.main](column, terms.main_tokens * token_s[path.main] + terms.extend_s)
            if path.relay is not None:
                adds[path.relay](column, terms.relay_tokens * token_s[path.relay])

    def _memory(self) -> None:
        """KV memory and slots, for as long as legs live (Little 1961)."""
        net, state = self._net, self._state
        memory: list[Add] = []
        slots: list[Add] = []
        for place, group in enumerate(net.groups):
            workers = MOST_HELD * group.count
            tokens, legs = workers * group.shape.kv_tokens, workers * group.pool.slots
            memory.append(self._row(Row(Limit.MEMORY, group.name, tokens, place=place)))
            slots.append(self._row(Row(Limit.SLOTS, group.name, legs, place=place)))
        for column, (kind, place) in enumerate(net.entries):
            seconds = state.prefill_s[kind, net.groups[place].pool.site]
            memory[place](column, seconds * net.problem.classes[kind].prompt)
        for column, path, terms in self._paths():
            request = net.problem.classes[path.kind]
            before_s = state.prefill_s[path.kind, path.site]
            life_s = before_s + terms.stall_s + terms.main_tokens * state.step_s[path.main]
            memory[path.main](column, life_s * (request.prompt + request.output))
            slots[path.main](column, life_s)
            if path.relay is not None:
                reserve = relay_reserve(request, terms.relay_tokens)
                memory[path.relay](column, (before_s + terms.hold_s) * reserve)
                slots[path.relay](column, before_s + terms.hold_s)

    def _lines(self) -> None:
        adds = {
            ends: self._row(Row(Limit.LINE, ">".join(ends), MOST_LOAD * bytes_per_s, line=ends))
            for ends, bytes_per_s in self._net.rates.items()
        }
        for column, path, terms in self._paths():
            if path.line is not None:
                adds[path.line](column, terms.wire_bytes)

    def _late(self) -> Iterator[Cell]:
        """Of each column, the part of its requests that is probably late, where some are."""
        net, goal = self._net, self._net.problem.goal
        for column, (kind, place) in enumerate(net.entries):
            alone_s = net.prefill_s(kind, place, self._state.cached[place])
            if alone_s + 2 * net.ground.home_s(net.groups[place].pool.site) > goal.ttft_s:
                yield column, 1.0
        loaded = self._loaded()
        burst = net.problem.burst
        rush = None if burst is None else crowded_lines(loaded, burst)
        for column, path, terms in self._paths():
            second_s = 2 * net.ground.home_s(path.site) + terms.stall_s
            second_s += self._state.prefill_s[path.kind, path.site]
            if self._is_late(path, terms, second_s, loaded):
                yield column, 1.0
            elif burst is not None and rush is not None and path.line is not None:
                rushed = terms_of(net, path, rush)
                if self._is_late(path, rushed, second_s + (rushed.stall_s - terms.stall_s), rush):
                    yield column, burst.share

    def _is_late(self, path: Path, terms: Terms, second_s: float, state: State) -> bool:
        """Whether most of a path's requests are. `second_s`: until their second token."""
        if second_s > self._net.problem.goal.second_s:
            return True
        return decode_chance(self._net, path, terms, state) < LIKELY

    def _loaded(self) -> State:
        """The state with every batch at its cap."""
        loaded = replace(self._state, step_s=self._state.step_s[:])
        for place, batch in self._caps.batch.items():
            decoding = self._net.decoding[place]
            loaded.step_s[place] = decoding.step_s(batch, self._state.context[place])
        return loaded
