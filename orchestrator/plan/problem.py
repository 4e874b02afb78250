"""What there is to plan with: pools, lines, requests, goals and prices."""

from dataclasses import field
from functools import cached_property
from math import inf

from orchestrator.plan.demand import RequestClass, total_rate
from orchestrator.plan.speeds import Decoding, Prefilling
from orchestrator.state.views import SAME_SITE_BYTES_PER_S, SAME_SITE_RTT_S
from workers.api.messages import Role
from workers.api.record import record
from workers.costs import Costs

ALL_ROLES = frozenset(Role)
SAME_SITE_S = SAME_SITE_RTT_S / 2  # one way between two workers of a site
NO_LINE_S = 0.05  # one way between sites that no lines join


@record
class Shape:
    """A worker of `parallel` chips: what it takes for its steps, and KV tokens it has room for.

    `most`: workers of this shape that fit the pool, none across two scale-up domains.
    """

    parallel: int
    most: int
    costs: Costs
    kv_tokens: int


@record
class Pool:
    """Chips of one kind in one site. `price_per_h`: of one chip. `slots`: legs in one worker.

    `store_tokens`: KV that its site's stores hold, if it has one, beside what is in its workers;
    `store_bytes_per_s`: how fast they give it.
    """

    name: str  # site/pool
    site: str
    chip: str
    chips: int
    shapes: tuple[Shape, ...]
    price_per_h: float
    roles: frozenset[Role] = ALL_ROLES
    slots: int = 256
    chunk_tokens: int = 2048
    store_tokens: float = 0.0
    store_bytes_per_s: float = inf

    def shape(self, parallel: int) -> Shape:
        """The one of so many chips. Raises KeyError where there is none."""
        for shape in self.shapes:
            if shape.parallel == parallel:
                return shape
        raise KeyError(f"{self.name} has no worker of {parallel} chips")


@record
class Line:
    """The line between two sites, both ways alike.

    `bytes_per_s`: of raw KV that it carries each way, whatever codes it; `wire_ratio`: raw bytes
    per byte on the wire. `per_gb`: of 1e9 bytes on the wire.
    """

    between: tuple[str, str]
    bytes_per_s: float
    delay_s: float
    wire_ratio: float = 1.0
    rent_per_h: float = 0.0
    per_gb: float = 0.0

    @property
    def name(self) -> str:
        return "-".join(self.between)


@record
class Goal:
    """What `share` of all requests must keep to, in seconds. `second_s`: to the second token."""

    ttft_s: float
    tpot_s: float
    second_s: float = inf
    share: float = 0.9


@record
class Burst:
    """For `seconds` requests come `factor` times as fast; `share` of all requests come in it."""

    factor: float
    seconds: float
    share: float

    def wait_s(self, load: float) -> float:
        """What a request of the burst waits on average at something that is so loaded before."""
        return max(0.0, self.factor * load - 1) * self.seconds / 2


@record
class Problem:
    """`classes` are served in proportion to their rates. `demand`: requests/s that are wanted.

    `reused_tokens`: what a cache must hold to find all that `hit` says. `gap_cv2`: squared
    coefficient of variation of the times between two arrivals, 1 for Poisson's; a `burst` comes on
    top of all rates. `site_bytes_per_s`: what carries KV inside a site, where its owner says so.
    `priced` False: no prices are known, and a chip's hour counts 1.
    """

    pools: tuple[Pool, ...]
    lines: tuple[Line, ...]
    classes: tuple[RequestClass, ...]
    goal: Goal
    gateway_site: str
    kv_bytes_per_token: float
    demand: float | None = None
    reused_tokens: float = 0.0
    gap_cv2: float = 1.0
    burst: Burst | None = None
    handoff_bound_s: float = 1.0
    site_bytes_per_s: dict[str, float] = field(default_factory=dict)
    priced: bool = True

    @property
    def shares(self) -> tuple[float, ...]:
        """Of each class in all requests."""
        total = total_rate(self.classes)
        return tuple(requests.rate / total for requests in self.classes)

    def served(self, rate: float) -> float:
        """Requests/s of what could be served: no more than are wanted."""
        return rate if self.demand is None else min(rate, self.demand)

    def pool(self, name: str) -> Pool:
        """Raises KeyError."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)


class Ground:
    """What all assignments of a problem have in common, worked out once.

    Sites and how far apart they are, and how fast a worker of each shape is.
    """

    def __init__(self, problem: Problem) -> None:
        self.sites = sorted({pool.site for pool in problem.pools} | {problem.gateway_site})
        self._lines = {frozenset(line.between): line for line in problem.lines}
        self._home = problem.gateway_site
        self._prefilling: dict[tuple[str, int], Prefilling] = {}
        self._decoding: dict[tuple[str, int], Decoding] = {}
        for pool in problem.pools:
            for shape in pool.shapes:
                which = pool.name, shape.parallel
                self._prefilling[which] = Prefilling(shape.costs, pool.chunk_tokens)
                self._decoding[which] = Decoding(shape.costs)
        self._inside_bytes_per_s = problem.site_bytes_per_s

    def prefilling(self, pool: str, parallel: int) -> Prefilling:
        """How a worker of that shape prefills."""
        return self._prefilling[pool, parallel]

    def decoding(self, pool: str, parallel: int) -> Decoding:
        """How a worker of that shape decodes."""
        return self._decoding[pool, parallel]

    def line(self, a: str, b: str) -> Line | None:
        """The one that joins two sites; None: none does."""
        return self._lines.get(frozenset((a, b)))

    def inside_bytes_per_s(self, site: str) -> float:
        """What carries KV from one worker of a site to another."""
        return self._inside_bytes_per_s.get(site, SAME_SITE_BYTES_PER_S)

    def delay_s(self, a: str, b: str) -> float:
        """One way, along the shortest path of lines (Floyd and Warshall 1962)."""
        return self._delays[a, b]

    def home_s(self, site: str) -> float:
        """One way to where the clients are."""
        return self._delays[self._home, site]

    @cached_property
    def _delays(self) -> dict[tuple[str, str], float]:
        delays = {(a, b): inf for a in self.sites for b in self.sites}
        for a in self.sites:
            delays[a, a] = SAME_SITE_S
        for ends, line in self._lines.items():
            a, b = sorted(ends)
            delays[a, b] = delays[b, a] = line.delay_s
        for via in self.sites:
            for a in self.sites:
                for b in self.sites:
                    if a != b:
                        delays[a, b] = min(delays[a, b], delays[a, via] + delays[via, b])
        return {ends: NO_LINE_S if delay == inf else delay for ends, delay in delays.items()}
