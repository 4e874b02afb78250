"""What a live deployment of two sites costs, from probes of it, and the replay of it.

A probe is one request, alone, of a length that is not judged. All constants are the whole
machine's: three workers, the gateway and an emulated line may share its cores, so what a worker
does while it also sends KV has constants of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil
from statistics import fmean

import numpy as np

from orchestrator.replay.driver import Replay
from orchestrator.replay.lines.model import CodecModel
from orchestrator.replay.outcome import Outcome
from orchestrator.replay.prompt import Prompt
from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.state.views import SAME_SITE_RTT_S
from orchestrator.topology.core import core_config
from orchestrator.topology.schema import Pool, Topology
from workers.api.messages import Role
from workers.costs import MeasuredCosts

APART_S = 600.0  # of two requests of a replay: each is alone
_AT_ONCE_S = 1e-3  # what is sent inside a site in less is not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One probe. Seconds; None: it does not show that.

    `client_s`: of the time to the first token, what passed outside the gateway's core.
    `prefill_s`: from the start of its prefill to the first token, at the gateway; `landed_s`: to
    the news that main has all the KV. `second_s`: between the first two tokens. `relay_step_s`: of
    the relay while KV is sent; `step_s`: of who decodes at the end, at `context` tokens.
    `workers`: of each role.
    """

    route: Route
    prompt: int
    context: float
    client_s: float
    prefill_s: float
    landed_s: float | None
    second_s: float
    relay_step_s: float | None
    step_s: float | None
    raw_bytes: int
    wire_bytes: int
    workers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants of a machine. `slower`: a prefill's time on each route over that on local's.

    A prefill step takes `chunk_step_s` and, for each of its tokens, `token_s` and `attention_s`
    times the tokens before it. A decode step takes that of who decodes (`local_step_s`: the
    prefill's worker) and `context_s` times the context. `line_wait_s`: KV's, beside the line.
    """

    chunk_step_s: float
    token_s: float
    attention_s: float
    slower: dict[str, float]
    local_step_s: float
    relay_step_s: float
    main_step_s: float
    context_s: float
    kv_bytes_per_token: int
    ratio: float
    line_bytes_per_s: float
    line_wait_s: float
    site_bytes_per_s: float
    client_s: float

    def costs(self, roles: frozenset[Role], route: Route) -> MeasuredCosts:
        """Of a worker of a pool with these roles."""
        slower, step_s = 1.0, self.main_step_s
        if Role.PREFILL in roles:
            slower, step_s = self.slower[route], self.local_step_s
        elif Role.RELAY in roles:
            step_s = self.relay_step_s
        return MeasuredCosts(
            prefill_tokens_per_s=1 / (slower * self.token_s),
            chunk_step_s=slower * self.chunk_step_s,
            attention_s=slower * self.attention_s,
            decode_step_s=step_s,
            context_s=self.context_s,
        )


def fit(samples: Sequence[Sample], topology: Topology, gateway_site: str) -> Fitted:
    """The constants that explain the probes. Raises ValueError when a route was not probed."""
    of = {route: [s for s in samples if s.route is route] for route in Route}
    for route, probed in of.items():
        if not probed:
            raise ValueError(f"no probe of the {route} route")
    delays = _delays(topology, gateway_site)
    chunk = _pool(topology, of[Route.LOCAL][0].workers["prefill"]).chunk_tokens

    def there_and_back_s(sample: Sample, role: str) -> float:
        return 2 * delays[gateway_site, _site(sample, role)]

    def computed_s(sample: Sample) -> float:
        return sample.prefill_s - there_and_back_s(sample, "prefill")

    rows = [_prefill_row(sample.prompt, chunk) for sample in of[Route.LOCAL]]
    prefill = _least_squares(rows, [computed_s(sample) for sample in of[Route.LOCAL]])
    if not prefill[1]:
        raise ValueError("a prefill does not take longer the longer its prompt is")

    def slower(route: Route) -> float:
        wanted = sum(float(np.dot(prefill, _prefill_row(s.prompt, chunk))) for s in of[route])
        return sum(computed_s(sample) for sample in of[route]) / wanted

    local = [s for s in of[Route.LOCAL] if s.step_s is not None]
    local_step_s, context_s = _least_squares(
        [(1.0, s.context) for s in local], [s.step_s or 0.0 for s in local]
    )
    far = [*of[Route.DIRECT], *of[Route.RELAY]]
    main_steps = [s.step_s - context_s * s.context for s in far if s.step_s is not None]
    relay_steps = [
        s.relay_step_s - context_s * s.prompt for s in of[Route.RELAY] if s.relay_step_s is not None
    ]
    raw, wire = sum(s.raw_bytes for s in far), sum(s.wire_bytes for s in far)
    line = _line(far, topology, delays, gateway_site)

    def late_s(sample: Sample) -> float:
        """What the relay waited for the last of its KV."""
        step_s = sample.relay_step_s or local_step_s + context_s * sample.prompt
        return sample.second_s - there_and_back_s(sample, "relay") - step_s

    relayed = of[Route.RELAY]
    last_bytes = sum((s.prompt % chunk or chunk) * s.raw_bytes / s.prompt for s in relayed)
    return Fitted(
        chunk_step_s=prefill[0],
        token_s=prefill[1],
        attention_s=prefill[2],
        slower={route: slower(route) for route in Route},
        local_step_s=local_step_s,
        relay_step_s=fmean(relay_steps or [local_step_s]),
        main_step_s=fmean(main_steps or [local_step_s]),
        context_s=context_s,
        kv_bytes_per_token=round(raw / sum(s.prompt for s in far)),
        ratio=raw / wire,
        line_bytes_per_s=line[0],
        line_wait_s=line[1],
        site_bytes_per_s=last_bytes / sum(max(_AT_ONCE_S, late_s(s)) for s in relayed),
        client_s=fmean(s.client_s for s in samples),
    )


def make_setup(fitted: Fitted, topology: Topology, gateway_site: str, route: Route) -> ReplaySetup:
    """The deployment as it is while requests take one route."""
    return ReplaySetup(
        core=replace(core_config(topology, "replay"), gateway_site=gateway_site),
        workers=tuple(
            ModelSpec(
                name=f"{site}/{name}/{number}",
                site=site,
                roles=pool.roles,
                costs=fitted.costs(pool.roles, route),
                slots=pool.slots,
                kv_tokens=pool.kv_tokens,
                kv_bytes_per_token=fitted.kv_bytes_per_token,
                max_context=pool.kv_tokens,
                chunk_tokens=pool.chunk_tokens,
            )
            for site, place in topology.sites.items()
            for name, pool in place.pools.items()
            for number in range(pool.instances)
        ),
        lines=tuple(
            LineSpec(
                between=link.between,
                bytes_per_s=fitted.line_bytes_per_s,
                delay_s=link.delay_s,
                codec=CodecModel(ratio=fitted.ratio, wait_s=fitted.line_wait_s),
            )
            for link in topology.links
        ),
        site_bytes_per_s=fitted.site_bytes_per_s,
        every_step=True,
    )


def replay(
    setup: ReplaySetup,
    *,
    route: Route,
    handoff: HandoffMode | None,
    prompt: int,
    output: int,
    requests: int,
) -> list[Outcome]:
    """Requests alike, one after another."""
    world = Replay(setup)
    asks = [
        Arrived(
            request=f"r{number}",
            prompt_ids=Prompt(prompt),
            limit=output,
            route=route,
            handoff=handoff,
        )
        for number in range(requests)
    ]
    world.run((number * APART_S, ask) for number, ask in enumerate(asks))
    return list(world.outcomes.values())


def _delays(topology: Topology, gateway_site: str) -> dict[tuple[str, str], float]:
    """Seconds one way between any two sites with a link, and inside each."""
    delays = {(site, site): SAME_SITE_RTT_S / 2 for site in topology.sites}
    for link in topology.links:
        a, b = link.between
        delays[a, b] = delays[b, a] = link.delay_s
    return delays


def _site(sample: Sample, role: str) -> str:
    return sample.workers[role].split("/")[0]


def _pool(topology: Topology, worker: str) -> Pool:
    site, pool, _ = worker.split("/")
    return topology.sites[site].pools[pool]


def _prefill_row(prompt: int, chunk: int) -> tuple[float, float, float]:
    """A prompt's steps, its tokens, and the tokens before each of them together."""
    return float(ceil(prompt / chunk)), float(prompt), prompt * prompt / 2


def _line(
    far: Sequence[Sample],
    topology: Topology,
    delays: Mapping[tuple[str, str], float],
    gateway_site: str,
) -> tuple[float, float]:
    """Bytes per second of the line between the sites, and seconds that KV waits beside it.

    The start reaches prefill, whose offer goes to main and back; then the line is never idle, and
    after its last byte main's news goes to the gateway.
    """
    rows, waits = [], []
    for sample in far:
        if sample.landed_s is None:
            continue
        near, there = _site(sample, "prefill"), _site(sample, "main")
        messages_s = delays[gateway_site, near] + delays[gateway_site, there]
        rows.append((sample.wire_bytes, 1.0))
        waits.append(sample.landed_s - messages_s - 3 * delays[near, there])
    if not rows:  # it had all gone before the prefill's end
        return topology.links[0].rate_bytes_per_s, 0.0
    byte_s, wait_s = _least_squares(rows, waits)
    return 1 / byte_s, wait_s


def _least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The factors, none below 0, that make `rows` the `values`, with the least relative errors."""
    given, wanted = np.array(rows, dtype=float), np.array(values)
    given, wanted = given / wanted[:, None], np.ones(len(wanted))
    columns = range(given.shape[1])
    best, least = [0.0] * len(columns), np.inf
    for count in range(1, len(columns) + 1):
        for chosen in combinations(columns, count):
            found = np.linalg.lstsq(given[:, chosen], wanted)[0]
            error = float(np.sum((given[:, chosen] @ found - wanted) ** 2))
            if (found >= 0).all() and error < least - 1e-12:
                least, best = error, [0.0] * len(columns)
                for column, factor in zip(chosen, found, strict=True):
                    best[column] = float(factor)
    return best
