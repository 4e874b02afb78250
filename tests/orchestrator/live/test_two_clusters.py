"""Two sites as two Ray clusters, each with its agent, that meet at declared ports only.

One set-up for all: the tests go on from each other, and the last ones end it.
"""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.orchestrator.live.live_service import prompts, until
from tests.orchestrator.live.two_clusters import (
    HAMI,
    PORTS,
    SECRET,
    SHENZHEN,
    Clusters,
    two_clusters,
)
from tests.transport.lab.lab_support import needs_lab

pytestmark = [needs_lab, pytest.mark.timeout(300)]

TOKENS = 100  # 5 s of decoding: KV needs half a second
PROMPTS = list(prompts(3, 96))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with two_clusters(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def expected(clusters: Clusters) -> list[list[int]]:
    """What one worker alone answers: nothing of it crosses the line but tokens."""
    alone = clusters.streams(PROMPTS, pdd_route="local", max_tokens=TOKENS, cache_salt="alone")
    assert {result.told["workers"]["main"] for result in alone} == {"hami/compute/0"}
    assert [len(result.ids) for result in alone] == [TOKENS] * len(PROMPTS)
    return [result.ids for result in alone]


class Meanwhile:
    """Streams in a thread, while the test does something; `ids` are theirs when they are done."""

    def __init__(self, clusters: Clusters, **fields: Any) -> None:
        self._results: list[list[int]] = []
        self._begun = threading.Semaphore(0)

        def run() -> None:
            asked = {"max_tokens": TOKENS, "on_token": self._heard, **fields}
            for result in clusters.streams(PROMPTS, **asked):
                assert result.error is None
                assert result.done
                self._results.append(result.ids)

        self._thread = threading.Thread(target=run)
        self._thread.start()
        for _ in PROMPTS:
            assert self._begun.acquire(timeout=30.0), "no first token"

    def _heard(self, count: int) -> None:
        if count == 1:
            self._begun.release()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def ids(self) -> list[list[int]]:
        self._thread.join(60.0)
        return self._results


def test_a_request_is_handed_from_one_cluster_to_the_other(
    clusters: Clusters, expected: list[list[int]]
) -> None:
    results = clusters.streams(PROMPTS, max_tokens=TOKENS, cache_salt="handed")
    assert [result.ids for result in results] == expected
    for result in results:
        assert result.told["workers"] == {
            "prefill": "hami/compute/0",
            "relay": "hami/relay/0",
            "main": "shenzhen/memory/0",
        }
        assert result.told["handoff_index"] is not None
        assert result.told["kv_bytes_wire"] > 0


def test_nothing_listens_but_at_declared_ports_and_nothing_else_is_used(
    clusters: Clusters,
) -> None:
    streams = Meanwhile(clusters, cache_salt="ports")
    machines = {"hami": clusters.hami, "shenzhen": clusters.shenzhen}
    sockets = {name: machine.sockets() for name, machine in machines.items()}
    assert streams.running
    for name, address in (("hami", HAMI), ("shenzhen", SHENZHEN)):
        assert {s.address for s in sockets[name]} == {address}
        assert {s.port for s in sockets[name] if not s.peer_port} == PORTS[name]
    across = [s for s in sockets["hami"] if s.peer == SHENZHEN]
    assert len(across) > 3
    for sock in across:  # who dials has any port, who is dialled a declared one
        assert sock.port in PORTS["hami"] or sock.peer_port in PORTS["shenzhen"]
    used = {s.port for s in across} | {s.peer_port for s in across}
    assert used >= {7001, 7002, 7003, 7100}, "tokens of both workers, KV to Shenzhen, leases"
    assert len(streams.ids) == len(PROMPTS)


def test_an_agent_that_is_killed_is_followed_by_one_that_adopts_the_workers(
    clusters: Clusters, expected: list[list[int]]
) -> None:
    before = {name: worker["pid"] for name, worker in clusters.workers().items()}
    epoch = clusters.agent_epoch()
    assert epoch is not None
    streams = Meanwhile(clusters, cache_salt="agent")
    clusters.hami.agent().kill()
    assert streams.ids == expected
    until(lambda: (clusters.agent_epoch() or 0) > epoch, "another agent's lease", 60.0)
    after = clusters.workers()
    assert {name: worker["pid"] for name, worker in after.items()} == before
    assert {worker["state"] for worker in after.values()} == {"up"}
    assert clusters.streams(PROMPTS, max_tokens=8, cache_salt="adopted")[0].error is None


def test_a_wrong_secret_is_one_line_before_anything_starts(clusters: Clusters) -> None:
    process = clusters.hami.pdd("site", "hami", str(clusters.hami.file), secret="another")
    said, _ = process.communicate(timeout=60.0)
    assert (process.returncode, said) == (
        2,
        f"gateway.agents: {SHENZHEN}:7100 refused: PDD_SECRET here is not the gateway's\n",
    )


def test_a_site_that_is_told_to_stop_ends_its_streams_first(
    clusters: Clusters, expected: list[list[int]]
) -> None:
    streams = Meanwhile(clusters, pdd_route="local", max_tokens=2 * TOKENS, cache_salt="stop")
    process, output = clusters.running.pop("hami")
    process.send_signal(signal.SIGTERM)
    until(lambda: clusters.workers()["hami/compute/0"]["state"] == "draining", "it drains", 10.0)
    assert streams.running
    assert [ids[:TOKENS] for ids in streams.ids] == expected
    assert process.wait(60.0) == 0
    output.close()
    assert sorted(clusters.workers()) == ["shenzhen/memory/0"]
    assert clusters.hami.processes() == []
    alone = clusters.streams(PROMPTS[:1], pdd_route="auto", max_tokens=TOKENS)
    assert [result.ids for result in alone] == expected[:1]


def test_a_site_and_the_gateway_may_come_back(
    clusters: Clusters, expected: list[list[int]]
) -> None:
    kept = clusters.workers()["shenzhen/memory/0"]["pid"]
    assert clusters.stop("serve") == {"serve": 0}
    clusters.start(clusters.hami, "site", "hami")
    clusters.start(clusters.shenzhen, "serve")
    clusters.until_ready("hami")
    clusters.until_served()
    workers = clusters.workers()
    assert {worker["state"] for worker in workers.values()} == {"up"}
    assert workers["shenzhen/memory/0"]["pid"] == kept
    (result,) = clusters.streams(PROMPTS[:1], max_tokens=TOKENS, cache_salt="back")
    assert result.ids == expected[0]
    assert result.told["workers"]["relay"] == "hami/relay/0"


def test_nothing_is_left(clusters: Clusters) -> None:
    assert clusters.stop(*clusters.running) == {"shenzhen": 0, "serve": 0, "hami": 0}
    for machine in (clusters.hami, clusters.shenzhen):
        assert machine.processes() == []
        assert [sock for sock in machine.sockets() if not sock.peer_port] == []
    assert not any(SECRET in line for line in clusters.told)
