"""The workers that a site's pools ask for, as their processes are told of them."""

from collections.abc import Mapping

from orchestrator.topology.schema import Topology
from workers.api.messages import Role
from workers.service.config import Line, Simulated, WorkerConfig

HOST = "127.0.0.1"

Roles = Mapping[str, frozenset[Role]]  # of workers that have others than their pool
AS_POOLED: Roles = {}


def worker_configs(
    topology: Topology, site: str, model: str, roles: Roles = AS_POOLED
) -> tuple[WorkerConfig, ...]:
    """The workers of a site's pools. Their ports are 0: the agent chooses them."""
    deadlines, tls = topology.policy.deadlines, topology.security.tls
    # On a real line BBR finds the rate; an emulated one is behind loopback, which TCP fills.
    lines = {
        next(end for end in link.between if end != site): Line(
            rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=2 * link.delay_s, paced=link.emulate
        )
        for link in topology.links
        if site in link.between
    }
    configs = []
    for pool_name, pool in topology.sites[site].pools.items():
        speed = pool.simulate
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
                    slots=pool.slots,
                    host=HOST,
                    http_port=0,
                    kv_port=0,
                    hold_s=deadlines.hold_s,
                    lease_s=deadlines.lease_s,
                    lines=lines,
                    tls=None if tls is None else tls.files(site),
                    sites=tuple(topology.sites),
                )
            )
    return tuple(configs)
