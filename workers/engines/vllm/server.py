"""The vLLM that computes for a worker: started as its child, or one that runs already."""

import json
import os
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from workers.engines.models import ModelError
from workers.engines.vllm.client import Door, Over, RunsClient, Told
from workers.engines.vllm.settings import GUARD_ENV, START_S

CONNECTOR = "workers.engines.vllm.inside.connector"
SAMPLER = "workers.engines.vllm.inside.sampler:PddSampler"
NAME = "pdd"  # under which the model is served
_LOOK_S = 1.0
_ROOT = Path(__file__).parents[3]


class Room(NamedTuple):
    """How much vLLM can take: tokens in its own KV memory, and of one sequence."""

    kv_tokens: int
    context: int


def transfer_config(pools: Path) -> str:
    """What --kv-transfer-config must say."""
    return json.dumps(
        {
            "kv_connector": "PddConnector",
            "kv_role": "kv_both",
            "kv_connector_module_path": CONNECTOR,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"pools": str(pools)},
        },
        separators=(",", ":"),
    )


def command(
    *,
    python: str,
    model: Path,
    dtype: str,
    socket: Path,
    pools: Path,
    ranks: int,
    args: Sequence[str],
) -> list[str]:
    """How vLLM is started for a worker; `args` come last and may say otherwise.

    It listens on a socket file and on no port: no other user of the machine can ask it, also not
    by the paths that vLLM guards with no key, and no two can want the same port.
    """
    return [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model}",
        f"--served-model-name={NAME}",
        f"--dtype={dtype}",
        f"--uds={socket}",
        f"--tensor-parallel-size={ranks}",
        "--generation-config=vllm",
        f"--logits-processors={SAMPLER}",
        f"--kv-transfer-config={transfer_config(pools)}",
        *args,
    ]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """vLLM's environment: it finds our connector, runs what takes our sampler, and has none of the
    deployment's secrets.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PDD_")},
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        **more,
    }


def read_kv_tokens(metrics: str) -> int:
    """The size of vLLM's KV memory, from its metrics. Raises ModelError."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\} ", metrics, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1])) if line else {}
    try:
        blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        raise ModelError("vLLM's metrics do not say how much room for KV it has") from None
    return (blocks - 1) * size  # block 0 is never given out


class Server:
    """A vLLM that answers. `lost` says why it cannot be worked with any more, `on_lost` calls."""

    def __init__(self, door: Door, process: "Process | None", guard: "Guard") -> None:
        self.model = NAME
        self.on_lost = lambda: None
        self._lost: str | None = None
        self._process = process
        self._guard = guard
        self._closing = threading.Event()
        self._door = door
        self._http = httpx.Client(
            base_url=door.url,
            headers=door.headers,
            timeout=10.0,
            transport=httpx.HTTPTransport(uds=door.uds),
        )
        self._runs = RunsClient(door, self._is_lost)
        self._watch = threading.Thread(target=self._look, name="vllm-watch", daemon=True)

    def start(self, start_s: float = START_S) -> Room:
        """Wait until it serves; its room for KV. Raises ModelError."""
        end = time.monotonic() + start_s
        while not self._healthy():
            self._raise_if_ended()
            if time.monotonic() > end:
                raise ModelError(f"vLLM at {self._door} does not serve{self._said()}")
            time.sleep(0.5)
        models = {model["id"]: model for model in self._get("/v1/models").json()["data"]}
        if NAME not in models:
            raise ModelError(
                f"vLLM at {self._door} serves {', '.join(models)}: start it with "
                f"--served-model-name {NAME}"
            )
        kv_tokens = read_kv_tokens(self._get("/metrics").text)
        self._watch.start()
        return Room(kv_tokens, int(models[NAME]["max_model_len"]))

    def close(self) -> None:
        self._closing.set()
        self._runs.close()
        self._guard.act()

    # ------------------------------------------------------------ what the engine asks

    @property
    def lost(self) -> str | None:
        return self._lost

    def submit(self, run: int, body: dict[str, Any]) -> None:
        self._runs.submit(run, body)

    def abort(self, run: int) -> None:
        self._runs.abort(run)

    def events(self, timeout_s: float) -> list[Told | Over]:
        return self._runs.events(timeout_s)

    # ------------------------------------------------------------ watching

    def _look(self) -> None:
        misses = 0
        while not self._closing.wait(_LOOK_S):
            if self._process is not None:
                if self._process.ended:
                    self._is_lost(f"vLLM has ended{self._said()}")
                    return
                continue
            misses = 0 if self._healthy() else misses + 1
            if misses == 3:
                self._is_lost(f"vLLM at {self._door} is not healthy")
                return

    def _is_lost(self, why: str) -> None:
        if self._lost is None and not self._closing.is_set():
            self._lost = why
            self.on_lost()

    def _healthy(self) -> bool:
        try:
            return self._http.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path).raise_for_status()
        except httpx.HTTPError as error:
            raise ModelError(f"vLLM at {self._door}{path}: {error!r}") from error

    def _raise_if_ended(self) -> None:
        if self._process is not None and self._process.ended:
            raise ModelError(f"vLLM does not start{self._said()}")

    def _said(self) -> str:
        return "" if self._process is None else f": {self._process.last_words}"


# When whoever holds its standard input is gone, however that came about: ends a process group ($0,
# or none), and removes a pool's file ($1) with its vLLM's socket. It is nobody's child: Ray kills
# the children of its workers.
_GUARD = """exec 3<&0
{
cat >/dev/null
if [ $0 != none ]; then
  kill -TERM -$0
  n=0
  while kill -0 -$0 && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done
  kill -KILL -$0
fi
rm -f "$1" "$1.sock"
} <&3 3<&- &"""


class Guard:
    """Ends what must not outlive this process: a process group (None: none), a pool's file and the
    socket beside it."""

    def __init__(self, group: int | None, pool: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "none" if group is None else str(group), str(pool)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, GUARD_ENV: "1"},
            start_new_session=True,
        )
        self._shell.wait(timeout=15.0)

    def act(self) -> None:
        """End it all now; returns when that is done."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.stdout.read()  # until who is left of it has ended
        self._shell.stdout.close()


def _own(path: str, flags: int) -> int:
    """For this user only, and not where a link leads."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Process:
    """A vLLM in a process group of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], name: str) -> None:
        self._log = Path(tempfile.gettempdir()) / f"pdd-vllm-{name.replace('/', '-')}.log"
        try:
            with open(self._log, "wb", opener=_own) as log:
                self._vllm = subprocess.Popen(
                    list(arguments),
                    env=dict(environment),
                    cwd=tempfile.gettempdir(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ModelError(f"{arguments[0]} cannot be started: {error.strerror}") from error

    @property
    def group(self) -> int:
        """Of which it, and all that it starts, is."""
        return self._vllm.pid

    @property
    def ended(self) -> bool:
        return self._vllm.poll() is not None

    @property
    def last_words(self) -> str:
        """The last error in its log, else its last line; and where to read on."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"(Error|Unsupported): ", line)]
        last = (errors or [line for line in lines if line.strip()] or ["it said nothing"])[-1]
        return f"{last.strip()[-300:]} (its log: {shlex.quote(str(self._log))})"
