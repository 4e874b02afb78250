"""Ways a request can go through an assignment, and what each takes in a given state.

After PDD (arXiv 2609.13161): KV lands max(0, V / B + wait - prefill) + d after prefill ends, and a
relay decodes until main has it and the handover is done. All times are seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import exp
from typing import NamedTuple

from orchestrator.plan.assignment import Group
from orchestrator.plan.problem import Ground, Problem
from orchestrator.plan.speeds import Decoding, extend_s, prefill_alone_s, prefill_busy_s
from workers.api.messages import PREFILL, RELAY
from workers.costs import Costs

# A pace of a tenth below the relay's speed builds one second of lead in so many; see
# `orchestrator.policy.handoff`.
PACE_RATIO = 1.1
RACE_RATIO = 0.9
Ends = tuple[str, str]  # from, to


class Path(NamedTuple):
    """A class's way from the prefill site. `relay` and `main` are places in the groups."""

    kind: int
    site: str
    relay: int | None
    main: int
    line: Ends | None  # None: main is in the same site

    @property
    def route(self) -> str:
        return "local" if self.line is None else "direct" if self.relay is None else "relay"


class Terms(NamedTuple):
    """What one request takes on its path.

    `kv_s`: from prefill's end until main has all KV; `stall_s`: what the wait for the second token
    is longer than a step; `hold_s`: from prefill's end until relay has handed over; `wire_bytes`:
    raw KV that goes over the line.
    """

    kv_s: float
    wire_bytes: float
    stall_s: float
    relay_tokens: float
    main_tokens: float
    extend_s: float
    hold_s: float


@dataclass(slots=True)
class State:
    """How the workers and lines of a net are, by their places in its groups.

    `batch`: sequences that one worker decodes; `context`: tokens of each; `prefill_s`: of each
    class in each site, alone; `found`: part of the known tokens that the cache still has.
    `step_s` of a batch; `variance`: of that, in s2. `held`: part of the memory or slots in use.
    """

    load: list[float]
    batch: list[float]
    context: list[float]
    step_s: list[float]
    variance: list[float]
    wait_s: list[float]
    held: list[float]
    hold_s: list[float]
    found: list[float]
    line_load: dict[Ends, float]
    line_wait_s: dict[Ends, float]
    prefill_s: dict[tuple[int, str], float]


@dataclass(slots=True)
class Net:
    """An assignment as a graph. `prefills` of each site, `entries` all (class, prefill group)."""

    problem: Problem
    groups: list[Group]
    ground: Ground
    prefills: dict[str, list[int]] = field(default_factory=dict)
    entries: list[tuple[int, int]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    lines: list[Ends] = field(default_factory=list)
    rates: dict[Ends, float] = field(default_factory=dict)
    joined: bool = False  # somebody who prefills reaches somebody who decodes
    decoding: list[Decoding] = field(default_factory=list)  # of each group

    def __post_init__(self) -> None:
        self.decoding = [
            self.ground.decoding(group.pool.name, group.shape.parallel) for group in self.groups
        ]
        relays: dict[str, list[int]] = {}
        mains: list[int] = []
        for place, group in enumerate(self.groups):
            if group.role is PREFILL:
                self.prefills.setdefault(group.pool.site, []).append(place)
            elif group.role is RELAY:
                relays.setdefault(group.pool.site, []).append(place)
            else:
                mains.append(place)
        ends = product(self.prefills, {self.groups[main].pool.site for main in mains})
        self.joined = any(a == b or self.ground.line(a, b) is not None for a, b in ends)
        for kind, what in enumerate(self.problem.classes):
            for places in self.prefills.values():
                for place in places:
                    if what.prompt + 1 <= self.groups[place].shape.kv_tokens:
                        self.entries.append((kind, place))
            fits = [
                main
                for main in mains
                if what.prompt + what.output <= self.groups[main].shape.kv_tokens
            ]
            for site in self.prefills:
                for main in fits:
                    self._lay(kind, site, main, relays.get(site, ()))

    def _lay(self, kind: int, site: str, main: int, relays: "list[int] | tuple[()]") -> None:
        there = self.groups[main].pool.site
        if there == site:
            self.paths.append(Path(kind, site, None, main, None))
            return
        line = self.ground.line(site, there)
        if line is None:
            return
        ends = site, there
        if ends not in self.rates:
            self.lines.append(ends)
            self.rates[ends] = line.bytes_per_s
        self.paths.append(Path(kind, site, None, main, ends))
        if self.problem.classes[kind].output > 1:
            self.paths += (Path(kind, site, relay, main, ends) for relay in relays)

    # ------------------------------------------------------------ in a state

    def missing(self, kind: int, place: int, found: float) -> float:
        """Tokens of a prompt that a group's caches do not have."""
        what = self.problem.classes[kind]
        if self.groups[place].role is PREFILL:
            return max(1.0, what.prompt - found * what.hit)
        return what.prompt - found * what.main_hit

    def prefill_s(self, kind: int, place: int, found: float) -> float:
        """Of a prompt that has the worker for itself."""
        return self._took(prefill_alone_s, kind, place, found)

    def busy_s(self, kind: int, place: int, found: float) -> float:
        """What one more prompt adds to a worker that always has some."""
        return self._took(prefill_busy_s, kind, place, found)

    def _took(
        self, measure: Callable[[Costs, int, int, int], float], kind: int, place: int, found: float
    ) -> float:
        group, known = self.groups[place], self.ground.known_s
        tokens = round(self.missing(kind, place, found))
        what = group.pool.name, group.shape.parallel, kind, tokens, measure is prefill_busy_s
        seconds = known.get(what)
        if seconds is None:
            context = round(self.problem.classes[kind].prompt) - tokens
            seconds = measure(group.shape.costs, tokens, context, group.pool.chunk_tokens)
            known[what] = seconds
        return seconds

    def terms(self, path: Path, state: State) -> Terms:
        """What a path takes as things are."""
        problem, home_s = self.problem, self.ground.home_s
        what = problem.classes[path.kind]
        decoded = max(0.0, what.output - 1)
        main = self.groups[path.main]
        there = main.pool.site
        main_step_s = state.step_s[path.main]
        prefill_s = state.prefill_s[path.kind, path.site]
        nbytes = self.missing(path.kind, path.main, state.found[path.main])
        nbytes *= problem.kv_bytes_per_token
        if path.line is None:
            sending_s, delay_s = (
                nbytes / self.ground.inside_bytes_per_s(there),
                self.ground.delay_s(there, there),
            )
        else:
            sending_s = nbytes / self.rates[path.line] + state.line_wait_s[path.line]
            delay_s = self.ground.delay_s(*path.line)
        # Streaming begins with the first layers, so the wire works while prefill still runs.
        kv_s = max(0.0, sending_s - prefill_s) + delay_s
        token_s = home_s(path.site) + home_s(there)  # the first token's way to main
        turn_s = home_s(there) - home_s(path.site)  # second tokens come from elsewhere
        if path.relay is None:
            stall_s = max(kv_s, token_s) + turn_s + main_step_s / 2
            return Terms(kv_s, nbytes, stall_s, 0.0, decoded, 0.0, 0.0)
        relay_step_s = state.step_s[path.relay]
        assert path.line is not None
        near_s = what.prompt * problem.kv_bytes_per_token
        near_s /= self.ground.inside_bytes_per_s(path.site)
        near_s = max(near_s + self.ground.delay_s(path.site, path.site), 2 * home_s(path.site))
        stall_s = near_s + relay_step_s / 2
        race_s = self._race_s(relay_step_s, main_step_s, token_s)
        # What KV can wait for its turn before the answer has ended without it.
        alone_s = sending_s - state.line_wait_s[path.line]
        spare_s = near_s + decoded * relay_step_s - main_step_s - delay_s + prefill_s - alone_s
        wait_s, turn_comes = self._turn(path.line, spare_s, state)
        nbytes *= turn_comes
        kv_s = max(0.0, alone_s + wait_s - prefill_s) + delay_s
        ready_s = max(0.0, kv_s + main_step_s - near_s)
        before = min(decoded, ready_s / relay_step_s)
        relay_tokens = min(decoded, before + race_s / relay_step_s)
        extend = extend_s(main.shape.costs, round(before), round(what.prompt))
        hold_s = near_s + relay_tokens * relay_step_s
        return Terms(kv_s, nbytes, stall_s, relay_tokens, decoded - before, extend, hold_s)

    def _turn(self, line: Ends, spare_s: float, state: State) -> tuple[float, float]:
        """How long KV waits on average for its turn, at most `spare_s`; and the chance of a turn.

        Waits are zero or exponential, as M/G/1's are nearly. KV of an answer that has ended is
        dropped: so a line that is too slow for all still carries some, and relays do the rest.
        """
        mean_s, load = state.line_wait_s[line], min(1.0, state.line_load[line])
        if not mean_s or not load:
            return 0.0, 1.0
        late = exp(-load * max(0.0, spare_s) / mean_s)
        return mean_s * (1 - late), 1 - load * late

    def _race_s(self, relay_step_s: float, main_step_s: float, rtt_s: float) -> float:
        """How long relay and main both decode: see `orchestrator.policy.handoff`."""
        bound_s = self.problem.handoff_bound_s
        if main_step_s < RACE_RATIO * relay_step_s:
            behind = (rtt_s + main_step_s) / relay_step_s
            race_s = behind / (1 / main_step_s - 1 / relay_step_s)
            if race_s <= bound_s:
                return race_s
        pace_s = max(main_step_s, PACE_RATIO * relay_step_s)
        lead_s = max(0.0, rtt_s + 2 * main_step_s - pace_s)
        return min(bound_s, lead_s / (1 - relay_step_s / pace_s))


def empty_state(net: Net) -> State:
    """Nobody is there yet: no waits, batches of one, all that was ever seen still in the caches."""
    count = len(net.groups)
    shares, classes = net.problem.shares, net.problem.classes
    mean = sum(s * (c.prompt + c.output / 2) for s, c in zip(shares, classes, strict=True))
    steps = [
        0.0 if group.role is PREFILL else decoding.step_s(1, mean)
        for group, decoding in zip(net.groups, net.decoding, strict=True)
    ]
    prefill_s = {
        (kind, site): min(net.prefill_s(kind, place, 1.0) for place in places)
        for kind in range(len(classes))
        for site, places in net.prefills.items()
    }
    return State(
        load=[0.0] * count,
        batch=[1.0] * count,
        context=[mean] * count,
        step_s=steps,
        variance=[0.0] * count,
        wait_s=[0.0] * count,
        held=[0.0] * count,
        hold_s=[0.0] * count,
        found=[1.0] * count,
        line_load=dict.fromkeys(net.lines, 0.0),
        line_wait_s=dict.fromkeys(net.lines, 0.0),
        prefill_s=prefill_s,
    )
