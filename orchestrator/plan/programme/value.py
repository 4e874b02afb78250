"""What one assignment serves: flows, waits, hits and relay lengths to a fixed point."""

from collections.abc import Callable

from orchestrator.plan.assignment import Assignment, groups_of
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.programme.flows import Answer, best_flows
from orchestrator.plan.programme.paths import Net, State, empty_state
from orchestrator.plan.programme.settle import Flows, keeping, settle
from workers.api.record import record

ROUNDS = 12
HOPE = 1.1  # the first round knows no waits, but caps for a mix that flows may improve
CONVERGED = 0.005  # of the programme's rate, between two rounds
CLOSE = 0.003  # of the rate, to the one that is looked for


@record
class Value:
    """What an assignment is worth.

    `rate`: requests/s at which the goal's share keeps the goal, queues included; `most`: what the
    programme alone says; `moved`: by which part it changed in the last of `rounds`. `cost_per_h` of
    chips, lines and traffic at `served` requests/s, which is not more than the demand.
    `why`: in words, where nothing is served.
    """

    assignment: Assignment
    rate: float
    served: float
    most: float
    cost_per_h: float
    rounds: int
    moved: float
    kept: float = 0.0
    answer: Answer | None = None
    net: Net | None = None
    state: State | None = None
    flows: Flows | None = None  # at `rate`
    why: str = ""
    rough: bool = False

    @property
    def per_cost(self) -> float:
        """Requests within the goal per unit of money."""
        return 3600 * self.served / self.cost_per_h if self.cost_per_h else 0.0


def value_of(
    problem: Problem,
    assignment: Assignment,
    ground: Ground | None = None,
    hopeless: Callable[[float], bool] = lambda most: False,
) -> Value:
    """Find the fixed point; pure, and the same for the same input.

    `hopeless` is asked whether somebody who serves at most so much is of any interest; if not, the
    value is a `rough` one: what there would be if nobody waited.
    """
    net = Net(problem, groups_of(problem, assignment), ground or Ground(problem))
    missing = _missing(net)
    if missing:
        return _nothing(problem, assignment, missing)
    state, flows = empty_state(net), None
    answer: Answer | None = None
    moved, rounds = 1.0, 0
    while rounds < ROUNDS:
        rounds += 1
        found = best_flows(net, state, flows)
        if found is None or found.rate <= 1e-9:
            if answer is None:
                return _nothing(problem, assignment, _late(net, found))
            break
        moved = 1.0 if answer is None else abs(found.rate / answer.rate - 1)
        answer, new = found, found.flows
        if rounds == 1 and hopeless(HOPE * found.rate):
            return _rough(net, assignment, found, state)
        if flows is not None and moved < CONVERGED:
            break
        # Part of the way, ever less: flows that jump between two ways would never settle.
        flows = new if flows is None else _between(flows, new, 1 / rounds)
        state = settle(net, flows, state)
    assert answer is not None
    flows = answer.flows
    rate, state, kept = _highest(net, flows, answer.rate, state)
    flows = flows.times(rate / answer.rate)
    served = rate if problem.demand is None else min(rate, problem.demand)
    why = "" if rate else f"only {kept:.0%} of its requests keep the goal, even when few come"
    return Value(
        assignment=assignment,
        rate=rate,
        served=served,
        most=answer.rate,
        cost_per_h=_cost_per_h(net, assignment, flows, served / rate if rate else 0.0, state),
        rounds=rounds,
        moved=moved,
        kept=kept,
        answer=answer,
        net=net,
        state=state,
        flows=flows,
        why=why,
    )


def _rough(net: Net, assignment: Assignment, answer: Answer, state: State) -> Value:
    demand = net.problem.demand
    served = answer.rate if demand is None else min(answer.rate, demand)
    part = served / answer.rate
    return Value(
        assignment=assignment,
        rate=answer.rate,
        served=served,
        most=answer.rate,
        cost_per_h=_cost_per_h(net, assignment, answer.flows, part, state),
        rounds=1,
        moved=1.0,
        answer=answer,
        rough=True,
    )


def _highest(net: Net, flows: Flows, rate: float, state: State) -> tuple[float, State, float]:
    """The rate at which just enough keep the goal, the state there, and how many do."""
    wanted = net.problem.goal.share

    def at(factor: float) -> tuple[State, float]:
        scaled = flows.times(factor)
        there = settle(net, scaled, state)
        return there, keeping(net, scaled, there)

    low, high = 0.85, 1.25
    best, kept = at(high)
    if kept >= wanted:
        return high * rate, best, kept
    best, kept = at(low)
    if kept < wanted:
        low, high = 0.02, low
        best, kept = at(low)
        if kept < wanted:
            return 0.0, best, kept
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        there, enough = at(middle)
        if enough >= wanted:
            low, best, kept = middle, there, enough
        else:
            high = middle
    return low * rate, best, kept


def _between(a: Flows, b: Flows, part: float) -> Flows:
    """So far from `a` to `b`."""
    return Flows(
        entering=tuple(x + part * (y - x) for x, y in zip(a.entering, b.entering, strict=True)),
        going=tuple(x + part * (y - x) for x, y in zip(a.going, b.going, strict=True)),
    )


def _cost_per_h(net: Net, assignment: Assignment, flows: Flows, part: float, state: State) -> float:
    """Chips of its workers, rent of the lines it uses, and what goes over them."""
    cost = assignment.chips_per_h(net.problem)
    sent: dict[frozenset[str], float] = {}
    for path, rate in zip(net.paths, flows.going, strict=True):
        if path.line is not None and rate:
            ends = frozenset(path.line)
            sent[ends] = sent.get(ends, 0.0) + rate * net.terms(path, state).wire_bytes
    for ends, nbytes in sent.items():
        line = net.ground.line(*sorted(ends))
        assert line is not None
        cost += line.rent_per_h + 3600 * part * nbytes / line.wire_ratio / 1e9 * line.per_gb
    return cost


def _nothing(problem: Problem, assignment: Assignment, why: str) -> Value:
    return Value(
        assignment=assignment,
        rate=0.0,
        served=0.0,
        most=0.0,
        cost_per_h=assignment.chips_per_h(problem),
        rounds=0,
        moved=0.0,
        why=why,
    )


def _missing(net: Net) -> str:
    """Why a class has no way at all; empty: each has one."""
    if not net.prefills:
        return "nobody prefills"
    ways = {path.kind for path in net.paths} & {kind for kind, _ in net.entries}
    for kind, what in enumerate(net.problem.classes):
        if kind in ways:
            continue
        if not net.joined:
            return "no line joins a site that prefills to one that decodes"
        most = max(group.shape.kv_tokens for group in net.groups)
        return (
            f"requests of {what.prompt:.0f} + {what.output:.0f} tokens do not fit any worker's "
            f"memory: {most} tokens at most"
        )
    return ""


def _late(net: Net, found: Answer | None) -> str:
    """Why nothing can be served in time."""
    goal, state = net.problem.goal, empty_state(net)
    late = first_s = 0.0
    for kind, share in enumerate(net.problem.shares):
        alone_s = min(
            net.prefill_s(kind, place, 1.0) + 2 * net.ground.home_s(net.groups[place].pool.site)
            for where, place in net.entries
            if where == kind
        )
        first_s = max(first_s, alone_s)
        late += share if alone_s > goal.ttft_s else 0.0
    if late > 1 - goal.share:
        return (
            f"{late:.0%} of the requests miss TTFT {goal.ttft_s:g} s with nobody before them; the "
            f"longest take {first_s:.3g} s"
        )
    steps = [step for step in state.step_s if step]
    return (
        f"too few keep {goal.tpot_s:g} s per token: a decode step of one sequence takes "
        f"{min(steps):.3g} s at least, and KV that is still on its way delays the second token"
    )
