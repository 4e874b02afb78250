"""What one assignment serves: flows, waits, hits and relay lengths to a fixed point."""

from collections.abc import Callable
from typing import NamedTuple

from orchestrator.plan.assignment import Assignment, groups_of
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.programme.flows import Answer, Row, best_flows
from orchestrator.plan.programme.keeping import keeping
from orchestrator.plan.programme.paths import Net
from orchestrator.plan.programme.settle import Flows, settle
from orchestrator.plan.programme.terms import State, empty_state, terms_of
from workers.api.record import record

ROUNDS = 16
HOPE = 1.1  # the first round knows no waits, but caps for a mix that flows may improve
CONVERGED = 0.005  # of the programme's rate, between two rounds
NOTHING = 1e-9  # requests/s
NEAR = (0.85, 1.25)  # of the programme's rate: where what keeps the goal is looked for first
LEAST = 0.02  # of it: less is not worth looking for
CLOSE = 0.003  # of the rate that is looked for


@record
class Solved:
    """How an assignment serves its rate: the last programme's `answer`, and flows at that rate.

    `state`: what those lead to.
    """

    net: Net
    answer: Answer
    flows: Flows
    state: State


@record
class Value:
    """What an assignment is worth.

    `rate`: requests/s at which the goal's share keeps the goal, queues included; `programme_rate`:
    what the programme alone says; `moved`: by which part it changed in the last of `rounds`.
    `cost_per_h` of chips, lines and traffic at `served` requests/s, which is not more than the
    demand. `binding`: the row that is full first; `solved`: None where no flow is possible, and for
    a `rough` value, which is what there would be if nobody waited. `why`: in words, where nothing
    is served.
    """

    assignment: Assignment
    rate: float
    served: float
    programme_rate: float
    cost_per_h: float
    rounds: int
    moved: float
    binding: Row | None = None
    solved: Solved | None = None
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

    `hopeless` is asked whether somebody who serves at most so much is of no interest; then the
    value is a `rough` one.
    """
    net = Net(problem, groups_of(problem, assignment), ground or Ground(problem))
    missing = _missing(net)
    if missing:
        return _nothing(problem, assignment, missing)
    first = best_flows(net, empty_state(net), None)
    if first is None or first.rate <= NOTHING:
        return _nothing(problem, assignment, _late(net))
    if hopeless(HOPE * first.rate):
        return _rough(net, assignment, first)
    point = _fixed_point(net, first)
    answer = point.answer
    at = _highest(net, answer, point.state)
    flows = answer.flows.times(at.rate / answer.rate)
    served = problem.served(at.rate)
    part = served / at.rate if at.rate else 0.0
    why = "" if at.rate else f"only {at.kept:.0%} of its requests keep the goal, even when few come"
    return Value(
        assignment=assignment,
        rate=at.rate,
        served=served,
        programme_rate=answer.rate,
        cost_per_h=_cost_per_h(net, assignment, flows, part, at.state),
        rounds=point.rounds,
        moved=point.moved,
        binding=answer.binding,
        solved=Solved(net=net, answer=answer, flows=flows, state=at.state),
        why=why,
    )


# --------------------------------------------------------------------------------- fixed point


class _FixedPoint(NamedTuple):
    """The last answer and the state that it was of."""

    answer: Answer
    state: State
    rounds: int
    moved: float


def _fixed_point(net: Net, first: Answer) -> _FixedPoint:
    """Flows make a state, which makes flows: from those of an empty net until they stay."""
    answer, flows, moved = first, first.flows, 1.0
    state = settle(net, flows, empty_state(net))
    for rounds in range(2, ROUNDS + 1):
        found = best_flows(net, state, flows)
        if found is None or found.rate <= NOTHING:
            break
        # Of flows that a state was made of, and the best there are in it.
        moved = abs(found.rate / sum(flows.going) - 1)
        answer = found
        if moved < CONVERGED:
            break
        # Part of the way, ever less: flows that jump between two ways would never settle.
        flows = _between(flows, found.flows, 2 / (rounds + 1))
        state = settle(net, flows, state)
    return _FixedPoint(answer, state, rounds, moved)


def _between(a: Flows, b: Flows, part: float) -> Flows:
    """So far from `a` to `b`."""
    return Flows(
        entering=tuple(x + part * (y - x) for x, y in zip(a.entering, b.entering, strict=True)),
        going=tuple(x + part * (y - x) for x, y in zip(a.going, b.going, strict=True)),
    )


class _At(NamedTuple):
    """A rate, the state there, and the part of the requests that keep the goal."""

    rate: float
    state: State
    kept: float


def _highest(net: Net, answer: Answer, start: State) -> _At:
    """The highest rate of the answer's flows at which just enough keep the goal; 0: at none."""
    wanted = net.problem.goal.share

    def at(factor: float) -> _At:
        scaled = answer.flows.times(factor)
        state = settle(net, scaled, start)
        return _At(factor * answer.rate, state, keeping(net, scaled, state))

    low, high = NEAR
    best = at(high)
    if best.kept >= wanted:
        return best
    best = at(low)
    if best.kept < wanted:
        low, high = LEAST, low
        best = at(low)
        if best.kept < wanted:
            return best._replace(rate=0.0)
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        tried = at(middle)
        if tried.kept >= wanted:
            low, best = middle, tried
        else:
            high = middle
    return best


# ---------------------------------------------------------------------------------------- money


def _cost_per_h(net: Net, assignment: Assignment, flows: Flows, part: float, state: State) -> float:
    """Chips of its workers, rent of the lines it uses, and what goes over them of that part."""
    cost = assignment.chips_per_h(net.problem)
    sent: dict[frozenset[str], float] = {}
    for path, rate in zip(net.paths, flows.going, strict=True):
        if path.line is not None and rate:
            ends = frozenset(path.line)
            sent[ends] = sent.get(ends, 0.0) + rate * terms_of(net, path, state).wire_bytes
    for ends, bytes_per_s in sent.items():
        line = net.ground.line(*sorted(ends))
        assert line is not None  # the path that took it was laid along it
        cost += line.rent_per_h + 3600 * part * bytes_per_s / line.wire_ratio / 1e9 * line.per_gb
    return cost


# ----------------------------------------------------------------------- values of little worth


def _rough(net: Net, assignment: Assignment, answer: Answer) -> Value:
    served = net.problem.served(answer.rate)
    part = served / answer.rate
    return Value(
        assignment=assignment,
        rate=answer.rate,
        served=served,
        programme_rate=answer.rate,
        cost_per_h=_cost_per_h(net, assignment, answer.flows, part, empty_state(net)),
        rounds=1,
        moved=1.0,
        binding=answer.binding,
        rough=True,
    )


def _nothing(problem: Problem, assignment: Assignment, why: str) -> Value:
    return Value(
        assignment=assignment,
        rate=0.0,
        served=0.0,
        programme_rate=0.0,
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
    for kind, request in enumerate(net.problem.classes):
        if kind in ways:
            continue
        if not net.joined:
            return "no line joins a site that prefills to one that decodes"
        most = max(group.shape.kv_tokens for group in net.groups)
        return (
            f"requests of {request.prompt:.0f} + {request.output:.0f} tokens do not fit any "
            f"worker's memory: {most} tokens at most"
        )
    return ""


def _late(net: Net) -> str:
    """Why nothing can be served in time."""
    goal = net.problem.goal
    late = longest_s = 0.0
    for kind, share in enumerate(net.problem.shares):
        alone_s = min(
            net.prefill_s(kind, place, 1.0) + 2 * net.ground.home_s(net.groups[place].pool.site)
            for where, place in net.entries
            if where == kind
        )
        longest_s = max(longest_s, alone_s)
        late += share if alone_s > goal.ttft_s else 0.0
    if late > 1 - goal.share:
        return (
            f"{late:.0%} of the requests miss TTFT {goal.ttft_s:g} s with nobody before them; the "
            f"longest take {longest_s:.3g} s"
        )
    step_s = min(step for step in empty_state(net).step_s if step)
    return (
        f"too few keep {goal.tpot_s:g} s per token: a decode step of one sequence takes "
        f"{step_s:.3g} s at least, and KV that is still on its way delays the second token"
    )
