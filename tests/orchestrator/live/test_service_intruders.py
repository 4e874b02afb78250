"""The whole service with every guard on: nobody comes in, nobody is heard of, no secret gets out.

Every port that a process of it really listens on is tried, whatever it is for.
"""

import contextlib
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.service import Served, serving
from orchestrator.cli.main import run
from tests.orchestrator.live.live_service import until
from tests.orchestrator.live.test_traces import Collector, collecting
from tests.transport.tls_rig import Rig
from transport.tls import TlsFiles, client_context, site_hostname

pytestmark = pytest.mark.timeout(300)

SECRET = "the-deployments-5ecret"
API_KEY = "sk-of-the-client-9f31"
OPERATOR_KEY = "sk-of-the-operator-77a0"
MISTYPED = "sk-of-the-clieNt-9f31"  # somebody's true key, but for a letter
PROMPT = "whispered in confidence"
VARIABLES = {
    "PDD_SECRET": SECRET,
    "PDD_API_KEYS": API_KEY,
    "PDD_OPERATOR_KEYS": OPERATOR_KEY,
}
TOPOLOGY = """\
model: smollm2-135m
sites:
  hami:
    pools:
      compute: {chip: cpu, roles: [prefill, main], engine: simulated, kv_store: {dram: 16MiB}}
      relay: {chip: cpu, roles: [relay], engine: simulated}
  shenzhen:
    pools:
      memory: {chip: cpu, roles: [main], engine: simulated}
links:
  - {between: [hami, shenzhen], delay: 2ms, bandwidth: 1Gbps}
gateway: {site: shenzhen}
policy: {route: relay}
"""
GUARDS = """\
security:
  api_keys_env: PDD_API_KEYS
  operator_keys_env: PDD_OPERATOR_KEYS
  tls: {ca: certs/ca.pem, cert: "certs/{site}.pem", key: "certs/{site}.key"}
"""
ASKED = "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
ANSWER_S = 10.0
# What strangers ask for: what agents, workers and the gateway's own front answer to the known.
PATHS = ("/inventory", "/info", "/internal/lease")


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A running service with its files, and what it said so far."""

    served: Served
    folder: Path
    topology: Path
    spans: Collector
    said: list[str] = field(default_factory=list)

    def processes(self) -> list[psutil.Process]:
        serve = psutil.Process(self.served.process.pid)
        return [serve, *serve.children(recursive=True)]

    def listening(self) -> list[tuple[str, psutil.Process, int]]:
        """Address, process and port of every socket that anybody could send to."""
        found = []
        for process in self.processes():
            for one in process.net_connections("inet"):
                waits = one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM
                if waits and not one.raddr:
                    found.append((one.laddr.ip, process, one.laddr.port))
        return found

    def ours(self) -> dict[int, str]:
        """Ports of workers, agents, stores and the gateway's for agents, with whose they are."""
        clients = int(self.served.base.rpartition(":")[2])
        return {
            port: " ".join(process.cmdline()[:3]).strip()
            for address, process, port in self.listening()
            if not _rays(address, process) and port != clients
        }

    def site_of(self, port: int) -> str:
        """Whose certificate a port shows."""
        for site in ("hami", "shenzhen"):
            context = client_context(self.files("hami"))
            with (
                contextlib.suppress(ssl.SSLCertVerificationError),
                socket.create_connection(("127.0.0.1", port), ANSWER_S) as plain,
            ):
                context.wrap_socket(plain, server_hostname=site_hostname(site)).close()
                return site
        raise AssertionError(f"port {port} is of no site")

    def files(self, site: str) -> TlsFiles:
        certs = self.folder / "certs"
        return TlsFiles(ca=certs / "ca.pem", cert=certs / f"{site}.pem", key=certs / f"{site}.key")

    def complete(self) -> None:
        """One relayed request of a client with its key."""
        body = {"model": self.served.model, "prompt": PROMPT, "max_tokens": 40}
        headers = {"authorization": f"Bearer {API_KEY}", "x-request-id": "of-the-test"}
        answered = httpx.post(
            f"{self.served.url}/completions", json=body, headers=headers, timeout=60.0
        )
        assert answered.status_code == 200, answered.text


def _rays(address: str, process: psutil.Process) -> bool:
    """Whether Ray listens there. Its C++ tells a v4 address as one of v6, ours never does."""
    return (
        address.startswith("::")
        or process.name() in ("raylet", "gcs_server")
        or any(
            word in " ".join(process.cmdline()) for word in ("ray::RuntimeEnvAgent", "dashboard")
        )
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    topology = folder / "topology.yaml"
    topology.write_text(TOPOLOGY)
    assert run(["init", str(topology), "--certs", str(folder / "certs")]) == 0
    said: list[str] = []
    with collecting() as spans:
        telemetry = f'telemetry: {{otlp: "{spans.url}"}}\n'
        topology.write_text(TOPOLOGY + GUARDS + telemetry)
        options = ("--logs", str(folder / "logs"))
        with serving(topology, *options, environment=VARIABLES, tell=said.append) as served:
            yield Guarded(served=served, folder=folder, topology=topology, spans=spans, said=said)


# ---------------------------------------------------------------------------------------- nobody


def test_nothing_listens_but_on_the_loopback(guarded: Guarded) -> None:
    """The file names no other address. Ray's own ports are among these."""
    listening = guarded.listening()
    whose = {process.name() for _, process, _ in listening}
    assert {"raylet", "gcs_server"} <= whose
    assert len(guarded.ours()) >= 3 * 2 + 2 + 1 + 1  # workers, agents, the store, the gateway
    for address, process, port in listening:
        ip = ipaddress.ip_address(address)
        ip = getattr(ip, "ipv4_mapped", None) or ip
        assert ip.is_loopback, f"{address}:{port} of {process.cmdline()}"


def test_no_port_takes_a_stranger_with_the_secret_and_no_certificate(
    guarded: Guarded, tmp_path: Path
) -> None:
    """Without TLS, without a certificate, with one of another CA: not a byte of an answer."""
    rig = Rig(tmp_path)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(guarded.files("hami").ca)
    foreign_files = rig.foreign("hami")
    ours = guarded.files("hami").ca.read_bytes()
    foreign_files.ca.write_bytes(rig.other.pair.cert + ours)
    strangers = {"plain": None, "bare": bare, "foreign": rig.client(foreign_files)}
    for port, whose in guarded.ours().items():
        for name, context in strangers.items():
            told = _ask(port, context, guarded.site_of(port), SECRET)
            assert told in (b"", b"refused"), f"{name} at {port} of {whose}: {told!r}"


def test_no_port_takes_a_certificate_without_the_secret(guarded: Guarded) -> None:
    """A stolen certificate opens TLS, and nothing behind it."""
    client = client_context(guarded.files("hami"))
    fronts = 0
    for port, whose in guarded.ours().items():
        site = guarded.site_of(port)
        for key in ("", "wrong", API_KEY, OPERATOR_KEY):
            told = _ask(port, client, site, key)
            if told.startswith(b"HTTP/1.1"):
                fronts += 1
                assert told.startswith(b"HTTP/1.1 401 "), f"{port} of {whose}: {told!r}"
            else:  # KV says nothing, a store asks for a proof
                assert told == b"refused" or len(told) in (0, 16), f"{port} of {whose}: {told!r}"
    assert fronts >= 4 * (3 + 2 + 1), "workers, agents and the gateway answer over HTTP"


def test_a_store_takes_no_certificate_of_another_site(guarded: Guarded) -> None:
    """Its blocks are its own site's business: not even whoever has the secret as well."""
    other = client_context(guarded.files("shenzhen"))
    (store,) = (port for port, whose in guarded.ours().items() if "StoreActor" in whose)
    assert _ask(store, other, "hami", SECRET) in (b"", b"refused")


def test_the_gateway_takes_no_client_without_its_key(guarded: Guarded) -> None:
    for path in ("/v1/models", "/metrics", "/status", "/pdd/state", "/openapi.json"):
        for key in ("", MISTYPED, SECRET):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answered = httpx.get(f"{guarded.served.base}{path}", headers=headers)
            assert answered.status_code == 401, path
    order = {"site": "hami"}
    headers = {"authorization": f"Bearer {API_KEY}"}
    drained = httpx.post(f"{guarded.served.base}/pdd/drain", json=order, headers=headers)
    assert drained.status_code == 403


def test_ray_takes_nobody_without_its_token(guarded: Guarded) -> None:
    (port,) = (port for _, process, port in guarded.listening() if process.name() == "gcs_server")
    code = (
        "from ray._raylet import GcsClient\n"
        f"print(GcsClient(address='127.0.0.1:{port}').internal_kv_keys(b'', namespace=None))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    tried = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert tried.returncode != 0
    assert "uthentica" in tried.stderr, tried.stderr[-500:]


def _ask(port: int, context: ssl.SSLContext | None, site: str, key: str) -> bytes:
    """The first bytes that a port answers to somebody with this key; `refused`: by TLS."""
    path = PATHS[port % len(PATHS)]
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as there:
            if context is not None:
                there = context.wrap_socket(there, server_hostname=site_hostname(site))
            with there:
                there.sendall(ASKED.format(path=path, key=key).encode())
                told = b""
                while len(told) < 100 and (more := there.recv(100)):
                    told += more
                return told
    except (ssl.SSLError, ConnectionError):
        return b"refused"


# --------------------------------------------------------------------------------------- nothing


def test_no_secret_gets_out(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """Not into logs, errors, metrics, status, traces, arguments, `doctor` or `collect-env`."""
    guarded.complete()
    outside = "".join(_errors(guarded))
    until(lambda: bool(guarded.spans.spans), "a trace is told", 30.0)
    known = {"authorization": f"Bearer {API_KEY}"}
    for path in ("/metrics", "/status", "/pdd/state", "/v1/models", "/openapi.json"):
        outside += httpx.get(f"{guarded.served.base}{path}", headers=known).text
    outside += "".join(str(span) for _, span in guarded.spans.spans)
    arguments = "\n".join(" ".join(process.cmdline()) for process in guarded.processes())
    with pytest.MonkeyPatch.context() as here:
        for name, value in VARIABLES.items():
            here.setenv(name, value)
        for command in (
            ["collect-env", str(guarded.topology)],
            ["doctor", str(guarded.topology), "--url", guarded.served.base],
        ):
            run(command)
    commands = capsys.readouterr()
    logs = "".join(log.read_text(errors="replace") for log in guarded.folder.glob("logs/**/*"))
    assert "of-the-test" in logs, "the request is in no log"
    assert "kv_store" in commands.out, "collect-env did not show the file"
    places = {
        "answers": outside,
        "arguments": arguments,
        "commands": commands.out + commands.err,
        "logs": logs,
        "progress": "\n".join(guarded.said),
    }
    for secret, text in _secrets(guarded).items():
        for place, told in places.items():
            assert text not in told, f"{secret} is in the {place}"


def _secrets(guarded: Guarded) -> dict[str, str]:
    """Every secret of the deployment, and what a client said."""
    certs = sorted((guarded.folder / "certs").glob("*.key"))
    keys = {file.name: file.read_text().splitlines()[1] for file in certs}
    assert len(keys) == 3
    raylet = next(process for process in guarded.processes() if process.name() == "raylet")
    return keys | {
        "the deployment's secret": SECRET,
        "the client's key": API_KEY,
        "the operator's key": OPERATOR_KEY,
        "a mistyped key": MISTYPED,
        "Ray's token": raylet.environ()["RAY_AUTH_TOKEN"],
        "the prompt": PROMPT,
    }


def _errors(guarded: Guarded) -> Iterator[str]:
    """What is said to requests that are refused, for whatever reason."""
    base = guarded.served.base
    for key in (API_KEY, MISTYPED, OPERATOR_KEY):
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": guarded.served.model, "prompt": PROMPT, "max_tokens": 10**9}
        yield httpx.post(f"{base}/v1/completions", json=body, headers=headers).text
        yield httpx.post(f"{base}/v1/completions", content=b"{", headers=headers).text
        yield httpx.get(f"{base}/nowhere", headers=headers).text
        yield httpx.post(f"{base}/pdd/drain", json={"site": "nowhere"}, headers=headers).text
