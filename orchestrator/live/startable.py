"""What must hold before anything of a deployment is started on this machine."""

import os

from orchestrator.errors import UserError
from orchestrator.live.site_workers import HOST
from orchestrator.topology.addresses import MOST_PORT
from orchestrator.topology.mistakes import unknown
from orchestrator.topology.schema import Topology
from transport.tls import TlsContexts, TlsError, load_contexts
from workers.service.config import SECRET_ENV


def agent_sites(topology: Topology) -> list[str]:
    """The sites that are started elsewhere, by `pdd site`."""
    return [name for name, site in topology.sites.items() if site.launch == "agent"]


def check_startable(topology: Topology) -> None:
    """Raise UserError for what a good file may say but `pdd serve` cannot start here."""
    gateway = topology.gateway
    if gateway.processes > 1 and topology.replan is not None:
        raise UserError(
            f"gateway.processes: {gateway.processes} gateways would each follow the world by roles "
            "of their own; leave out replan, or processes"
        )
    if gateway.processes > 1 and gateway.port + gateway.processes > MOST_PORT:
        raise UserError(f"gateway.port: no port above it for each of {gateway.processes} processes")
    if agent_sites(topology):
        _check_reachable(topology)
        _need_secret()
    for name, site in topology.sites.items():
        if site.launch == "local":
            _check_engines(topology, name)


def check_site(topology: Topology, name: str) -> None:
    """Raise UserError for what a good file may say but `pdd site` cannot start here."""
    if name not in topology.sites:
        raise UserError(unknown("site", name, list(topology.sites)))
    if topology.sites[name].launch == "local":
        raise UserError(
            f"sites.{name}.launch: local, so pdd serve starts it with the gateway; "
            "for pdd site it must be agent"
        )
    _check_reachable(topology)
    _need_secret()
    _check_engines(topology, name)


def agents_host(topology: Topology) -> str:
    """Where the gateways hear agents."""
    agents = topology.gateway.agents
    return HOST if agents is None else agents.host


def agents_addresses(topology: Topology) -> list[str]:
    """Where each gateway hears agents, "host:port". Raises UserError when the file says nothing."""
    gateway = topology.gateway
    if gateway.agents is None:
        raise UserError(
            "gateway.agents: missing; say where agents reach the gateway, such as "
            "{host: 10.0.0.2, port: 7100}"
        )
    first = gateway.agents.port
    if first + gateway.processes - 1 > MOST_PORT:
        raise UserError(f"gateway.agents.port: no room above it for {gateway.processes} processes")
    return [f"{gateway.agents.host}:{first + number}" for number in range(gateway.processes)]


def site_tls(topology: Topology, site: str) -> TlsContexts | None:
    """A site's own. Raises UserError."""
    tls = topology.security.tls
    if tls is None:
        return None
    try:
        return load_contexts(tls.files(site), site, topology.sites)
    except TlsError as error:
        raise UserError(f"security.tls: {error}") from error


def _check_reachable(topology: Topology) -> None:
    """Sites on several machines must be able to find each other."""
    agents_addresses(topology)
    for name, site in topology.sites.items():
        if site.pools and site.host is None:
            raise UserError(
                f"sites.{name}.host: missing; say where the other sites reach its workers"
            )
    away = set(agent_sites(topology))
    for number, link in enumerate(topology.links):
        if link.emulate and away & set(link.between):
            raise UserError(
                f"links[{number}].emulate: only between sites that start on one machine, "
                f"not with launch: agent; leave it out"
            )


def _need_secret() -> None:
    if not os.environ.get(SECRET_ENV):
        raise UserError(
            f"{SECRET_ENV} is not set: with it agents and the gateway prove themselves to each "
            "other; give the same long random text to every pdd site and to pdd serve"
        )


def _check_engines(topology: Topology, site: str) -> None:
    for name, pool in topology.sites[site].pools.items():
        if pool.engine == "torch" and pool.parallel > 1:
            raise UserError(
                f"sites.{site}.pools.{name}.parallel: the torch engine runs one worker on one "
                f"chip, got {pool.parallel}; leave it out"
            )
