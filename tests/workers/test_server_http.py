"""Worker servers as processes of their own, with simulated engines, over real sockets."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.workers.server_rig import PROMPT, ROOT, SECRET, Reader, Server, wait_until, write_config
from workers.api.messages import (
    Feed,
    KVStats,
    Landed,
    Load,
    Pause,
    Paused,
    Refused,
    Resync,
    Role,
    SendKV,
    Start,
    Stop,
    TokenRun,
)
from workers.api.wire import encode
from workers.service.config import SECRET_ENV, StartFailed, WorkerConfig, read_config
from workers.service.process import WorkerProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("pair")
    a, b = Server(folder, "a"), Server(folder, "b", block_size=32)
    try:
        yield a.up(), b.up()
        assert (a.held_tokens(), b.held_tokens()) == (0, 0)
    finally:
        a.kill()
        b.kill()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(name: str, **changes: Any) -> Server:
        servers.append(Server(tmp_path, name, **changes))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def start_leg(request: str, epoch: int, role: Role, **changes: Any) -> Start:
    values = {"limit": 12, "reserve": len(PROMPT) + 12, "prompt_ids": PROMPT, "gateway": "g"}
    return Start(request=request, epoch=epoch, role=role, **(values | changes))


def send_kv(request: str, to: str, address: str | None) -> SendKV:
    return SendKV(
        request=request,
        epoch=1,
        to_worker=to,
        to_epoch=2,
        start=0,
        stop=len(PROMPT),
        address=address,
    )


def run_to_end(request: str, prefill: Server, main: Server) -> list[int]:
    """A request's tokens: prefilled on one worker, decoded on another (or the same)."""
    down, up = Reader(prefill, "g"), Reader(main, "g2")
    to, address = ("a", None) if prefill is main else ("b", f"127.0.0.1:{main.kv_port}@there")
    main.post("/control", start_leg(request, 2, Role.MAIN, gateway="g2"))
    prefill.post("/control", start_leg(request, 1, Role.PREFILL), send_kv(request, to, address))
    first = wait_until(lambda: down.of(TokenRun, request))[0]
    main.post("/feed", Feed(request=request, epoch=2, law=1, start=0, ids=first.ids))
    wait_until(lambda: len(up.ids(request, 2)) == 11)
    assert [run.index for run in up.of(TokenRun, request) if run.epoch == 2] == list(range(1, 12))
    assert up.of(Landed, request) == [Landed(request=request, epoch=2, covered=0)]
    if prefill is not main:
        (stats,) = up.of(KVStats, request)
        assert stats.bytes_raw == len(PROMPT) * main.http.get("/info").json()["kv_bytes_per_token"]
    prefill.post("/control", Stop(request=request, epoch=1))
    main.post("/control", Stop(request=request, epoch=2))
    wait_until(lambda: prefill.held_tokens() == main.held_tokens() == 0)
    down.close()
    up.close()
    return [*first.ids, *up.ids(request, 2)]


def test_kv_crosses_and_tokens_equal_a_run_on_one_worker(pair):
    a, b = pair
    assert run_to_end("across", a, b) == run_to_end("local", a, a)
    reader = Reader(a, "links")
    (link,) = wait_until(lambda: reader.of(Load))[0].links
    assert (link.site, link.queue_bytes, link.uncoded_bytes, link.resent_bytes) == (
        "there",
        0,
        0,
        0,
    )
    assert link.sent_bytes > 0
    assert link.goodput_bytes_per_s is not None
    assert link.goodput_bytes_per_s > 0
    assert link.rtt_s is not None
    assert 0 < link.rtt_s < 1
    reader.close()


def test_the_stream_begins_with_hello_and_carries_load(pair):
    a, _ = pair
    reader = Reader(a, "hello")
    assert reader.hello["worker"] == "a"
    assert reader.hello["info"]["block_size"] == 16
    load = wait_until(lambda: reader.of(Load))[0]
    assert load.kv_total_tokens == 2048
    reader.close()


def test_a_dropped_stream_is_made_good(pair):
    """Tokens by a resync; answers that were said to the old stream are said again."""
    a, _ = pair
    reader = Reader(a, "drop")
    a.post(
        "/control",
        start_leg("drop", 1, Role.PREFILL, gateway="drop"),
        start_leg("drop", 2, Role.MAIN, gateway="drop", limit=40, reserve=300),
        send_kv("drop", "a", None),
    )
    first = wait_until(lambda: reader.of(TokenRun, "drop"))[0]
    a.post("/feed", Feed(request="drop", epoch=2, law=1, start=0, ids=first.ids))
    wait_until(lambda: len(reader.ids("drop", 2)) >= 3)
    reader.close()

    again = Reader(a, "drop")
    assert again.of(Landed, "drop")
    a.post("/feed", Resync(request="drop", epoch=2, start=1))
    wait_until(lambda: {39} <= {r.index + len(r.ids) - 1 for r in again.of(TokenRun, "drop")})
    told: dict[int, int] = {}
    for run in again.of(TokenRun, "drop") + reader.of(TokenRun, "drop"):
        if run.epoch == 2:
            for index, token in enumerate(run.ids, run.index):
                assert told.setdefault(index, token) == token
    assert sorted(told) == list(range(1, 40))
    a.post("/control", Stop(request="drop", epoch=1), Stop(request="drop", epoch=2))
    again.close()


def test_a_newer_stream_of_a_gateway_replaces_the_older(pair):
    a, _ = pair
    old = Reader(a, "twice")
    new = Reader(a, "twice")
    old.thread.join(20.0)
    assert not old.thread.is_alive()
    assert wait_until(lambda: new.of(Load))
    new.close()


def test_pause_is_answered(pair):
    a, _ = pair
    reader = Reader(a, "p")
    a.post(
        "/control", start_leg("p", 1, Role.MAIN, gateway="p"), Pause(request="p", epoch=1, seq=1)
    )
    assert wait_until(lambda: reader.of(Paused, "p")) == [Paused(request="p", epoch=1, seq=1, at=0)]
    a.post("/control", Stop(request="p", epoch=1))
    reader.close()


@pytest.mark.parametrize("path", ["/info", "/health", "/blocks", "/tokens?gateway=g", "/nothing"])
@pytest.mark.parametrize("key", [{}, {"authorization": "Bearer wrong"}])
def test_without_the_secret_nothing_is_told(pair, path, key):
    refused = httpx.get(f"http://127.0.0.1:{pair[0].http_port}{path}", headers=key)
    assert refused.status_code == 401
    assert "bearer" in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/control", b"{", "not JSON"),
        ("/control", b"[]", "messages"),
        ("/control", b'{"messages": [{"kind": "stop", "request": "r"}]}', "epoch missing"),
        ("/control", b'{"messages": [{"kind": "stop", "request": "r", "epoch": "x"}]}', "epoch"),
        ("/control", b'{"messages": [{"kind": "tok"}]}', "kind"),
        ("/feed", b'{"messages": [{"kind": "stop", "request": "r", "epoch": 1}]}', "kind"),
    ],
)
def test_a_malformed_message_is_a_400_that_names_the_field(pair, path, body, words):
    refused = pair[0].http.post(path, content=body)
    assert refused.status_code == 400
    assert words in refused.json()["error"]


def test_what_is_meant_for_another_life_is_not_begun(pair):
    """A start may come late: after a restart nobody would stop the leg, whose stop came before."""
    a, _ = pair
    leg = orjson.dumps({"messages": [encode(start_leg("late", 1, Role.PREFILL, gateway="late"))]})
    reader = Reader(a, "late")
    late = a.http.post("/control", content=leg, params={"gateway": "late", "to": "an earlier life"})
    assert late.status_code == 410
    assert "not an earlier life" in late.json()["error"]
    assert a.held_tokens() == 0
    here = {"gateway": "late", "to": reader.hello["incarnation"]}
    assert a.http.post("/control", content=leg, params=here).status_code == 200
    assert wait_until(a.held_tokens)
    a.post("/control", Stop(request="late", epoch=1))
    reader.close()


def test_a_stop_interrupts_a_long_step(start_server):
    """The step would take 400 seconds; a client waits 20 for an answer."""
    server = start_server("slow", simulated={"prefill_tokens_per_s": 0.5, "step_s": 0.01}).up()
    server.post("/control", start_leg("long", 1, Role.PREFILL))
    wait_until(lambda: server.http.get("/health").json()["ok"])
    server.post("/control", Stop(request="long", epoch=1))
    assert server.held_tokens() == 0


def test_legs_are_freed_when_their_gateway_posts_no_more(start_server):
    """Its open stream alone proves nothing: over a cut line it stays open."""
    server = start_server("leased", lease_s=2.0).up()
    reader = Reader(server, "kept")
    server.post("/control", start_leg("k", 1, Role.MAIN, gateway="kept"))
    server.post("/control", start_leg("l", 1, Role.MAIN, gateway="left"))
    both = server.held_tokens()

    def one_is_left() -> bool:
        server.post("/feed", gateway="kept")
        return server.held_tokens() == both // 2

    wait_until(one_is_left)
    assert not reader.of(Refused, "k")
    wait_until(lambda: server.held_tokens() == 0)
    assert wait_until(lambda: reader.of(Refused, "k"))
    assert not reader.of(Refused, "l")
    reader.close()


def test_sigterm_drains(start_server):
    server = start_server("drained").up()
    reader = Reader(server, "g")
    server.post(
        "/control",
        start_leg("d", 1, Role.PREFILL),
        start_leg("d", 2, Role.MAIN, limit=40, reserve=300),
        send_kv("d", "drained", None),
    )
    first = wait_until(lambda: reader.of(TokenRun, "d"))[0]
    server.post("/feed", Feed(request="d", epoch=2, law=1, start=0, ids=first.ids))
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.http.get("/health").json()["draining"])
    server.post("/control", start_leg("late", 1, Role.PREFILL))
    refused = wait_until(lambda: reader.of(Refused, "late"))[0]
    assert "draining" in refused.reason
    wait_until(lambda: len(reader.ids("d", 2)) == 39)
    assert server.process.poll() is None
    server.post("/control", Stop(request="d", epoch=1), Stop(request="d", epoch=2))
    assert server.process.wait(20.0) == 0


def test_a_worker_ends_when_its_parent_does(tmp_path):
    config = write_config(tmp_path, "child")
    program = (
        "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    )
    command = [sys.executable, "-m", "workers.service.process", str(config)]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *command],
        cwd=ROOT,
        env=os.environ | {SECRET_ENV: SECRET},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{json.loads(config.read_text())['http_port']}/health"

    def answers() -> bool:
        try:
            return httpx.get(url, headers={"authorization": f"Bearer {SECRET}"}).is_success
        except httpx.TransportError:
            return False

    try:
        child = int(parent.stdout.readline())
        wait_until(answers)
    finally:
        parent.kill()
        parent.wait(20)
    wait_until(lambda: not answers())
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_worker_that_cannot_start_says_why_in_one_line(start_server, pair):
    server = start_server("second", http_port=pair[0].http_port)
    assert server.process.wait(20.0) == 1
    last = server.errors.read_text().splitlines()[-1]
    taken = f"port {pair[0].http_port} on 127.0.0.1: Address already in use"
    assert last == f"worker cannot start: {taken}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "torch", "model": "no/such/model"}, "no such directory"),
        ({"engine": "abacus"}, "known are torch, simulated"),
        ({"roles": ["boss"]}, "roles"),
        ({"kv_tokens": "many"}, "kv_tokens"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(tmp_path, monkeypatch, changes, words):
    monkeypatch.setenv(SECRET_ENV, SECRET)
    with pytest.raises(StartFailed, match=words) as caught:
        WorkerProcess(read_config(write_config(tmp_path, "broken", **changes), WorkerConfig)).run()
    assert "\n" not in str(caught.value)
