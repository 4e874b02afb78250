"""What no assignment can pass: the programme with workers that can be split at will.

Every figure is the kindest one: no waits, caches that never forget, lines that are free until they
are full, the largest batch that keeps the goal. Flows are summed by site, and a request's main and
relay are any of the site's, so it is small even where pools are many. A relay may also decode all
of an answer, with no KV sent, as it does where a line is full.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.plan.assignment import ROLES, Group
from orchestrator.plan.problem import Ground, Line, Problem
from orchestrator.plan.programme.lp import Cell, LinearProgramme
from orchestrator.plan.programme.paths import Ends, Net
from orchestrator.plan.speeds import Decoding
from workers.api.messages import MAIN, PREFILL, RELAY, Role
from workers.api.record import record

Split = Mapping[tuple[int, Role], float]  # a pool's chips, by chips of a worker and role
NOISE = 1e-9  # chips


@record
class Bound:
    """`score`: the most requests/s, or requests per unit of money.

    `split`: of each pool that is used at that point.
    """

    score: float
    split: dict[str, dict[tuple[int, Role], float]]


NO_WAY = Bound(score=0.0, split={})


def relaxed(problem: Problem, *, per_cost: bool, ground: Ground | None = None) -> Bound:
    """The bound of a problem. By cost, costs are scaled to 1 (Charnes and Cooper 1962).

    With a demand the flows are held to it. Score 0: there is no way at all. `ground`: that of a
    problem with these pools and more.
    """
    groups = [
        Group(pool=pool, role=role, count=1, shape=shape)
        for pool in problem.pools
        for shape in pool.shapes
        for role in ROLES
        if role in pool.roles
    ]
    if not any(group.role is PREFILL for group in groups):
        return NO_WAY
    return _Relaxed(problem, groups, ground or Ground(problem), per_cost=per_cost).solve()


class _TokenCost(NamedTuple):
    """Least seconds of a worker per decoded token: fixed, and per token of context."""

    fixed_s: float
    context_s: float

    def of(self, context: float) -> float:
        return self.fixed_s + self.context_s * context


@dataclass(slots=True)
class _Behind:
    """One class's flows behind its prefill, as cells that are to sum to 0 with what takes them.

    `arriving`: at a main site, with a relay before or without; `relaying`: in a site, until KV has
    arrived, `ending`: to the answer's end; `relay_s`: the shortest that a relay of that site
    decodes for, `longest_s`: that any relay does.
    """

    arriving: dict[tuple[str, bool], list[Cell]] = field(default_factory=dict)
    relaying: dict[str, list[Cell]] = field(default_factory=dict)
    ending: dict[str, list[Cell]] = field(default_factory=dict)
    relay_s: dict[str, float] = field(default_factory=dict)
    longest_s: float = 0.0


class _Relaxed:
    """The programme's parts.

    Columns: how many workers there are of each group, the rate of all requests, and the scale: by
    which all limits are multiplied, so that costs are 1; without costs it is 1 itself.
    """

    def __init__(
        self, problem: Problem, groups: list[Group], ground: Ground, *, per_cost: bool
    ) -> None:
        self._problem, self._groups, self._per_cost = problem, groups, per_cost
        self._lp = LinearProgramme()
        self._workers = [self._lp.column() for _ in groups]
        self._rate, self._scale = self._lp.column(), self._lp.column()
        # A net of prefills alone has no paths: it only says what they take.
        self._prefills = [p for p, group in enumerate(groups) if group.role is PREFILL]
        self._net = Net(problem, [groups[place] for place in self._prefills], ground)
        self._by_site: dict[tuple[str, Role], list[int]] = {}
        for place, group in enumerate(groups):
            self._by_site.setdefault((group.pool.site, group.role), []).append(place)
        self._token_costs = [self._token_cost(group) for group in groups]
        # Rows whose cells come with the flows.
        self._seconds: list[list[Cell]] = [[(column, -1.0)] for column in self._workers]
        self._memory: list[list[Cell]] = [
            [(column, -float(group.shape.kv_tokens))]
            for column, group in zip(self._workers, groups, strict=True)
        ]
        self._wires: dict[Ends, list[Cell]] = {}
        self._late: list[Cell] = [(self._rate, -(1 - problem.goal.share))]

    def solve(self) -> Bound:
        for kind in range(len(self._problem.classes)):
            leaving = self._enter(kind)
            behind = self._leave(kind, leaving)
            self._decode(kind, behind)
            self._relay(kind, behind)
        for seconds, memory in zip(self._seconds, self._memory, strict=True):
            self._lp.at_most(0.0, seconds)
            self._lp.at_most(0.0, memory)
        self._chips()
        cost = self._chip_cost() + self._lines()
        self._lp.at_most(0.0, self._late)
        self._demand()
        self._lp.at_most(1.0, cost if self._per_cost else [(self._scale, 1.0)])
        gain = np.zeros(self._lp.columns)
        gain[self._rate] = 1.0
        found = self._lp.maximise(gain)
        if found is None or found.x[self._rate] <= 0:
            return NO_WAY
        return self._bound(found.x)

    # ---------------------------------------------------------------------------- one class's flows

    def _enter(self, kind: int) -> dict[str, list[Cell]]:
        """Into the prefill groups; by site, what leaves them."""
        problem, net = self._problem, self._net
        leaving: dict[str, list[Cell]] = {}
        demand: list[Cell] = [(self._rate, -problem.shares[kind])]
        for where, place in net.entries:
            if where != kind:
                continue
            column = self._lp.column()
            site, alone_s = net.groups[place].pool.site, net.prefill_s(kind, place, 1.0)
            self._seconds[self._prefills[place]].append((column, net.busy_s(kind, place, 1.0)))
            held = alone_s * problem.classes[kind].prompt
            self._memory[self._prefills[place]].append((column, held))
            leaving.setdefault(site, []).append((column, 1.0))
            demand.append((column, 1.0))
            if alone_s + 2 * net.ground.home_s(site) > problem.goal.ttft_s:
                self._late.append((column, 1.0))
        self._lp.zero(demand)
        return leaving

    def _leave(self, kind: int, leaving: dict[str, list[Cell]]) -> _Behind:
        """From every prefill site to every main site, with a relay and without."""
        behind = _Behind()
        mains = sorted({site for site, role in self._by_site if role is MAIN})
        for a in leaving:
            for b in mains:
                line = self._net.ground.line(a, b)
                if a == b:
                    self._send(kind, (a, b), None, leaving, behind, relayed=False)
                elif line is not None:
                    self._send(kind, (a, b), line, leaving, behind, relayed=False)
                    if (a, RELAY) in self._by_site and self._problem.classes[kind].output > 1:
                        self._send(kind, (a, b), line, leaving, behind, relayed=True)
                        column = self._lp.column()
                        leaving[a].append((column, -1.0))
                        behind.ending.setdefault(a, []).append((column, 1.0))
        for cells in leaving.values():
            self._lp.zero(cells)
        return behind

    def _send(
        self,
        kind: int,
        ends: Ends,
        line: Line | None,
        leaving: dict[str, list[Cell]],
        behind: _Behind,
        *,
        relayed: bool,
    ) -> None:
        """One flow from site to site."""
        request, goal = self._problem.classes[kind], self._problem.goal
        a, b = ends
        column = self._lp.column()
        leaving[a].append((column, -1.0))
        behind.arriving.setdefault((b, relayed), []).append((column, 1.0))
        kv_s = 0.0  # from prefill's end on
        if line is not None:
            nbytes = (request.prompt - request.main_hit) * self._problem.kv_bytes_per_token
            self._wires.setdefault(ends, []).append((column, nbytes))
            kv_s = max(0.0, nbytes / line.bytes_per_s - self._fastest_s(kind)) + line.delay_s
        if relayed:
            behind.relaying.setdefault(a, []).append((column, 1.0))
            behind.relay_s[a] = min(behind.relay_s.get(a, inf), kv_s)
            behind.longest_s = max(behind.longest_s, kv_s)
        elif kv_s > goal.tpot_s * (request.output - 1) and request.output > 1:
            self._late.append((column, 1.0))

    def _decode(self, kind: int, behind: _Behind) -> None:
        """What arrives at a site is decoded by any of its mains; relays have done a part of it."""
        request = self._problem.classes[kind]
        whole = request.prompt + request.output
        for (site, relayed), cells in behind.arriving.items():
            tokens = max(0.0, request.output - 1)
            if relayed:
                ahead_s = behind.longest_s + 2 * self._problem.handoff_bound_s
                tokens = max(0.0, tokens - ahead_s / self._quickest_s())
            for place in self._by_site[site, MAIN]:
                group, cost = self._groups[place], self._token_costs[place]
                if cost is None or whole > group.shape.kv_tokens:
                    continue
                column = self._lp.column()
                cells.append((column, -1.0))
                self._seconds[place].append((column, tokens * cost.of(request.prompt)))
                held_s = tokens * self._decoding(group).step_s(1, request.prompt)
                self._memory[place].append((column, held_s * whole))
            self._lp.zero(cells)

    def _relay(self, kind: int, behind: _Behind) -> None:
        request = self._problem.classes[kind]
        for site, cells in behind.relaying.items():
            # A worker holds its batch for as long as KV is on its way.
            tokens = behind.relay_s[site] / self._problem.goal.tpot_s
            self._relays(site, cells, tokens, request.prompt)
        for site, cells in behind.ending.items():
            self._relays(site, cells, request.output - 1, request.prompt)

    def _relays(self, site: str, cells: list[Cell], tokens: float, prompt: float) -> None:
        """So many tokens of each request by any relay of a site."""
        for place in self._by_site[site, RELAY]:
            cost = self._token_costs[place]
            if cost is None:
                continue
            column = self._lp.column()
            cells.append((column, -1.0))
            self._seconds[place].append((column, tokens * cost.of(prompt)))
        self._lp.zero(cells)

    # ------------------------------------------------------------------------ rows over all classes

    def _chips(self) -> None:
        for pool in self._problem.pools:
            used = [
                (column, float(group.shape.parallel))
                for column, group in zip(self._workers, self._groups, strict=True)
                if group.pool.name == pool.name
            ]
            self._lp.at_most(0.0, [*used, (self._scale, -float(pool.chips))])

    def _chip_cost(self) -> list[Cell]:
        """Money an hour for the workers."""
        return [
            (column, group.pool.price_per_h * group.shape.parallel)
            for column, group in zip(self._workers, self._groups, strict=True)
        ]

    def _lines(self) -> list[Cell]:
        """A row for each; returns money an hour for what is sent: a part of a line is rented."""
        cost: list[Cell] = []
        for ends, sent in self._wires.items():
            line = self._net.ground.line(*ends)
            assert line is not None  # something is sent along it
            self._lp.at_most(0.0, [*sent, (self._scale, -line.bytes_per_s)])
            each = line.rent_per_h / line.bytes_per_s + 3600 / line.wire_ratio / 1e9 * line.per_gb
            cost += ((column, nbytes * each) for column, nbytes in sent)
        return cost

    def _demand(self) -> None:
        if self._problem.demand is None:
            return
        wanted = [(self._rate, 1.0), (self._scale, -self._problem.demand)]
        if self._per_cost:
            self._lp.zero(wanted)  # all that is wanted, at the least cost
        else:
            self._lp.at_most(0.0, wanted)

    def _bound(self, x: NDArray[np.float64]) -> Bound:
        # The cheapest deployment costs 1, however small; the largest that is like it fills a pool.
        stretch = self._stretch(x) if self._per_cost else 1.0
        split: dict[str, dict[tuple[int, Role], float]] = {}
        for column, group in zip(self._workers, self._groups, strict=True):
            chips = float(x[column]) * group.shape.parallel * stretch
            if chips > NOISE:
                split.setdefault(group.pool.name, {})[group.shape.parallel, group.role] = chips
        return Bound(score=float(x[self._rate]) * (3600 if self._per_cost else 1), split=split)

    def _stretch(self, x: NDArray[np.float64]) -> float:
        """By how much the scaled workers can grow until some pool's chips are all used."""
        chips: dict[str, float] = {}
        for column, group in zip(self._workers, self._groups, strict=True):
            used = float(x[column]) * group.shape.parallel
            chips[group.pool.name] = chips.get(group.pool.name, 0.0) + used
        return min(
            (
                pool.chips / chips[pool.name]
                for pool in self._problem.pools
                if chips.get(pool.name, 0) > NOISE
            ),
            default=1.0,
        )

    # ------------------------------------------------------------------------------ kindest figures

    def _decoding(self, group: Group) -> Decoding:
        return self._net.ground.decoding(group.pool.name, group.shape.parallel)

    def _token_cost(self, group: Group) -> _TokenCost | None:
        """None for prefill, and where not even one sequence keeps the goal."""
        if group.role is PREFILL:
            return None
        least = min(request.prompt for request in self._problem.classes)
        decoding, tpot_s = self._decoding(group), self._problem.goal.tpot_s
        batch = decoding.batch_within(least, tpot_s, group.pool.slots)
        if not batch:
            return None
        # The batch's fixed part shared by as many as there can be; contexts each pay for.
        alone_s = decoding.step_s(batch, 0.0)
        return _TokenCost(alone_s / batch, (decoding.step_s(batch, 1.0) - alone_s) / batch)

    def _fastest_s(self, kind: int) -> float:
        """The shortest prefill of a class anywhere."""
        entries = (place for where, place in self._net.entries if where == kind)
        return min((self._net.prefill_s(kind, place, 1.0) for place in entries), default=inf)

    def _quickest_s(self) -> float:
        """The shortest decode step of any worker."""
        return min(
            self._decoding(group).step_s(1, 0.0)
            for group in self._groups
            if group.role is not PREFILL
        )
