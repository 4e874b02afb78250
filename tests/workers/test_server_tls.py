"""A worker process with TLS: its own sites are served on both ports, nobody else on either."""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.transport.tls_rig import Rig
from tests.workers.server_rig import SECRET, Server, wait_until, write_config
from transport.tls import TlsFiles, site_hostname
from workers.service.config import SECRET_ENV, StartFailed, WorkerConfig, read_config
from workers.service.process import WorkerProcess


def config(files: TlsFiles) -> dict[str, Any]:
    return {
        "site": "hami",
        "sites": ["hami", "shenzhen"],
        "tls": {key: str(path) for key, path in asdict(files).items()},
    }


class Secure(Server):
    """A worker at hami that is asked from shenzhen."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        super().__init__(folder, "a", **config(rig.files("hami")))
        self.http.close()
        self.http = self.client(rig.client(rig.files("shenzhen")))

    def client(self, tls: ssl.SSLContext | None, scheme: str = "https") -> httpx.Client:
        return httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{self.http_port}",
            headers={"authorization": f"Bearer {SECRET}"},
            verify=tls or False,
            timeout=5.0,
            trust_env=False,
            event_hooks={"request": [ask_for_hami]},
        )

    def said(self) -> str:
        return self.errors.read_text()


def ask_for_hami(request: httpx.Request) -> None:
    request.extensions["sni_hostname"] = site_hostname("hami")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def worker(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    server = Secure(rig, tmp_path_factory.mktemp("worker"))
    try:
        yield server.up()
    finally:
        server.kill()


def test_a_known_site_is_served(worker):
    assert worker.http.get("/health").json()["ok"]
    assert worker.http.get("/info").json()["worker"] == "a"
    worker.http.headers["authorization"] = "Bearer wrong"
    assert worker.http.get("/info").status_code == 401
    worker.http.headers["authorization"] = f"Bearer {SECRET}"


@pytest.mark.parametrize("stranger", ["plain", "bare", "foreign", "expired", "unknown"])
def test_a_stranger_gets_nothing_though_it_has_the_secret(worker, rig, stranger):
    tls = {
        "plain": lambda: None,
        "bare": rig.bare,
        "foreign": lambda: rig.client(rig.foreign("shenzhen")),
        "expired": lambda: rig.client(rig.expired("shenzhen")),
        "unknown": lambda: rig.client(rig.files("mars")),
    }[stranger]()
    why = {
        "plain": "the peer does not speak TLS",
        "bare": "the peer showed no certificate",
        "foreign": "the peer's certificate is of another CA",
        "expired": "the peer's certificate has expired",
        "unknown": "the peer's certificate is of mars.pdd.internal, not of a site known here",
    }[stranger]
    with (
        worker.client(tls, "https" if tls else "http") as http,
        pytest.raises((httpx.HTTPError, ssl.SSLError)),
    ):
        http.get("/info")
    wait_until(lambda: f"{why}; ours is hami.pdd.internal of CN=pdd CA " in worker.said())


def test_the_kv_port_speaks_tls_too(worker, rig):
    with socket.create_connection(("127.0.0.1", worker.kv_port), 5.0) as plain:
        tls = rig.client(rig.files("shenzhen"))
        with tls.wrap_socket(plain, server_hostname=site_hostname("hami")) as secure:
            assert secure.version() == "TLSv1.3"
    with socket.create_connection(("127.0.0.1", worker.kv_port), 5.0) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")


def test_files_that_cannot_be_used_stop_the_worker_before_it_loads(rig, tmp_path, monkeypatch):
    monkeypatch.setenv(SECRET_ENV, SECRET)
    files = rig.files("mars")
    path = write_config(tmp_path, "a", **config(files))
    with pytest.raises(StartFailed) as failed:
        WorkerProcess(read_config(path, WorkerConfig)).run()
    assert str(failed.value) == (
        f"{files.cert}: it is not a certificate for site hami: it needs the DNS name "
        "hami.pdd.internal, it has mars.pdd.internal"
    )
