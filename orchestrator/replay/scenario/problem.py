"""From a scenario to what the planner plans with, and from a plan back to a scenario."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from math import inf

from orchestrator.errors import UserError
from orchestrator.plan.assignment import ROLES, Assignment
from orchestrator.plan.demand import Asked, classes_of, total_rate
from orchestrator.plan.problem import ALL_ROLES, Burst, Goal, Line, Problem, Shape
from orchestrator.plan.problem import Pool as PlanPool
from orchestrator.replay.scenario.build import CHUNK_TOKENS, SLOTS, line_of, pool_costs
from orchestrator.replay.scenario.impossible import GB, kv_gb, says
from orchestrator.replay.scenario.schema import Compared, LinePrice, Scenario
from orchestrator.replay.scenario.workload import make_workload, warming
from orchestrator.replay.workload.generated import PDD_BURST, PDD_BURST_S, PDD_CALM_S
from orchestrator.replay.workload.request import Workload
from orchestrator.topology.schema import Pool, Site, Topology
from workers.api.messages import Role

MOST_READ = 40_000  # requests of a workload that are looked at
MOST_CLASSES = 6
LATE_REUSE = 0.9  # the part of what is found again that a cache should be large enough for


def problem_of(
    scenario: Scenario,
    *,
    workload: Workload | None = None,
    demand: float | None = None,
    keep_roles: bool = False,
    running: bool = False,
    most_classes: int = MOST_CLASSES,
) -> Problem:
    """The scenario's topology with its workload, prices and goal; `demand` None: no more than can
    be served is wanted.

    A pool may take every role, unless its roles are to be kept, and have any number of workers of
    any size, unless they are `running`. Raises UserError, with the numbers, for pools none of whose
    shapes can hold the model, and for workloads without requests.
    """
    topology = scenario.file.topology
    asked, reused_tokens = read_demand(make_workload(scenario) if workload is None else workload)
    classes = classes_of(asked, most_classes)
    if not classes:
        raise UserError("workload: it has no requests to plan for")
    longest = max(request.prompt + request.output for request in asked)
    burst, calm = burst_of(scenario, asked)
    classes = [replace(kind, rate=kind.rate * calm) for kind in classes]
    pools = tuple(_pools(scenario, topology, longest, keep_roles=keep_roles, running=running))
    priced = all(price is not None for _, price in pools)
    return Problem(
        pools=tuple(
            _priced(pool, price if priced and price is not None else 1.0) for pool, price in pools
        ),
        lines=tuple(_lines(scenario, topology)),
        classes=tuple(classes),
        goal=Goal(
            ttft_s=scenario.goal.ttft_s,
            tpot_s=scenario.goal.tpot_s,
            second_s=inf if scenario.goal.second_token_s is None else scenario.goal.second_token_s,
        ),
        gateway_site=topology.gateway.site,
        kv_bytes_per_token=scenario.catalogue.models[topology.model].kv_bytes_per_token.value,
        demand=demand,
        reused_tokens=reused_tokens,
        gap_cv2=1.0 if burst else _gap_cv2(asked),
        burst=burst,
        handoff_bound_s=topology.policy.handoff_bound_s,
        site_bytes_per_s={name: site.rate_bytes_per_s for name, site in topology.sites.items()},
        priced=priced,
    )


def asked_rate(problem: Problem) -> float:
    """Requests/s of the workload itself."""
    return total_rate(problem.classes)


# ----------------------------------------------------------------------------------- workload


def read_demand(workload: Workload) -> tuple[list[Asked], float]:
    """Its requests (the first MOST_READ), with what a cache that never forgets would find of each;
    and the tokens that a cache must hold to find nearly all of it.

    Between two uses of a block a least-recently-used cache must keep all that is new, and all that
    is found again.
    """
    size, first = workload.block_tokens, warming(workload)
    last_seen: dict[int, int] = {}  # block -> number of the request
    new_before, found_before = [0], [0]  # tokens, summed over all requests before
    reused: set[int] = set()
    asked: list[Asked] = []
    apart: list[tuple[int, int, int]] = []  # (request before, request, tokens found)
    for number, request in enumerate(islice(workload.requests(), first + MOST_READ)):
        depth = 0
        for block in request.blocks:
            if block not in last_seen:
                break
            depth += 1
        if depth:
            before = last_seen[request.blocks[depth - 1]]
            apart.append((before, number, depth * size))
            reused.update(request.blocks[:depth])
        last_seen.update(dict.fromkeys(request.blocks, number))
        hit = min(depth * size, request.prompt - 1)
        new_before.append(new_before[-1] + request.prompt - hit)
        found_before.append(found_before[-1] + hit)
        if number >= first:
            asked.append(Asked(request.at, request.prompt, request.output, hit))
    distances = sorted(
        (
            new_before[number]
            - new_before[before]
            + min(found_before[number] - found_before[before], len(reused) * size),
            tokens,
        )
        for before, number, tokens in apart
    )
    left = LATE_REUSE * sum(tokens for _, tokens in distances)
    for distance, tokens in distances:
        left -= tokens
        if left <= 0:
            return asked, float(distance)
    return asked, 0.0


def burst_of(scenario: Scenario, asked: list[Asked]) -> tuple[Burst | None, float]:
    """The worst burst that the file speaks of, and the rate outside it over the mean rate."""
    workload = scenario.file.workload
    if workload.preset is not None:
        bursts = [(PDD_CALM_S, PDD_CALM_S + PDD_BURST_S, PDD_BURST)]
    elif workload.generated is not None:
        bursts = [(b.at_s, b.until_s, b.factor) for b in workload.generated.bursts]
    else:
        bursts = []
    span = asked[-1].at - asked[0].at
    # Its times are those of the rate it was made for.
    own = [(begin, min(end, span), factor) for begin, end, factor in bursts if begin < span]
    if not own or workload.limit is not None or workload.rate_per_s is not None:
        return None, 1.0
    more = sum((end - begin) * (factor - 1) for begin, end, factor in own)
    calm = span / (span + more)
    begin, end, factor = max(own, key=lambda b: (b[1] - b[0]) * (b[2] - 1))
    share = (end - begin) * factor * calm / span
    return Burst(factor=factor, seconds=end - begin, share=share), calm


def _gap_cv2(asked: list[Asked]) -> float:
    """Squared cv of the times between arrivals, from 0 to 10; 1 where there are too few."""
    gaps = [b.at - a.at for a, b in pairwise(asked)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    if len(gaps) < 100 or not mean:
        return 1.0
    return min(10.0, sum((gap / mean - 1) ** 2 for gap in gaps) / len(gaps))


# --------------------------------------------------------------------------- pools and lines


def _pools(
    scenario: Scenario, topology: Topology, longest: int, *, keep_roles: bool, running: bool
) -> Iterator[tuple[PlanPool, float | None]]:
    for site, place in topology.sites.items():
        for name, pool in place.pools.items():
            shapes = tuple(_shapes(scenario, topology, pool, running=running))
            # What cannot hold the longest request would refuse it; if no shape can, that is told.
            shapes = tuple(shape for shape in shapes if shape.kv_tokens > longest) or shapes[-1:]
            found = _pool(site, name, pool, shapes, pool.roles if keep_roles else ALL_ROLES)
            if pool.kv_store is not None:
                found = replace(
                    found,
                    store_tokens=_stored_tokens(scenario, topology, place),
                    store_bytes_per_s=scenario.file.stores.dram_bytes_per_s,
                )
            if running:
                found = replace(found, chips=pool.instances * pool.parallel)
            yield found, _price(scenario, site, name, pool)


def _pool(
    site: str, name: str, pool: Pool, shapes: tuple[Shape, ...], roles: frozenset[Role]
) -> PlanPool:
    return PlanPool(
        name=f"{site}/{name}",
        site=site,
        chip=pool.chip,
        chips=pool.count,
        shapes=shapes,
        price_per_h=0.0,
        roles=roles,
        slots=pool.slots if says(pool, "slots") else SLOTS,
        chunk_tokens=pool.chunk_tokens if says(pool, "chunk_tokens") else CHUNK_TOKENS,
    )


def _stored_tokens(scenario: Scenario, topology: Topology, place: Site) -> float:
    """What a site's stores may hold: each as much as its larger tier, which has the other's too."""
    kept = [pool.kv_store for pool in place.pools.values() if pool.kv_store is not None]
    nbytes = sum(max(k.dram_bytes, 0 if k.nvme is None else k.nvme.size_bytes) for k in kept)
    return nbytes / scenario.catalogue.models[topology.model].kv_bytes_per_token.value


def _shapes(
    scenario: Scenario, topology: Topology, pool: Pool, *, running: bool
) -> Iterator[Shape]:
    """Powers of two, and what the file says, inside one scale-up domain, that hold the model.

    Of running workers only theirs, and as many as there are.
    """
    domain = min(pool.scale_up or pool.count, pool.count)
    sizes = {1 << power for power in range(domain.bit_length()) if 1 << power <= domain}
    if running or pool.engine == "simulated":
        sizes = set()
    facts = scenario.catalogue.models[topology.model]
    for size in sorted(sizes | {pool.parallel}):
        changed = pool.model_copy(update={"parallel": size})
        tokens = kv_gb(scenario, topology, changed) * GB / facts.kv_bytes_per_token.value
        if says(pool, "kv_tokens"):
            tokens = pool.kv_tokens
        if tokens < 1:
            continue
        domains, rest = divmod(pool.count, domain)
        yield Shape(
            parallel=size,
            most=pool.instances if running else domains * (domain // size) + rest // size,
            costs=pool_costs(scenario, topology, changed),
            kv_tokens=int(tokens),
        )


def _price(scenario: Scenario, site: str, name: str, pool: Pool) -> float | None:
    prices = scenario.file.prices
    return prices.pools.get(f"{site}/{name}", prices.chips.get(pool.chip, pool.price_per_h))


def _priced(pool: PlanPool, price: float) -> PlanPool:
    return replace(pool, price_per_h=price)


def _lines(scenario: Scenario, topology: Topology) -> Iterator[Line]:
    prices = {frozenset(line.between): line for line in scenario.file.prices.lines}
    for link in topology.links:
        price = prices.get(frozenset(link.between), LinePrice(between=link.between))
        spec = line_of(link, scenario, topology, Compared(name="plan"))
        yield Line(
            between=link.between,
            bytes_per_s=spec.model().goodput_bytes_per_s() * spec.codec.ratio,
            delay_s=link.delay_s + 0.8 * link.jitter_s,  # the mean of what only widens it
            wire_ratio=spec.codec.ratio,
            rent_per_h=price.rent_per_h,
            per_gb=(link.price_per_gb or 0.0) if price.per_gb is None else price.per_gb,
        )


# -------------------------------------------------------------------------------- and back


def roles_by_plan(scenario: Scenario, assignment: Assignment, name: str = "plan") -> Scenario:
    """The scenario with one policy, on a topology whose workers do what the assignment says.

    A pool whose workers have several roles becomes one pool for each; what nobody uses is left out.
    """
    topology = scenario.file.topology
    sites, prices = {}, {}
    for site, place in topology.sites.items():
        pools = {}
        for pool_name, pool in place.pools.items():
            post = assignment.post(f"{site}/{pool_name}")
            price = _price(scenario, site, pool_name, pool)
            roles = [role for role in ROLES if post.count(role)]
            for role in roles:
                called = pool_name if len(roles) == 1 else f"{pool_name}-{role.value}"
                count = post.count(role)
                pools[called] = _as(pool, role, count, post.parallel)
                if price is not None:
                    prices[f"{site}/{called}"] = price
        sites[site] = Site(launch=place.launch, pools=pools)
    planned = topology.model_copy(update={"sites": sites})
    file = scenario.file.model_copy(
        update={
            "topology": planned,
            "policies": (Compared(name=name),),
            "prices": scenario.file.prices.model_copy(update={"pools": prices}),
        }
    )
    return scenario.with_file(file)


def with_plan(scenario: Scenario, assignment: Assignment, name: str = "plan") -> Scenario:
    """The scenario with one policy more, of that name: the assignment's topology."""
    planned = roles_by_plan(scenario, assignment, name).file
    policy = Compared(name=name, topology=planned.topology)
    others = tuple(other for other in scenario.file.policies if other.name != name)
    prices = scenario.file.prices
    prices = prices.model_copy(update={"pools": planned.prices.pools | prices.pools})
    changes = {"policies": (*others, policy), "prices": prices}
    return scenario.with_file(scenario.file.model_copy(update=changes))


def _as(pool: Pool, role: Role, workers: int, parallel: int) -> Pool:
    changes = {"roles": frozenset({role}), "instances": workers, "parallel": parallel}
    return pool.model_copy(update={**changes, "count": workers * parallel})
