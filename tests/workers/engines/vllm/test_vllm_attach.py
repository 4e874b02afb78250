"""A real vLLM that runs by itself, as docs/vllm.md starts it: a worker goes to it, and leaves."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.workers.engines.vllm.live_rig import (
    ENV,
    check_equal,
    client_of,
    metric,
    run,
    spec,
    uninterrupted,
    vllm_python,
)
from workers.api.messages import Sampling
from workers.engines.base import SeqId
from workers.engines.models import ModelError, resolve_model
from workers.engines.vllm.load import KEY_ENV, load_engine
from workers.engines.vllm.server import Guard, Process, command, environment
from workers.engines.vllm.settings import VllmSettings

pytestmark = pytest.mark.timeout(1500)

KEY = "a-key-for-tests"
NEW = 12


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Process, str, Path]]:
    """The process, its url, its folder of pools."""
    python, pools = vllm_python(), tmp_path / "pools"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = command(
        python=python,
        model=resolve_model("smollm2-135m"),
        dtype="float32",
        socket=tmp_path / "none",
        pools=pools,
        ranks=1,
        args=["--enforce-eager", "--num-gpu-blocks-override=18", "--max-model-len=2048"],
    )
    by_port = [part for part in line if not part.startswith("--uds=")]
    by_port += ["--host=127.0.0.1", f"--port={port}", f"--api-key={KEY}"]
    process = Process(by_port, environment(ENV), "test-vllm-attach")
    guard = Guard(process.group, tmp_path / "none")
    yield process, f"http://127.0.0.1:{port}", pools
    guard.act()


def test_a_worker_attaches_and_leaves_it_running(
    running: tuple[Process, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, url, pools = running
    how = {"name": "a", "dtype": "float32", "kv_tokens": 2048, "block_size": 16, "slots": 8}
    settings = VllmSettings(attach=url, pools=str(pools))
    model, prompt = resolve_model("smollm2-135m"), list(range(1000, 1140))
    until_it_serves(process, url)
    with pytest.raises(ModelError, match="401"):  # its key was not told
        load_engine(model, settings, ranks=1, **how)
    monkeypatch.setenv(KEY_ENV, KEY)
    said = []
    for _ in range(2):  # one worker after another, each with a pool of its own
        engine = load_engine(model, settings, ranks=1, **how)
        with client_of(engine) as vllm:
            seq = SeqId("attached", len(said))
            engine.open(seq, spec(prompt, len(prompt), NEW, Sampling(margins=True)), reuse=False)
            said.append(run(engine, {seq: len(prompt) + NEW})[seq])
            (expected,) = uninterrupted(vllm, [prompt], NEW, Sampling())
            engine.close(seq)
            engine.begin()
            assert engine.kv_held_tokens() == 0
            assert metric(vllm, "vllm:kv_cache_usage_perc") == 0
        engine.shutdown()
        assert not list(pools.iterdir()), "its pool goes with it"
        assert not process.ended, "what was attached is not ours to end"
        check_equal(said[-1], expected)


def until_it_serves(process: Process, url: str) -> None:
    pause, end = 0.5, time.monotonic() + 900.0
    while time.monotonic() < end:
        assert not process.ended, process.last_words
        try:
            if httpx.get(f"{url}/health", timeout=10.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(pause)
    raise AssertionError(f"not up: {process.last_words}")
