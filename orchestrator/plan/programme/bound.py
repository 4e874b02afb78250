"""What no assignment can pass: the programme with workers that can be split at will.

Every figure is the kindest one: no waits, caches that never forget, lines that are free until they
are full, the largest batch that keeps the goal. Flows are summed by site, and a request's main and
relay are any of the site's, so it is small even where pools are many.
"""

from collections.abc import Callable
from math import inf

import numpy as np

from orchestrator.plan.assignment import ROLES, Group
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.programme.flows import Programme, Row
from orchestrator.plan.programme.paths import Net, empty_state
from orchestrator.plan.speeds import Decoding
from workers.api.messages import MAIN, PREFILL, RELAY
from workers.api.record import record


@record
class Bound:
    """`score`: the most requests/s, or requests per unit of money; `rate`: requests/s at it.

    `split`: chips of each pool by (parallel, role) at that point. `row`: what limits it.
    """

    score: float
    rate: float
    split: dict[str, dict[tuple[int, str], float]]
    row: Row | None


class _Columns:
    def __init__(self) -> None:
        self.count = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1


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
    prefills = [group for group in groups if group.role is PREFILL]
    if not prefills:
        return Bound(score=0.0, rate=0.0, split={}, row=None)
    return _Relaxed(problem, groups, ground or Ground(problem)).solve(per_cost=per_cost)


class _Relaxed:
    """The programme's parts. `workers`: columns of how many of each group there are."""

    def __init__(self, problem: Problem, groups: list[Group], ground: Ground) -> None:
        self.problem, self.groups = problem, groups
        # A net without paths between groups: only what its groups and sites take.
        self.net = Net(problem, [group for group in groups if group.role is PREFILL], ground)
        self.state = empty_state(self.net)
        self.by_site: dict[tuple[str, str], list[int]] = {}
        for place, group in enumerate(groups):
            self.by_site.setdefault((group.pool.site, group.role.value), []).append(place)
        self.fastest_s = {
            kind: min(
                (
                    self.net.prefill_s(kind, place, 1.0)
                    for where, place in self.net.entries
                    if where == kind
                ),
                default=inf,
            )
            for kind in range(len(problem.classes))
        }
        self.tokens_s = [self._token_s(group) for group in groups]

    def _token_s(self, group: Group) -> tuple[float, float]:
        """Least seconds of a worker per decoded token: fixed, and per token of context."""
        if group.role is PREFILL:
            return 0.0, 0.0
        least = min(what.prompt for what in self.problem.classes)
        decoding, tpot_s = self._decoding(group), self.problem.goal.tpot_s
        batch = decoding.batch_within(least, tpot_s, group.pool.slots)
        if not batch:
            return inf, 0.0
        # The batch's fixed part shared by as many as there can be; contexts each pay for.
        alone = decoding.step_s(batch, 0.0) / batch
        return alone, (decoding.step_s(batch, 1.0) - decoding.step_s(batch, 0.0)) / batch

    def _decoding(self, group: Group) -> Decoding:
        return self.net.ground.decoding(group.pool.name, group.shape.parallel)

    def solve(self, *, per_cost: bool) -> Bound:
        problem, net = self.problem, self.net
        columns = _Columns()
        workers = [columns.new() for _ in self.groups]
        rate, scale = columns.new(), columns.new()
        equal: list[list[tuple[int, float]]] = []
        rows: list[tuple[str, str, float, str, list[tuple[int, float]]]] = []
        late: list[tuple[int, float]] = [(rate, -(1 - problem.goal.share))]
        seconds: dict[int, list[tuple[int, float]]] = {
            place: [(workers[place], -1.0)] for place in range(len(self.groups))
        }
        memory: dict[int, list[tuple[int, float]]] = {
            place: [(workers[place], -float(group.shape.kv_tokens))]
            for place, group in enumerate(self.groups)
        }
        wires: dict[tuple[str, str], list[tuple[int, float]]] = {}
        prefill_places = [p for p, group in enumerate(self.groups) if group.role is PREFILL]
        sites = sorted({group.pool.site for group in self.groups})
        for kind, what in enumerate(problem.classes):
            leaving: dict[str, list[tuple[int, float]]] = {}
            demand: list[tuple[int, float]] = [(rate, -problem.shares[kind])]
            for where, place in net.entries:
                if where != kind:
                    continue
                column = columns.new()
                group = net.groups[place]
                seconds[prefill_places[place]].append((column, net.busy_s(kind, place, 1.0)))
                held_s = net.prefill_s(kind, place, 1.0)
                memory[prefill_places[place]].append((column, held_s * what.prompt))
                leaving.setdefault(group.pool.site, []).append((column, 1.0))
                demand.append((column, 1.0))
                home_s = 2 * net.ground.home_s(group.pool.site)
                if net.prefill_s(kind, place, 1.0) + home_s > problem.goal.ttft_s:
                    late.append((column, 1.0))
            equal.append(demand)
            arriving: dict[tuple[str, bool], list[tuple[int, float]]] = {}
            relaying: dict[str, list[tuple[int, float]]] = {}
            relay_s: dict[str, float] = {}
            relayed = 0.0
            for a in leaving:
                for b in sites:
                    if not self.by_site.get((b, MAIN.value)):
                        continue
                    line = None if a == b else net.ground.line(a, b)
                    if a != b and line is None:
                        continue
                    nbytes = (what.prompt - what.main_hit) * problem.kv_bytes_per_token
                    kv_s = 0.0
                    if line is not None:
                        kv_s = max(0.0, nbytes / line.bytes_per_s - self.fastest_s[kind])
                        kv_s += line.delay_s
                    modes = [False]
                    if line is not None and self.by_site.get((a, RELAY.value)) and what.output > 1:
                        modes.append(True)
                    for mode in modes:
                        column = columns.new()
                        leaving[a].append((column, -1.0))
                        arriving.setdefault((b, mode), []).append((column, 1.0))
                        if line is not None:
                            wires.setdefault((a, b), []).append((column, nbytes))
                        if mode:
                            relaying.setdefault(a, []).append((column, 1.0))
                            relay_s[a] = min(relay_s.get(a, inf), kv_s)
                            relayed = max(relayed, kv_s)
                        elif kv_s > problem.goal.tpot_s * (what.output - 1) and what.output > 1:
                            late.append((column, 1.0))
            equal += leaving.values()
            for (site, mode), coming in arriving.items():
                taken: list[tuple[int, float]] = list(coming)
                for place in self.by_site[site, MAIN.value]:
                    group = self.groups[place]
                    fixed, context_s = self.tokens_s[place]
                    if fixed == inf or what.prompt + what.output > group.shape.kv_tokens:
                        continue
                    tokens = max(0.0, what.output - 1)
                    if mode:
                        quickest = self._quickest_s()
                        tokens = max(
                            0.0, tokens - (relayed + 2 * problem.handoff_bound_s) / quickest
                        )
                    column = columns.new()
                    taken.append((column, -1.0))
                    each = fixed + context_s * what.prompt
                    seconds[place].append((column, tokens * each))
                    held_s = tokens * self._decoding(group).step_s(1, what.prompt)
                    memory[place].append((column, held_s * (what.prompt + what.output)))
                equal.append(taken)
            for site, coming in relaying.items():
                taken = list(coming)
                for place in self.by_site[site, RELAY.value]:
                    fixed, context_s = self.tokens_s[place]
                    if fixed == inf:
                        continue
                    column = columns.new()
                    taken.append((column, -1.0))
                    # A worker holds its batch for as long as KV is on its way.
                    tokens = relay_s[site] / problem.goal.tpot_s
                    seconds[place].append((column, tokens * (fixed + context_s * what.prompt)))
                equal.append(taken)
        cost = [
            (workers[place], group.pool.price_per_h * group.shape.parallel)
            for place, group in enumerate(self.groups)
        ]
        for place, group in enumerate(self.groups):
            rows.append((group.role.value, group.pool.name, 0.0, "workers", seconds[place]))
            rows.append(("memory", group.pool.name, 0.0, "tokens", memory[place]))
        for pool in problem.pools:
            used = [
                (workers[place], float(group.shape.parallel))
                for place, group in enumerate(self.groups)
                if group.pool.name == pool.name
            ]
            rows.append(("chips", pool.name, 0.0, "chips", [*used, (scale, -float(pool.chips))]))
        for (a, b), sent in wires.items():
            line = net.ground.line(a, b)
            assert line is not None
            speed = line.bytes_per_s
            rows.append(("line", f"{a}-{b}", 0.0, "bytes/s", [*sent, (scale, -speed)]))
            # Its rent as if a part of a line could be had.
            each = line.rent_per_h / speed + 3600 / line.wire_ratio / 1e9 * line.per_gb
            cost += ((column, nbytes * each) for column, nbytes in sent)
        rows.append(("late", "", 0.0, "requests", late))
        if problem.demand is not None:
            wanted = [(rate, 1.0), (scale, -problem.demand)]
            if per_cost:
                equal.append(wanted)  # all that is wanted, at the least cost
            else:
                rows.append(("demand", "", 0.0, "requests/s", wanted))
        if per_cost:
            rows.append(("cost", "", 1.0, "money/h", cost))
        else:
            rows.append(("scale", "", 1.0, "", [(scale, 1.0)]))
        return self._solved(columns.count, rows, equal, rate, scale, workers, per_cost)

    def _quickest_s(self) -> float:
        """The shortest decode step of any worker."""
        return min(
            self._decoding(group).step_s(1, 0.0)
            for group in self.groups
            if group.role is not PREFILL
        )

    def _solved(
        self,
        count: int,
        rows: list[tuple[str, str, float, str, list[tuple[int, float]]]],
        equal: list[list[tuple[int, float]]],
        rate: int,
        scale: int,
        workers: list[int],
        per_cost: bool,
    ) -> Bound:
        programme = Programme(count)
        for what, where, most, unit, cells in rows:
            add: Callable[[int, float], None] = programme.row(what, where, most, unit)
            for column, value in cells:
                add(column, value)
        for cells in equal:
            programme.equal(cells)
        gain = np.zeros(count)
        gain[rate] = 1.0
        found = programme.solve(gain)
        if found is None or found.x[rate] <= 0:
            return Bound(score=0.0, rate=0.0, split={}, row=None)
        size = float(found.x[scale]) if per_cost else 1.0
        # What a deployment of the least size that is not split would be: as large as pools allow.
        most = self._stretch(found.x, workers) if per_cost else 1.0
        split: dict[str, dict[tuple[int, str], float]] = {}
        for place, group in enumerate(self.groups):
            chips = float(found.x[workers[place]]) * group.shape.parallel * most
            if chips > 1e-9:
                split.setdefault(group.pool.name, {})[group.shape.parallel, group.role.value] = (
                    chips
                )
        score = float(found.x[rate]) * (3600 if per_cost else 1)
        best, row = 0.0, None
        for worth, candidate in zip(found.worth, programme.rows, strict=True):
            if candidate.unit in ("chips", "bytes/s") and worth > best:
                best, row = worth, candidate
        served = float(found.x[rate]) * (most if per_cost else 1 / size)
        return Bound(score=score, rate=served, split=split, row=row)

    def _stretch(self, x: "np.ndarray", workers: list[int]) -> float:
        """By how much the scaled workers can grow until some pool's chips are all used."""
        chips: dict[str, float] = {}
        for place, group in enumerate(self.groups):
            used = float(x[workers[place]]) * group.shape.parallel
            chips[group.pool.name] = chips.get(group.pool.name, 0.0) + used
        return min(
            (
                pool.chips / chips[pool.name]
                for pool in self.problem.pools
                if chips.get(pool.name, 0) > 1e-9
            ),
            default=1.0,
        )
