"""`pdd serve` given something it cannot use: one clear line, the exit code, no process left."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workers.engines.models import resolve_model

pytestmark = pytest.mark.timeout(240)

MARK = "PDD_TEST_MARK"


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the environment of whatever the command starts; nothing may carry it at the end."""
    word = f"mark-{os.getpid()}-{os.urandom(4).hex()}"
    yield word
    assert not _marked(word), "processes were left behind"


def _marked(word: str) -> list[str]:
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == word:
                left.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return left


def serve(mark: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=220,
        env=os.environ | {MARK: mark},
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def topology(root: Path, into: Path, **changes: str) -> Path:
    text = (root / "configs" / "topologies" / "laptop-4000km.yaml").read_text()
    for old, new in changes.items():
        assert f"\n{old}: " in text
        text = "\n".join(
            f"{old}: {new}" if line.startswith(f"{old}: ") else line for line in text.split("\n")
        )
    file = into / "topology.yaml"
    file.write_text(text)
    return file


def test_roles_that_are_left_out_need_a_plan(root: Path, mark: str, tmp_path: Path) -> None:
    file = topology(root, tmp_path)
    file.write_text(file.read_text().replace("chip: cpu, roles: [main]", "chip: cpu"))
    done = serve(mark, str(file))
    assert done.returncode == 2
    assert done.stderr == (
        "sites.shenzhen.pools.memory.roles: left out, so they are planned; add plan: {prompt: 600, "
        "output: 128}, a usual request's tokens, or give roles\n"
    )


def test_a_port_in_use(root: Path, mark: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = root / "configs" / "topologies" / "laptop-4000km.yaml"
        done = serve(mark, str(file), "--port", str(port))
    assert done.returncode == 2
    assert done.stderr == (
        f"gateway.port: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what uses it or give another port\n"
    )


def test_a_broken_file(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("model: smollm2-135m\nsites: [\n")
    done = serve(mark, str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{file}:")
    assert "Traceback" not in done.stderr


def test_a_model_that_does_not_exist(root: Path, tmp_path: Path, mark: str) -> None:
    file = topology(root, tmp_path, model="./no-such-model")
    done = serve(mark, str(file))
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_gateway_site(root: Path, mark: str) -> None:
    file = root / "configs" / "topologies" / "laptop-4000km.yaml"
    done = serve(mark, str(file), "--gateway-site", "atlantis")
    assert done.returncode == 2
    assert done.stderr == (
        "--gateway-site: no site 'atlantis' in the topology; there are hami, shenzhen\n"
    )


def test_empty_api_keys(root: Path, tmp_path: Path, mark: str) -> None:
    file = topology(root, tmp_path)
    file.write_text(file.read_text() + "security: {api_keys_env: PDD_NO_SUCH_KEYS}\n")
    done = serve(mark, str(file), "--port", str(free_port()))
    assert done.returncode == 2
    assert "PDD_NO_SUCH_KEYS is empty" in done.stderr


def test_a_worker_that_never_comes_up(root: Path, tmp_path: Path, mark: str) -> None:
    model = tmp_path / "half-a-model"
    shutil.copytree(resolve_model("smollm2-135m"), model)
    (model / "model.safetensors").write_bytes(b"not safetensors")
    config = json.loads((model / "config.json").read_text())
    assert config["model_type"] == "llama"
    file = topology(root, tmp_path, model=str(model))
    done = serve(mark, str(file), "--port", str(free_port()))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cannot start: worker ")
    assert "half-a-model" in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "gateway.agents: missing; say where agents reach the gateway, such as "
            "{host: 10.0.0.2, port: 7100}",
        ),
        (
            {"launch: agent": "launch: local"},
            "sites.hami.pools.compute.parallel: the torch engine runs one worker on one chip, "
            "got 8; leave it out",
        ),
        (
            {"launch: agent": "launch: local", "parallel: 8, ": "", "parallel: 4, ": ""}
            | {"security: {api_keys_env: PDD_API_KEYS}": ""},
            "model 'llama-3.1-70b': no such directory; give the path of a Hugging Face model "
            "directory or the name smollm2-135m",
        ),
    ],
    ids=["agent", "parallel", "no weights"],
)
def test_what_this_machine_cannot_start(
    root: Path, tmp_path: Path, mark: str, changes: dict[str, str], line: str
) -> None:
    text = (root / "configs" / "topologies" / "hami-shenzhen.yaml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    done = serve(mark, str(file), "--port", str(free_port()))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


def test_a_tokenizer_that_cannot_be_read(root: Path, tmp_path: Path, mark: str) -> None:
    model = tmp_path / "half-a-model"
    shutil.copytree(resolve_model("smollm2-135m"), model)
    (model / "tokenizer.json").write_text("{}")
    done = serve(mark, str(topology(root, tmp_path, model=str(model))), "--port", str(free_port()))
    assert done.returncode == 2
    assert done.stderr.startswith(f"model '{model}': its tokenizer: ")
    assert done.stderr.count("\n") == 1


def test_an_architecture_that_nobody_knows(root: Path, tmp_path: Path, mark: str) -> None:
    model = tmp_path / "half-a-model"
    shutil.copytree(resolve_model("smollm2-135m"), model)
    (model / "config.json").write_text('{"model_type": "no-such-architecture"}')
    done = serve(mark, str(topology(root, tmp_path, model=str(model))), "--port", str(free_port()))
    assert done.returncode == 2
    assert done.stderr.startswith(f"model '{model}': ")
    assert "no-such-architecture" in done.stderr
    assert done.stderr.count("\n") == 1
