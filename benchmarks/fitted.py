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

from orchestrator.catalogue import load_catalogue
from orchestrator.replay.driver import Replay
from orchestrator.replay.lines.model import CodecModel
from orchestrator.replay.outcome import Outcome
from orchestrator.replay.prompt import Prompt
from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.state.views import SAME_SITE_RTT_S
from orchestrator.topology.core import core_config
from orchestrator.topology.schema import Topology
from workers.api.messages import Role
from workers.costs import MeasuredCosts

APART_S = 600.0  # of two requests of a replay: each is alone


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
    output: int
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

    A prefill step takes `chunk_step_s` and `token_s` for each of its tokens. A decode step takes
    that of who decodes (`local_step_s`: the prefill's worker) and `context_s` times the context.
    `line_wait_s`: what KV takes longer than over a line of the topology's rate and delay; `layers`:
    in which a chunk's KV leaves the prefill.
    """

    chunk_step_s: float
    token_s: float
    slower: dict[str, float]
    local_step_s: float
    relay_step_s: float
    main_step_s: float
    context_s: float
    kv_bytes_per_token: int
    ratio: float
    line_wait_s: float
    client_s: float
    layers: int

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
            decode_step_s=step_s,
            context_s=self.context_s,
        )


def fit(samples: Sequence[Sample], topology: Topology, gateway_site: str) -> Fitted:
    """The constants that explain the probes. Raises ValueError where they cannot."""
    probed = _Probed(samples, topology, gateway_site)
    chunk_step_s, token_s = prefill = probed.prefill()
    local_step_s, relay_step_s, main_step_s, context_s = probed.decode()
    raw = sum(s.raw_bytes for s in probed.far)
    fitted = Fitted(
        chunk_step_s=chunk_step_s,
        token_s=token_s,
        slower={route: probed.slower(route, prefill) for route in Route},
        local_step_s=local_step_s,
        relay_step_s=relay_step_s or local_step_s,  # it may have been too short to see
        main_step_s=main_step_s or local_step_s,
        context_s=context_s,
        kv_bytes_per_token=round(raw / sum(s.prompt for s in probed.far)),
        ratio=raw / sum(s.wire_bytes for s in probed.far),
        line_wait_s=0.0,
        client_s=fmean(s.client_s for s in samples),
        layers=probed.layers,
    )
    late = [
        s.landed_s - _replayed_landing_s(fitted, topology, gateway_site, s)
        for s in probed.far
        if s.landed_s is not None
    ]
    return replace(fitted, line_wait_s=max(0.0, fmean(late)) if late else 0.0)


class _Probed:
    """Probes by their routes, and what they show."""

    def __init__(self, samples: Sequence[Sample], topology: Topology, gateway_site: str) -> None:
        of = {route: [s for s in samples if s.route is route] for route in Route}
        for route, probes in of.items():
            if not probes:
                raise ValueError(f"no probe of the {route} route")
        self.far = [*of[Route.DIRECT], *of[Route.RELAY]]
        self._of = of
        self._samples = samples
        self._home = gateway_site
        self._delays = {(site, site): SAME_SITE_RTT_S / 2 for site in topology.sites}
        for link in topology.links:
            a, b = link.between
            self._delays[a, b] = self._delays[b, a] = link.delay_s
        site, pool, _ = of[Route.LOCAL][0].workers["prefill"].split("/")
        prefill = topology.sites[site].pools[pool]
        self._chunk = prefill.chunk_tokens
        facts = load_catalogue().models.get(topology.model)
        shape = None if facts is None else facts.architecture
        # A simulated engine has all layers of a chunk at once; of other models nobody knows.
        self.layers = 1 if shape is None or prefill.engine == "simulated" else shape.layers

    def prefill(self) -> Sequence[float]:
        """Seconds per step, and per token."""
        local = self._of[Route.LOCAL]
        rows = [_prefill_row(sample.prompt, self._chunk) for sample in local]
        found = _least_squares(rows, [self._computed_s(sample) for sample in local])
        if not found[1]:
            raise ValueError("a prefill does not take longer the longer its prompt is")
        return found

    def slower(self, route: Route, prefill: Sequence[float]) -> float:
        """A route's prefills over what `prefill` says of them."""
        took_s = sum(self._computed_s(sample) for sample in self._of[route])
        rows = [_prefill_row(sample.prompt, self._chunk) for sample in self._of[route]]
        return took_s / float(np.sum(np.array(rows) @ prefill))

    def decode(self) -> Sequence[float]:
        """Seconds per step of the prefill's worker, of the relay and of main; per context token."""
        rows, steps_s = [], []
        for sample in self._samples:
            if sample.step_s is not None:
                far = float(sample.route is not Route.LOCAL)
                rows.append((1 - far, 0.0, far, sample.context))
                steps_s.append(sample.step_s)
            if sample.relay_step_s is not None:
                rows.append((0.0, 1.0, 0.0, float(sample.prompt)))
                steps_s.append(sample.relay_step_s)
        return _least_squares(rows, steps_s)

    def _computed_s(self, sample: Sample) -> float:
        return sample.prefill_s - self._there_and_back_s(sample, "prefill")

    def _there_and_back_s(self, sample: Sample, role: str) -> float:
        return 2 * self._delays[self._home, _site(sample, role)]


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
                layers=fitted.layers,
            )
            for site, place in topology.sites.items()
            for name, pool in place.pools.items()
            for number in range(pool.instances)
        ),
        lines=tuple(
            LineSpec(
                between=link.between,
                bytes_per_s=link.rate_bytes_per_s,
                delay_s=link.delay_s,
                codec=CodecModel(ratio=fitted.ratio, wait_s=fitted.line_wait_s),
            )
            for link in topology.links
        ),
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


def _replayed_landing_s(
    fitted: Fitted, topology: Topology, gateway_site: str, sample: Sample
) -> float:
    """As `Sample.landed_s`, in a replay."""
    setup = make_setup(fitted, topology, gateway_site, sample.route)
    (outcome,) = replay(
        setup,
        route=sample.route,
        handoff=None,
        prompt=sample.prompt,
        output=sample.output,
        requests=1,
    )
    if not isinstance(outcome.end, Finish):
        raise ValueError(f"a replayed probe did not end well: {outcome.end}")
    told = outcome.end.summary
    return (told.prefill_s or 0.0) + (told.kv_transfer_s or 0.0)


def _site(sample: Sample, role: str) -> str:
    return sample.workers[role].split("/")[0]


def _prefill_row(prompt: int, chunk: int) -> tuple[float, float]:
    """A prompt's steps and its tokens."""
    return float(ceil(prompt / chunk)), float(prompt)


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
