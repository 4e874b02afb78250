"""The workers and stores that a site's pools ask for, as their processes are told of them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.membership.inventory import START_S
from orchestrator.topology.addresses import LOOPBACK
from orchestrator.topology.schema import Topology, Vllm
from workers.api.messages import Role
from workers.engines.vllm import settings
from workers.engines.vllm.settings import VllmSettings
from workers.service.config import Line, Simulated, WorkerConfig
from workers.storage.process import StoreProcessConfig
from workers.tiers.store import UNWRITTEN_BYTES, StoreConfig

HOST = LOOPBACK  # of what only this machine reaches

Roles = Mapping[str, frozenset[Role]]  # of workers that have others than their pool
AS_POOLED: Roles = {}
# What an engine waits for by itself, beside what every worker may take.
ENGINE_START_S = {"vllm": settings.START_S}


def store_configs(
    topology: Topology, site: str, port: Callable[[], int]
) -> tuple[StoreProcessConfig, ...]:
    """The stores of a site's pools, each on a port that `port` gives."""
    tls = topology.security.tls
    return tuple(
        StoreProcessConfig(
            name=f"{site}/{name}/store",
            site=site,
            pool=name,
            host=HOST,
            port=port(),
            tiers=StoreConfig(
                memory_bytes=kept.dram_bytes,
                files=None if kept.nvme is None else Path(kept.nvme.path),
                files_bytes=0 if kept.nvme is None else kept.nvme.size_bytes,
                policy=kept.policy,
                quotas=kept.quotas,
                unwritten_bytes=min(UNWRITTEN_BYTES, kept.dram_bytes // 4),
            ),
            tls=None if tls is None else tls.files(site),
        )
        for name, pool in topology.sites[site].pools.items()
        if (kept := pool.kv_store) is not None
    )


def worker_start_s(topology: Topology, site: str) -> float:
    """How long a worker of a site may take to be up."""
    engines = {pool.engine for pool in topology.sites[site].pools.values()}
    return START_S + max(ENGINE_START_S.get(engine, 0.0) for engine in engines)


def _vllm(section: Vllm) -> VllmSettings:
    """With paths as they are from here: workers run in other folders than this process."""
    python, pools = section.python, section.pools
    if python is not None and "/" in python:
        python = str(Path(python).absolute())
    return VllmSettings(
        python=python,
        args=section.args,
        env=section.env,
        attach=section.attach,
        pools=None if pools is None else str(Path(pools).absolute()),
    )


def worker_configs(
    topology: Topology,
    site: str,
    model: str,
    roles: Roles = AS_POOLED,
    stores: Sequence[StoreProcessConfig] = (),
) -> tuple[WorkerConfig, ...]:
    """The workers of a site's pools. Their ports are 0, for the agent to choose, unless the site
    declares its ports: then the first is the agent's and they have the next.

    Those of a pool with a store save to it, and load from all of the site's `stores`.
    """
    deadlines, tls = topology.policy.deadlines, topology.security.tls
    place = topology.sites[site]
    ports = itertools.repeat(0) if place.port_range is None else iter(place.port_range[1:])
    # On a real line BBR finds the rate; an emulated one is behind loopback, which TCP fills.
    lines = {
        next(end for end in link.between if end != site): Line(
            rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=2 * link.delay_s, paced=link.emulate
        )
        for link in topology.links
        if site in link.between
    }
    configs = []
    for pool_name, pool in place.pools.items():
        speed = pool.simulate
        nearest_first = sorted(stores, key=lambda store: store.pool != pool_name)
        for instance in range(pool.instances):
            name = f"{site}/{pool_name}/{instance}"
            configs.append(
                WorkerConfig(
                    name=name,
                    site=site,
                    pool=pool_name,
                    roles=tuple(sorted(roles.get(name, pool.roles))),
                    model=model,
                    engine=pool.engine,
                    simulated=Simulated()
                    if speed is None
                    else Simulated(
                        prefill_tokens_per_s=speed.prefill_tokens_per_s, step_s=speed.step_s
                    ),
                    kv_tokens=pool.kv_tokens,
                    block_size=pool.block_size,
                    chunk_tokens=pool.chunk_tokens,
                    kv_dtype=topology.kv_dtype,
                    parallel=pool.parallel,
                    vllm=None if pool.vllm is None else _vllm(pool.vllm),
                    eviction=None if pool.evict is None else pool.evict.orders(),
                    slots=pool.slots,
                    host=place.host or HOST,
                    http_port=next(ports),
                    kv_port=next(ports),
                    hold_s=deadlines.hold_s,
                    lease_s=deadlines.lease_s,
                    lines=lines,
                    stores=tuple(store.address for store in nearest_first)
                    if pool.kv_store is not None
                    else (),
                    tls=None if tls is None else tls.files(site),
                    sites=tuple(topology.sites),
                )
            )
    return tuple(configs)
