"""Ray on this machine: a node for each site that starts here, kept alive, and the sites' agents."""

import asyncio
import dataclasses
import json
import logging
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import Enum, auto
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.live.agent import SiteSpec
from orchestrator.live.processes import ROOT, LaunchFailed, end_process
from workers.service.config import SECRET_ENV

# Ray and all that it starts listen on the loopback only; for several nodes see `ray_node`.
NODES_HOST = "127.0.0.1"
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
OBJECT_STORE_BYTES = 100 * 1024 * 1024
WORKERS_PER_CPU = 10  # as many as `ray_site.WORKER_CPUS` lets into one of Ray's CPUs
HELPER = "helper"
PORTS = 3  # that a cluster takes itself
HEADLESS_S = 10.0  # a node without its head ends after so long
START_S = 120.0  # to start all nodes again, and the agents
AGAIN_S = 1.0  # before a node that ended is started again
MOST_AGAIN, AGAIN_WITHIN_S = 4, 120.0  # more is no accident

log = logging.getLogger(__name__)


class _State(Enum):
    """What it means that a node ends."""

    STARTING = auto()  # the start has failed
    UP = auto()  # it is started again
    HEADLESS = auto()  # as it must, for the head did


class RayCluster:
    """The nodes, below a supervisor that ends them with us.

    The first site's node is the head. Any other that ends is started again, and Ray brings its
    agent back; without the head all end, and all are started again with new agents. `failed` is
    done with the cause when that does not help. `tell` gets lines for people.

    `joined` is the address of a cluster that somebody else keeps: then there are only the agents.
    """

    def __init__(
        self,
        specs: Sequence[SiteSpec],
        ports: Iterator[int],
        *,
        scratch: Path,
        logs: Path,
        secret: str,
        tell: Callable[[str], None],
        joined: str | None = None,
    ) -> None:
        """`ports`: free ones, of which `PORTS` are taken."""
        self._specs = {spec.site: spec for spec in specs}
        self._head = specs[0].site
        self._scratch, self._logs = scratch, logs
        self._tell = tell
        self._joined = joined
        self._port, self._dashboard, self._client = (next(ports) for _ in range(PORTS))
        self._environment = self._make_environment(secret)
        self._supervisor: asyncio.subprocess.Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive: set[str] = set()  # sites whose node runs
        self._helped = asyncio.Event()
        self._changed = asyncio.Event()  # some process ended
        self._state = _State.STARTING
        self._again: deque[float] = deque(maxlen=MOST_AGAIN)
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> dict[str, str]:
        """The agents' addresses, by site. Raises LaunchFailed and OSError."""
        self._supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator.live.supervisor", str(self._scratch)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the gateway, which ends things in order
        )
        self._spawn(self._watch(self._supervisor))
        return await self._start_all()

    async def stop(self) -> None:
        """End every node and what runs there, and wait for that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._supervisor is not None:
            await end_process(self._supervisor)

    # ------------------------------------------------------------ what ends

    async def _watch(self, supervisor: asyncio.subprocess.Process) -> None:
        assert supervisor.stdout is not None
        async for line in supervisor.stdout:
            ended = json.loads(line)
            self._ended(ended["exited"], ended["code"])
        self._fail("the supervisor ended")

    def _ended(self, name: str, code: int) -> None:
        self._changed.set()
        if name == HELPER:
            self._helped.set()
            return
        site = name.removeprefix("ray-")
        self._alive.discard(site)
        if self._state is _State.HEADLESS:
            return
        why = f"{name} ended (code {code}): {_tail(self._log(name))}"
        if self._state is _State.STARTING:
            self._fail(why)
            return
        log.error("ray node ended", extra={"site": site, "reason": why})
        now = asyncio.get_running_loop().time()
        if len(self._again) == MOST_AGAIN and now - self._again[0] < AGAIN_WITHIN_S:
            self._fail(why)
        elif site == self._head:
            self._again.append(now)
            self._state = _State.HEADLESS
            self._tell(f"Ray's head, the node of {site}, ended: all nodes are started again")
            self._spawn(self._start_all_again())
        else:
            self._again.append(now)
            self._tell(f"Ray's node of {site} ended: it is started again")
            self._spawn(self._start_again(site))

    def _fail(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(why)

    async def _start_again(self, site: str) -> None:
        await asyncio.sleep(AGAIN_S)
        if self._state is _State.UP:  # else all are started again
            self._start_node(site)

    async def _start_all_again(self) -> None:
        """The others miss their head and end; agents of before ended with their nodes."""
        try:
            async with asyncio.timeout(AGAIN_S + 3 * HEADLESS_S):
                while self._alive:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._fail("Ray's nodes do not end without their head")
            return
        await asyncio.sleep(AGAIN_S)
        try:
            async with asyncio.timeout(START_S):
                await self._start_all()
        except TimeoutError:
            self._fail(f"Ray's nodes are not up again within {START_S:g} s")
        except LaunchFailed as error:
            self._fail(str(error))

    # ------------------------------------------------------------ starting

    async def _start_all(self) -> dict[str, str]:
        self._state = _State.STARTING
        for site in self._specs if self._joined is None else ():
            self._start_node(site)
        agents = await self._create_agents()
        self._state = _State.UP
        return agents

    def _start_node(self, site: str) -> None:
        spec = self._specs[site]
        cpus = -(-(len(spec.workers) + len(spec.stores)) // WORKERS_PER_CPU) or 1
        argv = [
            *(sys.executable, "-m", "orchestrator.live.ray_node", "start", "--block"),
            *(self._as_head() if site == self._head else ("--address", self._address)),
            *("--node-ip-address", NODES_HOST, "--temp-dir", str(self._scratch / "ray")),
            *("--labels", f"site={site}", "--num-cpus", str(cpus), "--num-gpus", "0"),
            *("--object-store-memory", str(OBJECT_STORE_BYTES)),
            *("--min-worker-port", "0", "--max-worker-port", "0"),
            *("--dashboard-agent-listen-port", "0", "--dashboard-agent-grpc-port", "0"),
            *("--metrics-export-port", "0", "--include-log-monitor", "false"),
            "--disable-usage-stats",
        ]
        self._alive.add(site)
        self._command(f"ray-{site}", argv)

    def _as_head(self) -> list[str]:
        head = [
            *("--head", "--port", str(self._port), "--no-monitor"),
            *("--include-dashboard", "false", "--dashboard-port", str(self._dashboard)),
        ]
        if find_spec("grpc") is not None:
            # Where gRPC is installed Ray opens its client's port, else at one fixed number.
            head += ["--ray-client-server-port", str(self._client)]
        return head

    async def _create_agents(self) -> dict[str, str]:
        """Let the helper do it: it waits for the nodes itself. Raises LaunchFailed."""
        order, result = self._scratch / "order.json", self._scratch / "agents.json"
        result.unlink(missing_ok=True)
        content = {
            "address": self._address,
            "nodes": len(self._specs),
            "log_dir": str(self._logs) if self._joined is None else None,  # it may be elsewhere
            "sites": [dataclasses.asdict(spec) for spec in self._specs.values()],
        }
        order.write_text(json.dumps(content, default=str))  # paths are text in it
        self._helped.clear()
        argv = [sys.executable, "-m", "orchestrator.live.create_agents", str(order), str(result)]
        self._command(HELPER, argv)
        helped = asyncio.create_task(self._helped.wait())
        try:
            await asyncio.wait((helped, self.failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            helped.cancel()
        if self.failed.done():
            raise LaunchFailed(self.failed.result())
        if not result.exists():
            raise LaunchFailed(f"the agents were not created: {_tail(self._log(HELPER))}")
        answer = json.loads(result.read_bytes())
        if "error" in answer:
            raise LaunchFailed(answer["error"])
        agents: dict[str, str] = answer["agents"]
        return agents

    # ------------------------------------------------------------ the supervisor

    def _command(self, name: str, argv: list[str]) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        command = {
            "start": name,
            "argv": argv,
            "env": self._environment,
            "log": str(self._log(name)),
        }
        self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"Ray's nodes are watched no more: {error!r}")

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    @property
    def _address(self) -> str:
        return self._joined or f"{NODES_HOST}:{self._port}"

    def _make_environment(self, secret: str) -> dict[str, str]:
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        if self._joined is not None:  # its key to us, and its nodes' variables, are its keeper's
            return {"PYTHONPATH": os.pathsep.join(path), "RAY_ADDRESS": self._joined}
        return {
            "PYTHONPATH": os.pathsep.join(path),
            SECRET_ENV: secret,
            "OMP_NUM_THREADS": "1",
            "RAY_ADDRESS": self._address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_BACKEND_LOG_LEVEL": "warning",
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_niceness": "0",  # by default Ray's workers give way to everything else
            "RAY_gcs_rpc_server_reconnect_timeout_s": f"{HEADLESS_S:.0f}",
            # Two nodes on one machine would each count the other's memory as their own.
            "RAY_memory_monitor_refresh_ms": "0",
            **ON_LOOPBACK,
        }


def _tail(path: Path) -> str:
    """The last line of a log that says something."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    return lines[-1].strip() if lines else "it said nothing"
