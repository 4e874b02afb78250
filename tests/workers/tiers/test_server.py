"""A store over a socket: what goes in comes out, strangers get nothing, nobody hangs."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.server_rig import SECRET, wait_until
from tests.workers.tiers.blocks_rig import at_once, block, counts, key, store, written
from workers.tiers.blocks import Block, Tier, checksum
from workers.tiers.client import RETRY_S, StoreAway, StoreClient
from workers.tiers.server import MAX_STRANGERS, StoreServer
from workers.tiers.store import BlockStore
from workers.tiers.wire import Kind, Wire, WireBroken


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


class Site:
    """A store that is served, and clients of it."""

    def __init__(self, tiers: BlockStore) -> None:
        self.tiers = tiers
        self.server = StoreServer(tiers, listening(), SECRET)
        self.server.start()
        self.clients: list[StoreClient] = []

    def client(self, secret: str = SECRET) -> StoreClient:
        self.clients.append(StoreClient(self.server.address, secret))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(store(tmp_path))
    yield made
    made.close()


def got(client: StoreClient, keys: list[bytes]) -> dict[int, tuple[bytes, Tier]]:
    there: dict[int, tuple[bytes, Tier]] = {}

    def take(place: int, found: Block, tier: Tier) -> None:
        assert checksum(keys[place], found.data) == found.crc
        there[place] = bytes(found.data), tier

    client.get(keys, soon(), take)
    return there


def test_what_one_worker_puts_another_finds_and_gets(site: Site) -> None:
    site.client().put("t", [block(number) for number in range(12)], soon())
    written(site.tiers)
    other = site.client()
    keys = [key(number) for number in (*range(12), 99)]
    assert [tier is not None for tier in other.find(keys, soon())] == [True] * 12 + [False]
    there = got(other, keys)
    assert sorted(there) == list(range(12))
    assert {tier for _, tier in there.values()} == {Tier.MEMORY, Tier.FILES}
    assert all(there[number][0] == block(number)[1].data for number in range(12))
    assert other.account(soon())["counts"]["written_dram"] == 12


def test_many_workers_at_once(site: Site) -> None:
    def work(first: int) -> None:
        client = site.client()
        client.put("t", [block(number) for number in range(first, first + 3)], soon())
        for _ in range(20):
            got(client, [key(number) for number in range(8)])

    at_once([lambda first=first: work(first) for first in (0, 1, 2, 5)])
    assert counts(site.tiers)["written_dram"] == 8


def test_a_large_put_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.tiers.client.PUT_BYTES", 2500)
    site = Site(store(memory_bytes=100_000))
    client = site.client()
    client.put("t", [block(number) for number in range(7)], soon())
    assert len(got(client, [key(number) for number in range(7)])) == 7
    site.close()


def test_a_stranger_gets_nothing(site: Site) -> None:
    site.client().put("t", [block(1)], soon())
    with pytest.raises(StoreAway, match="closed the connection"):
        site.client("another secret").find([key(1)], soon())
    assert counts(site.tiers)["defect_greet_nonsense"] == 1


def test_a_crowd_of_strangers_keeps_no_worker_out(site: Site) -> None:
    """They say nothing and hang on: the oldest have to go."""
    site.client().put("t", [block(1)], soon())
    host, port = site.server.address.split(":")
    crowd = []
    try:
        for _ in range(3):
            for _ in range(MAX_STRANGERS):
                crowd.append(socket.create_connection((host, int(port)), timeout=10))
            wait_until(lambda: len(site.server._strangers) <= MAX_STRANGERS)
            assert site.client().find([key(1)], soon()) == [Tier.MEMORY]
        gone = counts(site.tiers)
        assert sum(gone[name] for name in gone if name.startswith("defect_greet_")) > 0
    finally:
        for connection in crowd:
            connection.close()
    wait_until(lambda: not site.server._strangers)


def test_a_stranger_has_little_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.tiers.server.HANDSHAKE_S", 0.2)
    host, port = site.server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        assert len(connection.recv(16, socket.MSG_WAITALL)) == 16
        assert connection.recv(1) == b""
    wait_until(lambda: not site.server._strangers)


def test_more_workers_than_a_store_serves_are_refused_and_counted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.tiers.server.MAX_CONNECTIONS", 1)
    assert site.client().find([key(1)], soon()) == [None]
    with pytest.raises(StoreAway):
        site.client().find([key(1)], soon())
    assert counts(site.tiers)["defect_accept_too_many"] == 1


def test_a_process_without_threads_left_takes_nobody_and_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreAway):
            site.client().find([key(1)], soon())
    assert counts(site.tiers)["defect_accept_no_thread"] == 1
    assert site.client().find([key(1)], soon()) == [None]


def test_a_false_store_is_told_nothing() -> None:
    """Something else listens where the store was."""
    with listening() as false:
        heard: list[bytes] = []

        def answer() -> None:
            connection, _ = false.accept()
            with connection:
                connection.sendall(bytes(16))
                heard.append(connection.recv(48, socket.MSG_WAITALL))
                connection.sendall(bytes(32))
                heard.append(connection.recv(1))

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = false.getsockname()
        with pytest.raises(StoreAway, match="does not know this deployment's secret"):
            StoreClient(f"{host}:{port}", SECRET).find([key(1)], soon())
        thread.join(10)
        assert heard[1:] == [b""]


def test_a_store_that_says_nothing_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For so long as it is left alone, whoever asks next is told at once."""
    monkeypatch.setattr("workers.tiers.client.RETRY_S", 3600.0)
    with listening() as mute:
        host, port = mute.getsockname()
        client = StoreClient(f"{host}:{port}", SECRET)
        with pytest.raises(StoreAway, match=r"not in time|timed out"):
            client.find([key(1)], soon(0.1))
        with pytest.raises(StoreAway, match=r"not in time|timed out"):
            client.find([key(1)], soon(3600.0))
        mute.accept()[0].close()
        mute.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody dialled again
            mute.accept()


def test_who_asks_too_late_keeps_nobody_else_from_asking(site: Site) -> None:
    client = site.client()
    client.put("t", [block(1)], soon())
    with pytest.raises(StoreAway, match="not asked any more"):
        client.find([key(1)], time.monotonic())
    assert client.find([key(1)], soon()) == [Tier.MEMORY]


def test_a_store_that_is_back_is_found_again(site: Site) -> None:
    client = site.client()
    client.put("t", [block(1)], soon())
    site.server.close()
    with pytest.raises(StoreAway):
        client.find([key(1)], soon())
    again = StoreServer(
        site.tiers, socket.create_server(("127.0.0.1", int(site.server.address[10:]))), SECRET
    )
    again.start()
    wait_until(lambda: _found(client), timeout_s=10 * RETRY_S)
    again.close()


def _found(client: StoreClient) -> bool:
    try:
        return client.find([key(1)], soon()) != [None]
    except StoreAway:
        return False


def test_a_restart_between_two_questions_is_not_noticed(site: Site) -> None:
    client = site.client()
    client.put("t", [block(1)], soon())
    site.server.close()
    again = StoreServer(
        site.tiers, socket.create_server(("127.0.0.1", int(site.server.address[10:]))), SECRET
    )
    again.start()
    assert client.find([key(1)], soon()) == [Tier.MEMORY]
    again.close()


def test_what_take_raises_ends_the_get_and_the_next_one_works(site: Site) -> None:
    client = site.client()
    client.put("t", [block(number) for number in range(4)], soon())

    def full(place: int, found: Block, tier: Tier) -> None:
        raise KeyError("closed")

    with pytest.raises(KeyError):
        client.get([key(number) for number in range(4)], soon(), full)
    assert len(got(client, [key(number) for number in range(4)])) == 4


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 64,
        b"\x01\x00\x00\x00" + bytes(4) + (1 << 40).to_bytes(8, "little"),  # a FIND of a terabyte
        b"\x01\x00\x00\x00" + bytes(4) + (33).to_bytes(8, "little") + bytes(33),  # no whole keys
        b"\x05\x00\x00\x00\x01\x00\x00\x00" + (1).to_bytes(8, "little") + b"t" + b"\x01" * 16,
    ],
)
def test_nonsense_ends_its_connection_and_no_other(site: Site, nonsense: bytes) -> None:
    client = site.client()
    client.put("t", [block(1)], soon())
    host, port = site.server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        wire = Wire(connection)
        wire.deadline = soon()
        wire.greet(SECRET.encode())
        connection.sendall(nonsense)
        with pytest.raises((OSError, WireBroken)):
            wire.head(Kind.FOUND, at_most=100)
    assert counts(site.tiers)["defect_answer_nonsense"] == 1
    assert client.find([key(1)], soon()) == [Tier.MEMORY]
