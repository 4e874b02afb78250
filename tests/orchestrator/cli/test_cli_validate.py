"""`pdd validate` as people run it: in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAPTOP = "configs/topologies/laptop-4000km.yaml"


def pdd(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("broken") / "broken.yaml"
    text = (ROOT / LAPTOP).read_text(encoding="utf-8")
    text = text.replace("relay: {chip: cpu", "relay: {chip: gpu").replace("10Mbps", "10Mb")
    file.write_text(text, encoding="utf-8")
    return file


def test_a_good_file() -> None:
    done = pdd("validate", LAPTOP)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{LAPTOP}: good\n")
    assert "hami - shenzhen: 25 ms one way, 10 Mbps, jitter 0.2 ms" in done.stdout
    assert "emulated; the KV of 1000 tokens needs 18.5 s" in done.stdout


def test_a_pool_that_keeps_kv_says_how_much() -> None:
    done = pdd("validate", "configs/topologies/laptop-stores.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch, main; keeps KV in 0.5 GiB of memory and 4 GiB of files" in done.stdout


def test_kv_is_reckoned_in_the_dtype_that_the_file_gives() -> None:
    done = pdd("validate", "configs/topologies/laptop-vllm.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "smollm2-135m, 46080 bytes of KV per token (float32)" in done.stdout
    assert "30 Mbps, jitter 0.2 ms, loss 0, emulated; the KV of 1000 tokens needs 12.3 s" in (
        done.stdout
    )


def test_a_good_file_as_json() -> None:
    done = pdd("validate", "configs/topologies/hami-shenzhen.yaml", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["links"][0]["delay_s"] == pytest.approx(0.0245)
    assert summary["links"][0]["rate_bytes_per_s"] == 2.5e9
    assert [pool["roles"] for pool in summary["pools"]] == [["prefill"], ["relay"], ["main"]]
    assert summary["price_per_h"] == pytest.approx(44)


def test_roles_that_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "open.yaml"
    text = (
        (ROOT / LAPTOP).read_text(encoding="utf-8").replace("chip: cpu, roles: [main]", "chip: cpu")
    )
    file.write_text(text, encoding="utf-8")
    done = pdd("validate", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert "  pool   memory: 1 x cpu, 1 worker, torch, roles by plan" in done.stdout


def test_mistakes(broken: Path) -> None:
    done = pdd("validate", str(broken))
    assert (done.returncode, done.stdout) == (2, "")
    chip, bandwidth = done.stderr.splitlines()
    assert chip.startswith(f"{broken}:10:21: sites.hami.pools.relay.chip: unknown chip 'gpu'; ")
    assert bandwidth == (
        f"{broken}:17:57: links[0].bandwidth: '10Mb' is ambiguous: write 10Mbps for bits or "
        "10MB/s for bytes per second"
    )


def test_mistakes_as_json(broken: Path) -> None:
    done = pdd("validate", "-o", "json", str(broken))
    assert (done.returncode, done.stderr) == (2, "")
    first, second = json.loads(done.stdout)
    assert first.keys() == {"file", "line", "column", "path", "message"}
    assert (first["line"], first["column"]) == (10, 21)
    assert second["path"] == "links[0].bandwidth"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["validat"], "unknown command 'validat'; did you mean 'validate'?"),
        (["xyzzy"], "unknown command 'xyzzy'; pdd --help lists them"),
        (
            ["validate"],
            "Missing argument 'file'. (pdd validate --help shows what it takes)",
        ),
        (
            ["validate", "--fast", LAPTOP],
            "No such option: --fast (pdd validate --help shows what it takes)",
        ),
        (
            ["validate", "no-such.yaml"],
            "no-such.yaml:1:1: cannot be read: No such file or directory",
        ),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], line: str) -> None:
    done = pdd(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


def test_a_traceback_only_when_asked_for(broken: Path) -> None:
    assert "Traceback" in pdd("validate", str(broken), PDD_DEBUG="1").stderr


def test_output_that_nobody_reads() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "validate", LAPTOP],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, "")
