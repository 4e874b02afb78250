"""What the doctor says of a pool's vLLM."""

import subprocess
from pathlib import Path

import httpx
import pytest

from orchestrator.catalogue import load_catalogue
from orchestrator.doctor.finding import Finding, State
from orchestrator.doctor.vllm import vllm_findings
from orchestrator.topology.load import load_topology

TEXT = """
model: smollm2-135m
sites:
  hami:
    pools:
      compute: {chip: cpu, engine: vllm, kv_tokens: 2048, vllm: VLLM}
gateway: {site: hami}
"""
STARTED = "{python: /opt/vllm/bin/python}"
ATTACHED = "{attach: 'http://127.0.0.1:8100', pools: POOLS}"
ANSWERS = {
    "/version": '{"version":"0.32.0"}',
    "/v1/models": '{"data":[{"id":"pdd"}]}',
    "/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1001"} 1.0\n',
}


def findings(folder: Path, vllm: str, known: bool = False, **how: object) -> list[Finding]:
    file = folder / "topology.yaml"
    file.write_text(TEXT.replace("VLLM", vllm.replace("POOLS", str(folder / "pools"))))
    facts = load_catalogue().models["smollm2-135m"] if known else None
    return vllm_findings(load_topology(file), facts, **how)  # type: ignore[arg-type]


def said(answers: dict[str, str]):
    return lambda url: answers[url.removeprefix("http://127.0.0.1:8100")]


def test_a_vllm_that_was_tested(tmp_path: Path) -> None:
    asked: list[list[str]] = []
    (found,) = findings(tmp_path, STARTED, run=lambda c: asked.append(c) or "0.32.0+cpu")
    assert (found.check, found.state) == ("vllm of hami.compute", State.OK)
    assert asked[0][0] == "/opt/vllm/bin/python"


def test_one_that_was_not(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, STARTED, run=lambda command: "0.40.1")
    assert found.state is State.FAIL
    assert found.value == "/opt/vllm/bin/python has vLLM 0.40.1"
    assert "tested with 0.32.0" in (found.advice or "")


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no"), subprocess.CalledProcessError(1, "python")]
)
def test_a_python_without_it(tmp_path: Path, error: Exception) -> None:
    def run(command: list[str]) -> str:
        raise error

    (found,) = findings(tmp_path, STARTED, run=run)
    assert found.state is State.FAIL
    assert "has no vLLM" in found.value


def test_one_that_runs(tmp_path: Path) -> None:
    version, name, room = findings(tmp_path, ATTACHED, get=said(ANSWERS))
    assert version.value == "http://127.0.0.1:8100 runs vLLM 0.32.0, blocks of 16 tokens"
    assert (version.state, name.state, room.state) == (State.OK,) * 3
    assert room.value == "16000 tokens of KV; the pool wants 2048"


def test_one_that_runs_otherwise(tmp_path: Path) -> None:
    answers = {
        "/version": '{"version": "0.31.0"}',
        "/v1/models": '{"data":[{"id":"llama"}]}',
        "/metrics": 'vllm:cache_config_info{num_gpu_blocks="11",block_size="16"} 1.0\n',
    }
    version, name, room = findings(tmp_path, ATTACHED, get=said(answers))
    assert (version.state, name.state, room.state) == (State.FAIL, State.FAIL, State.WARN)
    assert name.advice == "start it with --served-model-name pdd"
    assert room.value == "160 tokens of KV; the pool wants 2048"


def test_one_that_does_not_answer(tmp_path: Path) -> None:
    def get(url: str) -> str:
        raise httpx.ConnectError("refused")

    (found,) = findings(tmp_path, ATTACHED, get=get)
    assert (found.state, found.value) == (State.FAIL, "http://127.0.0.1:8100: refused")


def test_room_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, memory = findings(tmp_path, ATTACHED, known=True, get=said(ANSWERS))
    assert memory.state is State.OK
    assert memory.value.endswith("2048 tokens of KV take 45 MiB")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 1 << 20}))
    *_, memory = findings(tmp_path, ATTACHED, known=True, get=said(ANSWERS))
    assert memory.state is State.FAIL


def test_what_is_elsewhere_is_not_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(
        TEXT.replace("VLLM", STARTED).replace("  hami:\n", "  hami:\n    launch: agent\n")
    )
    assert vllm_findings(load_topology(file), None) == []
