"""A store with TLS: workers of its own site are served, nobody else."""

import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from tests.transport.tls_rig import Rig
from tests.workers.server_rig import SECRET, wait_until
from tests.workers.tiers.blocks_rig import block, key, store
from transport.tls import load_contexts
from workers.tiers.blocks import Tier
from workers.tiers.client import StoreAway, StoreClient
from workers.tiers.server import StoreServer


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(rig: Rig) -> Iterator[StoreServer]:
    tls = load_contexts(rig.files("hami"), "hami", ["hami"]).server
    listening = socket.create_server(("127.0.0.1", 0))
    made = StoreServer(store(), listening, SECRET, site="hami", tls=tls)
    made.start()
    yield made
    made.close()


def found(server: StoreServer, tls: ssl.SSLContext | None, site: str = "hami") -> object:
    client = StoreClient(server.address, SECRET, site=site, tls=tls)
    client.put("t", [block(1)], time.monotonic() + 10)
    (tier,) = client.find([key(1)], time.monotonic() + 10)
    client.close()
    return tier


def test_a_worker_of_its_site_is_served(rig: Rig, server: StoreServer) -> None:
    assert found(server, rig.client(rig.files("hami"))) is Tier.MEMORY


def test_a_stranger_cannot_stretch_its_handshake(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then never lets one wait become long; all of them together do."""
    monkeypatch.setattr("workers.tiers.server.LOOK_S", 0.05)
    monkeypatch.setattr("workers.tiers.server.HANDSHAKE_S", 0.5)
    host, port = server.address.split(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01\x40\x00")  # a hello of 16 KiB begins
        while time.monotonic() < began + 20:
            time.sleep(0.05)
            try:
                connection.sendall(b"\x01")
            except OSError:
                break
        else:
            pytest.fail("it was not hung up on")
    wait_until(lambda: not server._strangers)


def test_strangers_are_not(rig: Rig, server: StoreServer) -> None:
    """Of another site, without a certificate, without TLS; and nobody takes it for another site."""
    for tls, site in (
        (rig.client(rig.files("shenzhen")), "hami"),
        (rig.bare(), "hami"),
        (None, "hami"),
        (rig.client(rig.files("hami")), "shenzhen"),
    ):
        with pytest.raises(StoreAway):
            found(server, tls, site)
