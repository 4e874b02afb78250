"""What `pdd serve` would start on this machine: its processes, their ports and their memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from orchestrator.catalogue import ModelFacts, load_catalogue
from orchestrator.cli.output import Format, print_json
from orchestrator.errors import UserError
from orchestrator.live.gateway import gateway_tls, take_port
from orchestrator.live.gateway_processes import check_ports
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.ports import PORTS
from orchestrator.live.site_workers import Roles, store_configs, worker_configs
from orchestrator.topology.schema import Topology
from orchestrator.topology.units import show_rate
from workers.engines.models import ModelError, check_model
from workers.service.config import WorkerConfig

FLOAT32 = 4  # bytes of a parameter as the torch engine loads it
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process that would run. `memory_bytes`: what it sets aside for weights, KV and stores,
    beside its code; None: not known. `ports`: those that the file gives it; others are free ones.
    """

    kind: str
    name: str
    site: str
    what: str
    memory_bytes: int | None
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """`free_ports`: the first and last of those from which agents, workers and stores get theirs.
    `memory_bytes` of all processes of which it is known, beside what this machine has available.
    """

    model: str
    processes: list[Started]
    emulated: list[str]
    free_ports: tuple[int, int]
    memory_bytes: int
    available_bytes: int


def describe(topology: Topology, roles: Roles) -> DryRun:
    """Raises UserError for what would keep it from starting, as a port in use or no model."""
    gateway = topology.gateway
    read_door(topology.security)
    gateway_tls(topology)
    if gateway.processes > 1:
        check_ports(topology)
    else:
        take_port(gateway.host, gateway.port).close()
    try:
        check_model(topology.model)
    except ModelError as error:
        raise UserError(str(error)) from error
    processes = [*_gateways(topology), *_sites(topology, roles)]
    return DryRun(
        model=topology.model,
        processes=processes,
        emulated=[
            f"{' - '.join(link.between)}: {link.delay_s * 1e3:g} ms, "
            f"{show_rate(link.rate_bytes_per_s)}"
            for link in topology.links
            if link.emulate
        ],
        free_ports=(PORTS.start, PORTS.stop - 1),
        memory_bytes=sum(process.memory_bytes or 0 for process in processes),
        available_bytes=psutil.virtual_memory().available,
    )


def _gateways(topology: Topology) -> Iterator[Started]:
    gateway = topology.gateway
    for number in range(1, gateway.processes + 1):
        own = () if gateway.processes == 1 else (gateway.port + number,)
        yield Started(
            kind="gateway",
            name=f"gateway {number}",
            site=gateway.site,
            what=f"http://{gateway.host}:{gateway.port}/v1",
            memory_bytes=0,
            ports=(gateway.port, *own),
        )


def _sites(topology: Topology, roles: Roles) -> Iterator[Started]:
    facts = load_catalogue().models.get(topology.model)
    for site, place in topology.sites.items():
        if place.launch != "local":
            continue
        node = f"the node with label site={site}"
        yield Started(kind="ray", name=f"ray {site}", site=site, what=node, memory_bytes=0)
        yield Started(
            kind="agent",
            name=f"agent {site}",
            site=site,
            what="keeps the site",
            memory_bytes=0,
            ports=() if place.port_range is None else (place.port_range[0],),
        )
        for store in store_configs(topology, site, lambda: 0):
            tiers = store.tiers
            files = "" if tiers.files is None else f", {_gb(tiers.files_bytes)} in {tiers.files}"
            yield Started(
                kind="store",
                name=store.name,
                site=site,
                what=f"{_gb(tiers.memory_bytes)} of memory{files}",
                memory_bytes=tiers.memory_bytes,
            )
        for worker in worker_configs(topology, site, topology.model, roles):
            yield Started(
                kind="worker",
                name=worker.name,
                site=site,
                what=_what(worker),
                memory_bytes=_memory(worker, facts),
                ports=tuple(port for port in (worker.http_port, worker.kv_port) if port),
            )


def _what(worker: WorkerConfig) -> str:
    kept = f"{worker.kv_tokens} tokens of KV in {worker.kv_dtype}"
    if worker.engine == "vllm":
        kept = f"at most {kept}, as far as its vLLM has room, which it says once it runs"
    return f"{worker.engine}, {' and '.join(worker.roles)}, {worker.slots} legs, {kept}"


def _memory(worker: WorkerConfig, facts: ModelFacts | None) -> int | None:
    """Of a worker with vLLM the KV that is in shared memory: vLLM's own it says itself."""
    if worker.engine == "simulated":
        return 0  # it has no weights, and of KV the bytes that are on their way
    if facts is None:
        return None
    kv = worker.kv_tokens * facts.kv_bytes_in(worker.kv_dtype)
    return kv if worker.engine == "vllm" else round(facts.params.value * FLOAT32 + kv)


def show(told: DryRun, output: Format) -> None:
    """To standard output."""
    if output is Format.JSON:
        print_json(told)
        return
    width = max(len(process.name) for process in told.processes)
    print(f"model {told.model}; nothing is started")
    for process in told.processes:
        nbytes = process.memory_bytes
        memory = "; memory not known" if nbytes is None else f"; {_gb(nbytes)}" if nbytes else ""
        ports = f"; port {' and '.join(map(str, process.ports))}" if process.ports else ""
        print(f"  {process.name:<{width}}  {process.what}{ports}{memory}")
    for line in told.emulated:
        print(f"  emulated line {line}")
    print("  ports of agents, workers and stores: free ones of {}-{}".format(*told.free_ports))
    enough = "" if told.memory_bytes < told.available_bytes else ": too little"
    print(
        f"  memory for weights, KV and stores: {_gb(told.memory_bytes)}; available here: "
        f"{_gb(told.available_bytes)}{enough}"
    )


def _gb(nbytes: int) -> str:
    return f"{nbytes / GB:.3g} GB"
