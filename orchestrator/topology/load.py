"""Read a topology file: all of its mistakes, or a Topology."""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from orchestrator.catalogue import Catalogue, load_catalogue
from orchestrator.topology.addresses import LOOPBACK, AddressError, parse_ports
from orchestrator.topology.certificates import absolute, absolute_path, tls_mistakes
from orchestrator.topology.document import read_document
from orchestrator.topology.mistakes import Path, TopologyError, unknown
from orchestrator.topology.rules import Draft, Found, Listener, broken_rules
from orchestrator.topology.schema import ONE_DELAY, Gateway, Pool, Site, Topology
from orchestrator.topology.strict import check, validate
from workers.api.messages import Role


def load_topology(
    path: str | FilePath, catalogue: Catalogue | None = None, *, at: str | None = None
) -> Topology:
    """The topology in a file, the paths it names made absolute; None: the packaged catalogue.

    `at` is the site whose machine this is; None: the gateway's. Raises TopologyError with every
    mistake in the file.
    """
    file = FilePath(path)
    document = read_document(file)
    catalogue = catalogue or load_catalogue()
    topology, mistakes = check(Topology, document)
    if isinstance(document.data, dict):
        for where, message in rule_mistakes(document.data, file.parent, catalogue, at):
            mistakes.append(document.mistake(where, message))
    if mistakes or topology is None:
        raise TopologyError(mistakes)
    directory = _model_directory(topology.model, file.parent)
    security = topology.security
    keys = security.api_keys_file
    security = security.model_copy(
        update={
            "tls": absolute(security.tls, file.parent),
            "api_keys_file": None if keys is None else absolute_path(keys, file.parent),
        }
    )
    model = topology.model if directory is None else str(directory)
    sites = {name: _with_paths(site, file.parent) for name, site in topology.sites.items()}
    return topology.model_copy(update={"model": model, "security": security, "sites": sites})


def _with_paths(site: Site, directory: FilePath) -> Site:
    """The same with the paths of its pools made absolute."""
    pools = dict(site.pools)
    for name, pool in site.pools.items():
        if pool.evict is not None and pool.evict.calibration is not None:
            path = absolute_path(pool.evict.calibration, directory)
            evict = pool.evict.model_copy(update={"calibration": path})
            pools[name] = pool.model_copy(update={"evict": evict})
        if pool.kv_store is not None and pool.kv_store.nvme is not None:
            path = absolute_path(pool.kv_store.nvme.path, directory)
            nvme = pool.kv_store.nvme.model_copy(update={"path": path})
            kept = pool.kv_store.model_copy(update={"nvme": nvme})
            pools[name] = pools[name].model_copy(update={"kv_store": kept})
    return site.model_copy(update={"pools": pools})


# --------------------------------------------------------------------------- the rules' mistakes


def rule_mistakes(
    data: dict[str, Any], directory: FilePath, catalogue: Catalogue, at: str | None = None
) -> Iterator[Found]:
    """Every rule that a topology's data breaks; `directory` is where its file lies."""
    yield from _model_rules(data.get("model"), directory, catalogue)
    raw_pools = dict(_raw_pools(data))
    for (site, name), raw in raw_pools.items():
        chip = raw.get("chip") if isinstance(raw, dict) else None
        if isinstance(chip, str) and chip not in catalogue.chips:
            path: Path = ("sites", site, "pools", name, "chip")
            yield path, unknown("chip", chip, list(catalogue.chips))
    links = data.get("links")
    for i, raw in enumerate(links if isinstance(links, list) else []):
        if isinstance(raw, dict) and ("distance_km" in raw) == ("delay" in raw):
            yield ("links", i), ONE_DELAY
    yield from broken_rules(_draft(data, raw_pools))
    yield from tls_mistakes(data, directory, at)


def _raw_pools(data: dict[str, Any]) -> Iterator[tuple[tuple[str, str], object]]:
    for site, raw_site in _mapping(data.get("sites")).items():
        for name, raw in _mapping(_mapping(raw_site).get("pools")).items():
            yield (site, name), raw


def _mapping(raw: object) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _draft(data: dict[str, Any], raw_pools: dict[tuple[str, str], object]) -> Draft:
    roles: dict[str, dict[str, frozenset[Role] | None]] = {
        site: {} for site in _mapping(data.get("sites"))
    }
    pools: dict[tuple[str, str], Pool] = {}
    for (site, name), raw in raw_pools.items():
        roles[site][name] = _roles(raw)
        try:
            pools[site, name] = validate(Pool, raw)
        except ValidationError:
            continue  # reported by the schema
    links = data.get("links", [])
    gateway_site = _mapping(data.get("gateway")).get("site")
    policy = _mapping(data.get("policy"))
    route, codec = policy.get("route", "auto"), policy.get("codec")
    return Draft(
        roles=roles,
        pools=pools,
        ends=tuple(map(_ends, links)) if isinstance(links, list) else (None,),
        listeners=tuple(_listeners(data)),
        elsewhere=frozenset(
            name
            for name, raw in _mapping(data.get("sites")).items()
            if _mapping(raw).get("launch") == "agent"
        ),
        gateway_site=gateway_site if isinstance(gateway_site, str) else None,
        route=route if isinstance(route, str) else None,
        codec=codec if isinstance(codec, str) else None,
        kv_dtype=data.get("kv_dtype"),
    )


def _listeners(data: dict[str, Any]) -> Iterator[Listener]:
    try:
        gateway = validate(Gateway, data.get("gateway"))
    except ValidationError:
        gateway = None  # reported by the schema
    if gateway is not None:
        # Several processes have a port together and one each above it.
        count = gateway.processes + (gateway.processes > 1)
        ports = range(gateway.port, gateway.port + count)
        yield Listener(path=("gateway", "port"), host=gateway.host, ports=ports)
        if gateway.agents is not None:
            ports = range(gateway.agents.port, gateway.agents.port + gateway.processes)
            path: Path = ("gateway", "agents", "port")
            yield Listener(path=path, host=gateway.agents.host, ports=ports)
    for name, raw in _mapping(data.get("sites")).items():
        host, declared = _mapping(raw).get("host", LOOPBACK), _mapping(raw).get("ports")
        try:
            own = parse_ports(declared) if isinstance(declared, str) else None
        except AddressError:
            own = None
        if isinstance(host, str) and own is not None:
            yield Listener(path=("sites", name, "ports"), host=host, ports=own)


def _roles(raw: object) -> frozenset[Role] | None:
    named = _mapping(raw).get("roles", list(Role))
    known = set(Role)
    if not isinstance(named, list) or not named or not all(n in known for n in named):
        return None
    return frozenset(map(Role, named))


def _ends(raw: object) -> tuple[str, str] | None:
    match _mapping(raw).get("between"):
        case [str(a), str(b)]:
            return a, b
    return None


# -------------------------------------------------------------------------------------- the model


def _model_rules(model: object, directory: FilePath, catalogue: Catalogue) -> Iterator[Found]:
    if not isinstance(model, str) or not model:
        return
    path = _model_directory(model, directory)
    if path is None:
        if model not in catalogue.models:
            yield ("model",), unknown("model", model, list(catalogue.models))
    elif not path.is_dir():
        yield ("model",), f"there is no model directory {path}"
    elif not (path / "config.json").is_file():
        yield ("model",), f"{path} is not a model directory: it has no config.json"


def _model_directory(model: str, directory: FilePath) -> FilePath | None:
    """Where the model lies if its name looks like a path, relative to the topology's file."""
    if "/" not in model and not model.startswith((".", "~")):
        return None
    return (directory / FilePath(model).expanduser()).resolve()
