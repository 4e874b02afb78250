"""Starting, watching and ending a vLLM, and talking to it; a small HTTP server plays it."""

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workers.engines.models import ModelError
from workers.engines.vllm.client import Door, Over, Told
from workers.engines.vllm.server import (
    Guard,
    Process,
    Server,
    command,
    environment,
    read_kv_tokens,
)

METRICS = 'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="182"} 1.0\n'


class Player(BaseHTTPRequestHandler):
    """`server.answer`: status and lines of a completion; `server.left` counts who went away."""

    def do_GET(self) -> None:
        models = {"data": [{"id": self.server.name, "max_model_len": 77}]}  # type: ignore[attr-defined]
        bodies = {"/health": "", "/metrics": METRICS, "/v1/models": json.dumps(models)}
        self.send_response(self.server.health)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(bodies[self.path].encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, lines = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        for line in lines:
            self.wfile.write(f"data: {line}\n\n".encode())
            self.wfile.flush()
        while self.server.hold:  # type: ignore[attr-defined]
            try:
                self.wfile.write(b": \n\n")
                self.wfile.flush()
            except OSError:
                self.server.left.set()  # type: ignore[attr-defined]
                return
            time.sleep(0.01)

    def log_message(self, *args: Any) -> None:
        """Silence."""


@pytest.fixture
def player() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Player)
    server.daemon_threads = True
    server.name, server.health, server.hold = "pdd", 200, False
    server.left = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.hold = False
    server.shutdown()
    server.server_close()


@pytest.fixture
def attached(player: Any, tmp_path: Path) -> Iterator[Server]:
    guard = Guard(None, tmp_path / "pool")
    server = Server(Door(f"http://127.0.0.1:{player.server_port}"), None, guard)
    yield server
    server.close()


def chunk(ids: list[int], finish: str | None = None) -> str:
    return json.dumps({"choices": [{"token_ids": ids, "finish_reason": finish}]})


def news(server: Server, count: int) -> list[Told | Over]:
    got: list[Told | Over] = []
    end = time.monotonic() + 10
    while len(got) < count and server.lost is None and time.monotonic() < end:
        got += server.events(0.05)
    return got


def test_it_says_how_much_it_can_take(attached: Server) -> None:
    assert attached.start() == (181 * 128, 77)


def test_a_vllm_under_another_name_is_refused(player: Any, attached: Server) -> None:
    player.name = "llama"
    with pytest.raises(ModelError, match="serves llama: start it with --served-model-name pdd"):
        attached.start()


def test_one_that_never_serves_is_given_up(player: Any, attached: Server) -> None:
    player.health = 503
    with pytest.raises(ModelError, match="does not serve"):
        attached.start(start_s=0.0)


def test_tokens_come_as_they_are_told(player: Any, attached: Server) -> None:
    player.answer = (200, [chunk([5]), chunk([6, 7]), chunk([], "length"), "[DONE]"])
    attached.submit(3, {})
    got = news(attached, 3)
    assert got == [Told(3, [(5, None)]), Told(3, [(6, None), (7, None)]), Over(3)]


def test_a_refusal_is_that_runs_alone(player: Any, attached: Server) -> None:
    player.answer = (400, ["too long"])
    attached.submit(3, {})
    (over,) = news(attached, 1)
    assert isinstance(over, Over)
    assert over.refusal is not None
    assert "400" in over.refusal
    assert attached.lost is None


@pytest.mark.parametrize(
    ("status", "lines", "words"),
    [
        (500, ["dead"], "answers 500"),
        (200, [chunk([5])], "ended a request by itself: None"),
        (200, [chunk([5], "error")], "ended a request by itself: error"),
        (200, ["{}"], "vLLM says"),
    ],
)
def test_whatever_else_means_that_vllm_is_lost(
    player: Any, attached: Server, status: int, lines: list[str], words: str
) -> None:
    heard = threading.Event()
    attached.on_lost = heard.set
    player.answer = (status, lines)
    attached.submit(3, {})
    assert heard.wait(10)
    assert attached.lost is not None
    assert words in attached.lost


def test_what_nobody_foresaw_is_heard_too(
    player: Any, attached: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: int, data: str) -> None:
        raise RuntimeError("a mistake of ours")

    heard = threading.Event()
    attached.on_lost = heard.set
    monkeypatch.setattr(attached._runs, "_told", fails)
    player.answer = (200, [chunk([5])])
    attached.submit(3, {})
    assert heard.wait(10)
    assert attached.lost == "a request to vLLM failed: RuntimeError('a mistake of ours')"


class OnSocket(ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    server_bind = socketserver.TCPServer.server_bind


def test_a_vllm_of_our_own_answers_behind_a_socket(tmp_path: Path) -> None:
    place = tmp_path / "pool.sock"
    behind: Any = OnSocket(str(place), Player)
    behind.daemon_threads = True
    behind.name, behind.health, behind.hold = "pdd", 200, False
    behind.answer = (200, [chunk([5], "length")])
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    guard = Guard(None, tmp_path / "pool")
    server = Server(Door("http://vllm", socket=place), None, guard)
    try:
        assert server.start() == (181 * 128, 77)
        server.submit(3, {})
        assert news(server, 2) == [Told(3, [(5, None)]), Over(3)]
    finally:
        server.close()
        behind.shutdown()
        behind.server_close()
    assert not place.exists()


def test_who_aborts_leaves(player: Any, attached: Server) -> None:
    player.answer, player.hold = (200, [chunk([5])]), True
    attached.submit(3, {})
    assert news(attached, 1) == [Told(3, [(5, None)])]
    attached.abort(3)
    attached.abort(4)  # never asked for
    assert player.left.wait(10)
    assert attached.lost is None


def test_an_unhealthy_vllm_is_noticed(player: Any, attached: Server) -> None:
    heard = threading.Event()
    attached.on_lost = heard.set
    attached.start()
    player.health = 503
    assert heard.wait(15)
    assert attached.lost is not None
    assert "is not healthy" in attached.lost


def test_room_is_read_from_the_metrics() -> None:
    assert read_kv_tokens("# a\n" + METRICS) == 181 * 128
    with pytest.raises(ModelError, match="do not say"):
        read_kv_tokens("vllm:cache_config_info{} 1.0\n")


def test_the_command_names_what_the_connector_needs(tmp_path: Path) -> None:
    line = command(
        python="python3",
        model=tmp_path,
        dtype="bfloat16",
        socket=tmp_path / "s",
        pools=tmp_path / "pools",
        ranks=4,
        args=["--enforce-eager"],
    )
    assert line[:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert {"--dtype=bfloat16", "--tensor-parallel-size=4"} <= set(line)
    assert f"--uds={tmp_path / 's'}" in line
    assert not [part for part in line if part.startswith(("--port", "--host"))]
    assert line[-1] == "--enforce-eager"
    (transfer,) = [part for part in line if part.startswith("--kv-transfer-config=")]
    config = json.loads(transfer.partition("=")[2])
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {"pools": str(tmp_path / "pools")}


def test_vllm_gets_none_of_the_deployments_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDD_SECRET", "s3cret")
    monkeypatch.setenv("HF_HOME", "/models")
    made = environment({})
    assert "s3cret" not in made.values()
    assert made["HF_HOME"] == "/models"


def test_its_log_is_its_users_and_no_link_is_followed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path))
        process = Process([sys.executable, "-c", "pass"], os.environ, "a/b/0")
        log = tmp_path / "pdd-vllm-a-b-0.log"
        assert log.stat().st_mode & 0o077 == 0
        log.unlink()
        log.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ModelError):
            Process([sys.executable, "-c", "pass"], os.environ, "a/b/0")
        assert not (tmp_path / "elsewhere").exists()
        assert process.group > 0


def test_the_environment_lets_vllm_find_the_connector() -> None:
    made = environment({"VLLM_USE_V2_MODEL_RUNNER": "1", "A": "b"})
    first = Path(made["PYTHONPATH"].split(os.pathsep)[0])
    assert (first / "workers" / "engines" / "vllm" / "inside" / "connector.py").is_file()
    assert (made["VLLM_USE_V2_MODEL_RUNNER"], made["A"]) == ("1", "b")


# -------------------------------------------------------------------- processes

CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("ready", child.pid, flush=True)
time.sleep(100)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def started(name: str) -> tuple[Process, list[int]]:
    process = Process([sys.executable, "-c", CHILD], os.environ, name)
    end = time.monotonic() + 20
    while "ready" not in process.last_words and time.monotonic() < end:
        time.sleep(0.02)
    child = int(process.last_words.split()[1])
    return process, [process.group, child]


def test_the_guard_ends_it_with_its_children_and_its_pool(tmp_path: Path) -> None:
    """That is also what happens when we die: our end of its pipe is closed."""
    process, pids = started("end")
    for left in ("pool", "pool.sock"):
        (tmp_path / left).touch()
    guard = Guard(process.group, tmp_path / "pool")
    assert not process.ended
    guard.act()
    assert process.ended
    assert all(map(gone, pids))
    assert not list(tmp_path.iterdir())


def test_the_guard_acts_when_its_owner_is_killed(tmp_path: Path) -> None:
    (tmp_path / "pool").touch()
    owner = (
        "import time; from pathlib import Path; from workers.engines.vllm.server import Guard; "
        f"guard = Guard(None, Path({str(tmp_path / 'pool')!r})); print('up', flush=True); "
        "time.sleep(100)"
    )
    child = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    assert (tmp_path / "pool").exists()
    child.kill()
    child.wait()
    end = time.monotonic() + 10
    while (tmp_path / "pool").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not (tmp_path / "pool").exists()


def test_one_that_dies_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    process, _ = started("dies")
    guard = Guard(process.group, tmp_path / "pool")
    server = Server(Door("http://vllm", socket=tmp_path / "none"), process, guard)
    heard = threading.Event()
    server.on_lost = heard.set
    server._watch.start()
    os.kill(process.group, signal.SIGKILL)
    assert heard.wait(10)
    assert server.lost is not None
    assert server.lost.startswith("vLLM has ended: ready")
    server.close()


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "raise ValueError('no such model')"], os.environ, "no")
    guard = Guard(process.group, tmp_path / "pool")
    server = Server(Door("http://vllm", socket=tmp_path / "none"), process, guard)
    with pytest.raises(ModelError, match=r"does not start: ValueError: no such model \(its log"):
        server.start()
    server.close()
    with pytest.raises(ModelError, match="cannot be started: No such file"):
        Process(["/no/python"], {}, "none")
