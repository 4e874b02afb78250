"""From a scenario and one of its policies to what a replay is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.catalogue import roofline
from orchestrator.replay.faults import Fault, LineFault, WorkersLost
from orchestrator.replay.lines.model import codec_model
from orchestrator.replay.prompt import Prompt
from orchestrator.replay.scenario.impossible import GB, kv_gb, says
from orchestrator.replay.scenario.schema import Compared, FaultSection, Scenario, StoresSection
from orchestrator.replay.scenario.workload import make_workload, warming, warming_s
from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.replay.stores.tiers import StoreSpec
from orchestrator.replay.workload.request import Workload
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, Route
from orchestrator.topology.core import core_config
from orchestrator.topology.schema import Link, Pool, Simulate, Topology
from workers.costs import Costs, MeasuredCosts

# What a worker is given where its pool does not say: a topology's own defaults are a laptop's.
SLOTS = 256
CHUNK_TOKENS = 2048
WARMING = "warm"  # how the names of requests that only warm the caches begin
USE_EVERY_S = 1.0  # how busy lines and pools are


def build(
    scenario: Scenario, policy: Compared, workload: Workload | None = None
) -> tuple[ReplaySetup, Iterator[tuple[float, Arrived]]]:
    """The deployment under a policy, and who asks when. None: the scenario's own workload.

    Raises UserError for a trace that cannot be read.
    """
    topology = _under(scenario.topology(policy), policy)
    asked = make_workload(scenario) if workload is None else workload
    setup = ReplaySetup(
        core=_core(topology),
        workers=tuple(_workers(scenario, topology)),
        lines=tuple(line_of(link, scenario, topology, policy) for link in topology.links),
        faults=tuple(_faults(scenario.file.faults, topology, start_s=warming_s(asked))),
        block_tokens=asked.block_tokens,
        stores=tuple(_stores(scenario.file.stores, topology)) if policy.kv_stores else (),
        timelines=scenario.file.timelines,
        use_every_s=USE_EVERY_S,
    )
    return setup, _asks(asked, named=policy.prefix_caches)


def _under(topology: Topology, policy: Compared) -> Topology:
    """The topology with what the policy changes."""
    changes = {
        key: value
        for key in ("route", "handoff", "codec")
        if (value := getattr(policy, key)) is not None
    }
    return topology.model_copy(update={"policy": topology.policy.model_copy(update=changes)})


def line_of(link: Link, scenario: Scenario, topology: Topology, policy: Compared) -> LineSpec:
    """A link as the replay lays it."""
    lines = scenario.file.lines
    return LineSpec(
        between=link.between,
        bytes_per_s=link.rate_bytes_per_s,
        delay_s=link.delay_s,
        share=policy.share,
        codec=codec_model(
            topology.policy.codec,
            line_bytes_per_s=link.rate_bytes_per_s,
            cores=lines.codec_cores,
        ),
        loss=link.loss,
        jitter_s=link.jitter_s,
        connections=lines.connections,
        connection_bytes_per_s=lines.connection_bytes_per_s,
        congestion=lines.congestion,
        slow_start=not lines.warm,
        seed=scenario.file.seed,
    )


def _core(topology: Topology) -> CoreConfig:
    return core_config(topology, "replay")


def _faults(
    faults: Sequence[FaultSection], topology: Topology, *, start_s: float
) -> Iterator[Fault]:
    """Those that can befall this topology; hot spots are the workload's. See `NEEDS`."""
    for fault in faults:
        at, until = start_s + fault.at_s, fault.until_s and start_s + fault.until_s
        if fault.between is not None and topology.link(*fault.between) is not None:
            assert until is not None
            yield LineFault(between=fault.between, at=at, until=until, factor=fault.factor or 0.0)
        name = fault.site or fault.worker
        if name is not None and name.split("/")[0] in topology.sites:
            yield WorkersLost(name=name, at=at, until=until)


def _workers(scenario: Scenario, topology: Topology) -> Iterator[ModelSpec]:
    facts = scenario.catalogue.models[topology.model]
    per_token = int(facts.kv_bytes_per_token.value)
    shape = facts.architecture
    layers = 1 if shape is None or scenario.file.lines.overlap == "chunk" else shape.layers
    for site, place in topology.sites.items():
        for name, pool in place.pools.items():
            kv_tokens = (
                pool.kv_tokens
                if says(pool, "kv_tokens")
                else int(kv_gb(scenario, topology, pool) * GB / per_token)
            )
            first = ModelSpec(
                name=f"{site}/{name}/0",
                site=site,
                roles=pool.roles,
                costs=pool_costs(scenario, topology, pool),
                slots=pool.slots if says(pool, "slots") else SLOTS,
                kv_tokens=kv_tokens,
                kv_bytes_per_token=per_token,
                max_context=kv_tokens,
                chunk_tokens=pool.chunk_tokens if says(pool, "chunk_tokens") else CHUNK_TOKENS,
                layers=layers,
                keeps=None if pool.evict is None else pool.evict.orders().plain,
            )
            for number in range(pool.instances):
                yield replace(first, name=f"{site}/{name}/{number}")


def _stores(section: StoresSection, topology: Topology) -> Iterator[StoreSpec]:
    for site, place in topology.sites.items():
        for name, pool in place.pools.items():
            if (kept := pool.kv_store) is not None:
                yield StoreSpec(
                    site=site,
                    pool=name,
                    memory_bytes=kept.dram_bytes,
                    files_bytes=0 if kept.nvme is None else kept.nvme.size_bytes,
                    policy=kept.policy,
                    memory_bytes_per_s=section.dram_bytes_per_s,
                    files_bytes_per_s=section.nvme_bytes_per_s,
                    answer_s=section.answer_s,
                )


def pool_costs(scenario: Scenario, topology: Topology, pool: Pool) -> Costs:
    """What a worker of the pool takes for its steps."""
    if pool.engine == "simulated":
        speed = pool.simulate or Simulate()
        return MeasuredCosts(
            prefill_tokens_per_s=speed.prefill_tokens_per_s, decode_step_s=speed.step_s
        )
    chip, facts = scenario.catalogue.chips[pool.chip], scenario.catalogue.models[topology.model]
    return roofline(chip, facts, pool.parallel)


def _asks(workload: Workload, *, named: bool) -> Iterator[tuple[float, Arrived]]:
    """Prompts without names are found in no cache.

    What only warms the caches goes without a relay, which would end it before main has its KV.
    """
    for number, request in enumerate(workload.requests(), -warming(workload)):
        prompt = Prompt(request.prompt, request.blocks if named else ())
        yield (
            request.at,
            Arrived(
                request=f"r{number}" if number >= 0 else f"{WARMING}{-number}",
                prompt_ids=prompt,
                limit=request.output,
                route=None if number >= 0 else Route.DIRECT,
            ),
        )
