"""The whole service with TLS between two sites: a relayed request, and nothing for strangers."""

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from benchmarks.service import Served, serving
from orchestrator.cli.main import run
from tests.orchestrator.live.live_service import SECRET, all_up, prompts, stream, until
from transport.tls import TlsFiles, client_context, site_hostname
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(300)

REFUSED = "TLS connection refused"


@dataclass(frozen=True, kw_only=True)
class Secure:
    """A running service, its certificates and its logs."""

    served: Served
    certs: Path
    logs: Path

    def refusals(self) -> list[str]:
        """What the processes say they refused, in no order."""
        lines = [line for log in self.logs.glob("*.log") for line in log.open()]
        return [line for line in lines if REFUSED in line or "TLS refused" in line]

    def files(self, site: str) -> TlsFiles:
        return TlsFiles(
            ca=self.certs / "ca.pem",
            cert=self.certs / f"{site}.pem",
            key=self.certs / f"{site}.key",
        )


@pytest.fixture(scope="module")
def secure(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    topology, certs, logs = folder / "topology.yaml", folder / "certs", folder / "logs"
    text = (root / "configs" / "topologies" / "laptop-simulated.yaml").read_text()
    topology.write_text(text)
    assert run(["init", str(topology), "--certs", str(certs)]) == 0
    paths = "{ca: certs/ca.pem, cert: 'certs/{site}.pem', key: 'certs/{site}.key'}"
    topology.write_text(f"{text}security: {{tls: {paths}}}\n")
    with serving(topology, "--logs", str(logs), environment={SECRET_ENV: SECRET}) as served:
        yield Secure(served=served, certs=certs, logs=logs)


def test_a_relayed_request_is_served_over_tls(secure: Secure) -> None:
    until(lambda: all_up(secure.served), "all workers are up")
    workers = secure.served.status()["workers"]
    assert all(worker["control"].startswith("https://") for worker in workers)
    (prompt,) = prompts(1, 64)  # its KV takes 1.2 s of the line, the tokens at least 5 s
    local = stream(secure.served, prompt, max_tokens=250, pdd_route="local")
    relay = stream(secure.served, prompt, max_tokens=250, pdd_route="relay")
    assert (relay.done, relay.error, relay.finish_reason) == (True, None, "length")
    assert relay.told["route"] == "relay"
    assert relay.told["relay_tokens"] > 0
    assert relay.told["handoff_index"] is not None, "main never took over: no KV came"
    assert relay.ids == local.ids
    assert secure.refusals() == []


def test_a_stranger_gets_nothing_from_a_workers_ports(secure: Secure) -> None:
    """Not even with the secret."""
    headers = {"authorization": f"Bearer {SECRET}"}
    worker = secure.served.worker("shenzhen/memory/0")
    address = worker["control"].removeprefix("https://")
    tls = client_context(secure.files("hami"))
    known = httpx.Client(headers=headers, verify=tls, trust_env=False)
    with known:
        asked = known.build_request("GET", f"https://{address}/info")
        asked.extensions["sni_hostname"] = site_hostname("shenzhen")
        info = known.send(asked).json()
    assert info["worker"] == "shenzhen/memory/0"
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://{address}/info", headers=headers, trust_env=False)
    for port in (info["http_port"], info["kv_port"]):
        with socket.create_connection(("127.0.0.1", port), 5.0) as plain:
            plain.sendall(b"GET /info HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert plain.recv(100) == b""
    until(lambda: len(secure.refusals()) >= 3, "the worker told of three strangers", 10.0)
    said = [json.loads(line) for line in secure.refusals()]
    assert {line["who"] for line in said} == {"shenzhen/memory/0"}
    assert all("ours is shenzhen.pdd.internal of CN=pdd CA " in line["event"] for line in said)


def test_clients_need_no_certificate_and_agents_are_not_heard_where_clients_are(
    secure: Secure,
) -> None:
    assert httpx.get(f"{secure.served.url}/models", trust_env=False).status_code == 200
    lease = httpx.post(
        f"{secure.served.base}/internal/lease",
        headers={"authorization": f"Bearer {SECRET}"},
        json={},
        trust_env=False,
    )
    assert lease.status_code == 404
