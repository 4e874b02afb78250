"""What the connector's hooks take of a vLLM step (`pdd bench hooks`)."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from workers.engines.models import resolve_model
from workers.engines.vllm.server import environment, transfer_config

INSIDE = Path(__file__).with_name("hooks_inside.py")
# All in one process, so that its hooks can be timed.
ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def run(python: str, model: str) -> dict[str, Any]:
    """Measure with the vLLM of `python`. Raises RuntimeError with what it said."""
    measured_on = machine()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        pools = Path(folder) / "pools"
        arguments = [str(resolve_model(model)), str(pools), transfer_config(pools), str(result)]
        done = subprocess.run(
            [python, str(INSIDE), *arguments],
            env=environment(ENV),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not result.is_file():
            words = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
            raise RuntimeError(f"{python} said: {words[-1][-300:]}")
        return {"machine": measured_on, "model": model, **json.loads(result.read_text())}
