"""Two sites as two Ray clusters in two network namespaces, and the gateway at one of them."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from benchmarks.service import Output, Served
from orchestrator.live.http import site_client
from tests.orchestrator.live.live_service import Streamed, several, stream
from tests.transport.tls_rig import NOW
from transport.certificates import Authority
from transport.codecs.warm import warm
from transport.lab import namespaces
from transport.lab.lab import End, Lab
from transport.lab.line import LabLine
from transport.tls import TlsFiles, load_contexts
from workers.service.config import SECRET_ENV

T = TypeVar("T")

SECRET = "a-secret-that-is-never-told"
SITES = ("hami", "shenzhen")
HAMI, SHENZHEN = "10.99.0.1", "10.99.0.2"  # the lab's two addresses
# What each machine's firewall would let in.
PORTS = {"hami": set(range(7000, 7005)), "shenzhen": {*range(7000, 7003), 7100, 8000}}
LINE = LabLine(delay_s=0.025, rate_bytes_per_s=12.5e6)
UP_S = 200.0

TOPOLOGY = f"""\
model: smollm2-135m
sites:
  hami:
    launch: agent
    host: {HAMI}
    ports: 7000-7004
    pools:
      compute: {{chip: cpu, roles: [prefill, main], engine: simulated, simulate: {{step: 50ms}}}}
      relay: {{chip: cpu, roles: [relay], engine: simulated, simulate: {{step: 50ms}}}}
  shenzhen:
    launch: agent
    host: {SHENZHEN}
    ports: 7000-7002
    pools:
      memory: {{chip: cpu, roles: [main], engine: simulated, simulate: {{step: 50ms}}}}
links:
  - {{between: [hami, shenzhen], delay: 25ms, bandwidth: 100Mbps}}
gateway:
  site: shenzhen
  host: {SHENZHEN}
  port: 8000
  agents: {{host: {SHENZHEN}, port: 7100}}
policy: {{route: relay}}
security: {{tls: {{ca: ca.pem, cert: "{{site}}.pem", key: "{{site}}.key"}}}}
"""


@dataclass(frozen=True)
class Machine:
    """One end of the line: what a machine has of the deployment, its site's certificate only."""

    end: End
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "topology.yaml"

    def here(self, work: Callable[[], T]) -> T:
        """Do it in the machine's network."""
        return namespaces.inside(self.end.namespace, work)

    def pdd(self, *arguments: str, secret: str = SECRET) -> "subprocess.Popen[str]":
        environment = os.environ | {SECRET_ENV: secret, "OMP_NUM_THREADS": "1"}
        return self.end.exec(
            [sys.executable, "-m", "orchestrator.cli.main", *arguments, "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def processes(self) -> list[psutil.Process]:
        """Whoever is in the machine's network."""
        inode = os.fstat(self.end.namespace).st_ino
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == inode:
                    found.append(process)
        return found

    def agent(self) -> psutil.Process:
        """The process of the site's agent."""
        (found,) = (p for p in self.processes() if "AgentActor" in " ".join(p.cmdline()))
        return found

    def sockets(self) -> list["Socket"]:
        """Every TCP and UDP socket of the machine that is not on its loopback."""

        def read() -> list[Socket]:
            net = Path("/proc/thread-self/net")
            return [
                _socket(line)
                for table in ("tcp", "udp", "tcp6", "udp6")
                if (net / table).exists()
                for line in (net / table).read_text(encoding="ascii").splitlines()[1:]
            ]

        return [sock for sock in self.here(read) if not sock.address.startswith("127.")]


@dataclass(frozen=True)
class Socket:
    """A line of proc_pid_net(5)'s tables. `peer_port` is 0 where there is no peer."""

    address: str
    port: int
    peer: str
    peer_port: int


def _socket(line: str) -> Socket:
    local, remote = line.split()[1:3]
    return Socket(*_endpoint(local), *_endpoint(remote))


def _endpoint(text: str) -> tuple[str, int]:
    """Hexadecimal, the address in the host's order; IPv6 is off in a lab."""
    address, _, port = text.partition(":")
    octets = bytes.fromhex(address[:8])[::-1]
    return ".".join(map(str, octets)), int(port, 16)


@dataclass
class Clusters:
    """Both machines, and what runs there: `pdd site` of each, `pdd serve` at Shenzhen's."""

    hami: Machine
    shenzhen: Machine
    running: dict[str, tuple["subprocess.Popen[str]", Output]] = field(default_factory=dict)
    served: Served = None  # type: ignore[assignment]  # once `begin` has returned
    told: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Return when requests can be served. Raises ServeFailed."""
        self.start(self.hami, "site", "hami")
        self.start(self.shenzhen, "site", "shenzhen")
        self.start(self.shenzhen, "serve")
        for site in SITES:
            self.until_ready(site)
        self.until_served()

    def until_served(self) -> None:
        """Return when the gateway that was started last says that it serves. Raises ServeFailed."""
        ready = self.until_ready("serve")
        process = self.running["serve"][0]
        self.served = Served(process=process, url=ready["ready"], model=ready["model"])

    def start(self, machine: Machine, *command: str) -> None:
        process = machine.pdd(*command, str(machine.file))
        self.running[command[-1]] = (process, Output(process, self.told.append))

    def until_ready(self, name: str) -> dict[str, Any]:
        return self.running[name][1].until_ready(time.monotonic() + UP_S)

    def stop(self, *names: str) -> dict[str, int]:
        """Stop some of what runs, all at once; exit codes."""
        there = {name: self.running.pop(name) for name in names}
        for process, _ in there.values():
            process.terminate()
        for process, output in there.values():
            try:
                process.wait(UP_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
            output.close()
        return {name: process.wait() for name, (process, _) in there.items()}

    def streams(self, prompts: Sequence[Sequence[int]], **fields: Any) -> list[Streamed]:
        """All of them at once, from beside the gateway."""

        def job(prompt: Sequence[int]) -> Callable[[], Streamed]:
            return lambda: stream(self.served, prompt, **fields)

        return self.shenzhen.here(lambda: several([job(prompt) for prompt in prompts]))

    def workers(self) -> dict[str, dict[str, Any]]:
        """The gateway's account of each."""
        status = self.shenzhen.here(self.served.status)
        return {worker["name"]: worker for worker in status["workers"]}

    def inventory(self) -> dict[str, Any]:
        """What Hami's agent says. Raises httpx.HTTPError."""
        tls = load_contexts(_files(self.hami.folder, "hami"), "hami", SITES).client

        async def ask() -> dict[str, Any]:
            async with site_client("hami", SECRET, tls, timeout_s=5.0) as http:
                answered = await http.get(f"https://{HAMI}:7000/inventory")
                answered.raise_for_status()
                told: dict[str, Any] = answered.json()
                return told

        return self.hami.here(lambda: asyncio.run(ask()))

    def agent_epoch(self) -> int | None:
        """Of the agent whose lease the gateway has renewed; None: there is none now."""
        try:
            told = self.inventory()
        except httpx.HTTPError:
            return None
        return told["agent_epoch"] if told["lease"] == "renewed" else None


def _files(folder: Path, site: str) -> TlsFiles:
    return TlsFiles(ca=folder / "ca.pem", cert=folder / f"{site}.pem", key=folder / f"{site}.key")


@contextlib.contextmanager
def two_clusters(folder: Path) -> Iterator[Clusters]:
    """Both up and serving; ended, with all that is in their networks, at the end."""
    warm()  # else the first KV waits for a compiler
    authority = Authority(NOW)
    with Lab(LINE) as lab:
        machines = []
        for site, end in zip(SITES, (lab.near, lab.far), strict=True):
            machine = Machine(end, folder / site)
            machine.folder.mkdir()
            machine.file.write_text(TOPOLOGY)
            files, pair = _files(machine.folder, site), authority.issue(site)
            files.ca.write_bytes(authority.pair.cert)
            files.cert.write_bytes(pair.cert)
            files.key.write_bytes(pair.key)
            machines.append(machine)
        clusters = Clusters(*machines)
        try:
            clusters.begin()
            yield clusters
        finally:
            clusters.stop(*clusters.running)
