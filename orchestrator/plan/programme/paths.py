"""An assignment as a graph: where each class of requests can enter, and which ways lead on."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from orchestrator.plan.assignment import Group
from orchestrator.plan.demand import RequestClass
from orchestrator.plan.problem import Ground, Problem
from workers.api.messages import PREFILL, RELAY

Ends = tuple[str, str]  # from, to


class Entry(NamedTuple):
    """A class's way in: its number, and the place of a prefill group."""

    kind: int
    place: int


class Path(NamedTuple):
    """A class's way from the prefill site. `relay` and `main` are places in the groups."""

    kind: int
    site: str
    relay: int | None
    main: int
    line: Ends | None  # None: main is in the same site

    @property
    def route(self) -> str:
        """As the replay names it."""
        return "local" if self.line is None else "direct" if self.relay is None else "relay"


class Net:
    """The groups, and every entry and path of every class between them. Never changed.

    Groups are named by their places in `groups`, classes by theirs in the problem. `prefills`: of
    each site, the groups that prefill; `rates`: bytes/s of each line that some path takes, each way
    for itself; `joined`: somebody who prefills reaches somebody who decodes.
    """

    def __init__(self, problem: Problem, groups: list[Group], ground: Ground) -> None:
        self.problem, self.groups, self.ground = problem, groups, ground
        shapes = [(group.pool.name, group.shape.parallel) for group in groups]
        self.decoding = [ground.decoding(*shape) for shape in shapes]
        self._prefilling = [ground.prefilling(*shape) for shape in shapes]
        self.prefills: dict[str, list[int]] = {}
        self._relays: dict[str, list[int]] = {}
        mains: list[int] = []
        for place, group in enumerate(groups):
            if group.role is PREFILL:
                self.prefills.setdefault(group.pool.site, []).append(place)
            elif group.role is RELAY:
                self._relays.setdefault(group.pool.site, []).append(place)
            else:
                mains.append(place)
        ends = product(self.prefills, {groups[main].pool.site for main in mains})
        self.joined = any(a == b or ground.line(a, b) is not None for a, b in ends)
        self.entries: list[Entry] = []
        self.paths: list[Path] = []
        self.rates: dict[Ends, float] = {}
        for kind, request in enumerate(problem.classes):
            self._enter(kind, request)
            fits = [main for main in mains if self._fits(request, main)]
            for site, main in product(self.prefills, fits):
                self._lay(kind, site, main)

    def _fits(self, request: RequestClass, main: int) -> bool:
        return request.prompt + request.output <= self.groups[main].shape.kv_tokens

    def _enter(self, kind: int, request: RequestClass) -> None:
        for places in self.prefills.values():
            self.entries += (
                Entry(kind, place)
                for place in places
                if request.prompt + 1 <= self.groups[place].shape.kv_tokens
            )

    def _lay(self, kind: int, site: str, main: int) -> None:
        there = self.groups[main].pool.site
        if there == site:
            self.paths.append(Path(kind, site, None, main, None))
            return
        line = self.ground.line(site, there)
        if line is None:
            return
        ends = site, there
        self.rates[ends] = line.bytes_per_s
        self.paths.append(Path(kind, site, None, main, ends))
        if self.problem.classes[kind].output > 1:  # an answer of one token ends with its prefill
            relays = self._relays.get(site, ())
            self.paths += (Path(kind, site, relay, main, ends) for relay in relays)

    # ---------------------------------------------------------------- what a class takes of a group

    def missing(self, kind: int, place: int, cached: float) -> float:
        """Tokens of a prompt that a group lacks if its caches still have that part of its hit."""
        request = self.problem.classes[kind]
        if self.groups[place].role is PREFILL:
            return max(1.0, request.prompt - cached * request.hit)
        return request.prompt - cached * request.main_hit

    def loading_spares(self, place: int) -> float:
        """The part of its cost that a known token in a store of its site spares a group.

        Main would be sent it; a prefill loads it where that is faster than computing it.
        """
        group = self.groups[place]
        if group.role is not PREFILL:
            return 1.0
        load_s = self.problem.kv_bytes_per_token / group.pool.store_bytes_per_s
        return max(0.0, 1.0 - load_s * group.shape.costs.prefill_tokens_per_s)

    def prefill_s(self, kind: int, place: int, cached: float) -> float:
        """Of a prompt that has the worker for itself."""
        return self._prefilling[place].alone_s(*self._computed(kind, place, cached))

    def busy_s(self, kind: int, place: int, cached: float) -> float:
        """What one more prompt adds to a worker that always has some."""
        return self._prefilling[place].busy_s(*self._computed(kind, place, cached))

    def _computed(self, kind: int, place: int, cached: float) -> tuple[int, int]:
        """Tokens of a prompt that are computed, and those before them."""
        tokens = round(self.missing(kind, place, cached))
        return tokens, round(self.problem.classes[kind].prompt) - tokens

    def mixes(self, entering: Sequence[float]) -> dict[int, list[tuple[float, int]]]:
        """By prefill group, (requests/s, class) of all that can enter there."""
        found: dict[int, list[tuple[float, int]]] = {}
        for (kind, place), rate in zip(self.entries, entering, strict=True):
            found.setdefault(place, []).append((rate, kind))
        return found

    def service(self, place: int, mix: Sequence[tuple[float, int]], cached: float) -> "Service":
        """Of a mix of (requests/s, class) in a prefill group."""
        total = first = second = 0.0
        for rate, kind in mix:
            busy_s = self.busy_s(kind, place, cached)
            total += rate
            first += rate * busy_s
            second += rate * busy_s * busy_s
        if not total:
            return Service(0.0, 0.0)
        mean_s = first / total
        return Service(mean_s, second / total / (mean_s * mean_s) - 1)


class Service(NamedTuple):
    """Seconds that a server is busy with a customer: their mean and squared cv."""

    mean_s: float
    cv2: float
