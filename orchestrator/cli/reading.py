"""What `pdd serve` is to serve, as its file is now.

Apart from the command, whose imports are heavy: a changed file is read in a process of its own.
"""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.live.site_workers import Roles
from orchestrator.live.startable import check_startable
from orchestrator.replan.watch import Replanning
from orchestrator.replay.scenario.roles import plan_roles, replanning_of
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Where it stands what is to be served."""

    file: Path
    port: int | None
    gateway_site: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is to be served, with the roles that the file leaves to the planner, and `told`, them in
    lines for people.
    """

    topology: Topology
    roles: Roles
    replanning: Replanning | None
    told: tuple[str, ...]


def read(asked: Asked) -> Served:
    """As the file is now. Raises UserError."""
    topology = _overridden(load_topology(asked.file), asked.port, asked.gateway_site)
    check_startable(topology)
    planned = plan_roles(topology)
    return Served(
        topology=topology,
        roles=planned.roles,
        replanning=replanning_of(topology),
        told=planned.told,
    )


def _overridden(topology: Topology, port: int | None, site: str | None) -> Topology:
    gateway = topology.gateway
    if port is not None:
        gateway = gateway.model_copy(update={"port": port})
    if site is not None:
        if site not in topology.sites:
            known = ", ".join(sorted(topology.sites))
            raise UserError(f"--gateway-site: no site {site!r} in the topology; there are {known}")
        gateway = gateway.model_copy(update={"site": site})
    return topology.model_copy(update={"gateway": gateway})
