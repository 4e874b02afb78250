"""Workers and agents as Ray actors, and what Ray's nodes can hold."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import uvloop
from ray.exceptions import RayError

from orchestrator.live.agent import SiteAgent, SiteSpec, Unavailable
from orchestrator.membership.inventory import Description, Phase
from transport.memory import keep_freed_memory
from transport.tls import TlsError, load_contexts
from workers.service.config import SECRET_ENV, StartFailed, WorkerConfig
from workers.service.logs import log_to
from workers.service.process import WorkerProcess
from workers.storage.process import StoreProcess, StoreProcessConfig
from workers.tiers.store import CLOSE_S

NAMESPACE = "pdd"
LABEL = "site"
# Of a node's CPUs, as Ray counts them: a share for placement's sake, not a limit.
WORKER_CPUS = 0.1
STORE_STOP_S = CLOSE_S + 3.0  # what it gives itself, and a block that is being written

log = logging.getLogger(__name__)


# ---------------------------------------------------------------- placement


def refusal(nodes: Sequence[dict[str, Any]], site: str, workers: int) -> str | None:
    """Why no node can hold `workers` workers of `site`; None: they fit.

    `nodes` is what `ray.nodes()` gives. Ray itself would wait in silence for ever.
    """
    alive = [node for node in nodes if node["Alive"]]
    ours = [node for node in alive if node["Labels"].get(LABEL) == site]
    if not ours:
        there = ", ".join(_node_text(node) for node in alive) or "none"
        return f"no node with label {LABEL}={site} (nodes: {there})"
    fit = sum(int(node["Resources"].get("CPU", 0.0) / WORKER_CPUS + 1e-6) for node in ours)
    if fit < workers:
        return (
            f"site {site} needs {workers * WORKER_CPUS:g} CPU for {workers} workers; "
            f"its nodes hold {fit} workers"
        )
    return None


def _node_text(node: dict[str, Any]) -> str:
    labels = ",".join(
        f"{key}={value}"
        for key, value in sorted(node["Labels"].items())
        if not key.startswith("ray.io/")
    )
    return f"{node['NodeManagerAddress']} with {labels or 'no labels'}"


class RayHandle:
    """A worker that is a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def describe(self) -> Description:
        described: Description = await _answered(self._actor.describe.remote())
        return described

    async def drain(self) -> None:
        await _answered(self._actor.drain.remote())

    async def remove(self) -> None:
        await asyncio.to_thread(ray.kill, self._actor, no_restart=True)


async def _answered(reference: Any) -> Any:
    try:
        return await asyncio.wrap_future(reference.future())
    except RayError as error:
        lines = str(error).strip().splitlines()
        raise Unavailable(lines[0] if lines else "its process is gone") from error


class RayPlacer:
    """Places the workers of one site on the nodes that carry its label."""

    def __init__(self, site: str, log_dir: str | None) -> None:
        self._site = site
        self._log_dir = log_dir

    def refusal(self, workers: int) -> str | None:
        return refusal(ray.nodes(), self._site, workers)

    def find(self, name: str) -> RayHandle | None:
        try:
            return RayHandle(ray.get_actor(_actor_name(name), namespace=NAMESPACE))
        except ValueError:
            return None

    def place(self, config: WorkerConfig) -> RayHandle:
        placed = WorkerActor.options(
            name=_actor_name(config.name),
            namespace=NAMESPACE,
            lifetime="detached",
            label_selector={LABEL: self._site},
            num_cpus=WORKER_CPUS,
            max_restarts=-1,
            max_task_retries=0,
        )
        return RayHandle(placed.remote(config, self._log_dir))

    def keep_store(self, config: StoreProcessConfig) -> None:
        try:
            ray.get_actor(_store_name(config.name), namespace=NAMESPACE)
        except ValueError:
            StoreActor.options(
                name=_store_name(config.name),
                namespace=NAMESPACE,
                lifetime="detached",
                label_selector={LABEL: self._site},
                num_cpus=WORKER_CPUS,
                max_restarts=-1,
                max_task_retries=0,
            ).remote(config, self._log_dir)

    def remove_store(self, name: str) -> None:
        try:
            actor = ray.get_actor(_store_name(name), namespace=NAMESPACE)
        except ValueError:
            return  # it is gone already
        try:
            ray.get(actor.stop.remote(), timeout=STORE_STOP_S)
        except RayError as error:
            log.warning("store not stopped in order", extra={"reason": str(error)})
        ray.kill(actor, no_restart=True)


def _store_name(store: str) -> str:
    return f"store {store}"


def _actor_name(worker: str) -> str:
    return f"worker {worker}"


# ---------------------------------------------------------------- actors


@ray.remote
class WorkerActor:
    """A worker served by this very process. When the engine breaks the process ends: restart."""

    def __init__(self, config: WorkerConfig, log_dir: str | None) -> None:
        log_to(config.name, _log_file(log_dir, config.name))
        self._config = config
        self._process = WorkerProcess(config)
        self._failure: str | None = None
        self._ended = False
        self._draining = False
        _on_sigterm(self.drain)
        threading.Thread(target=self._run, name="server", daemon=True).start()

    def _run(self) -> None:
        try:
            code = self._process.run()
        except StartFailed as error:
            log.error("cannot start", extra={"reason": str(error)})
            self._failure = str(error)
        except BaseException:
            log.exception("worker died")
            os._exit(1)
        else:
            if code != 0:
                os._exit(code)
            self._ended = True

    def describe(self) -> Description:
        info, reason = self._process.status()
        phase = Phase.LOADING if info is None else Phase.SERVING
        if self._failure is not None:
            phase, reason = Phase.FAILED, self._failure
        elif self._ended:
            phase = Phase.ENDED
        config = self._config
        return Description(
            http=f"{config.host}:{config.http_port}",
            kv=f"{config.host}:{config.kv_port}",
            phase=phase,
            reason=reason,
            draining=self._draining,
            info=info,
        )

    def drain(self) -> None:
        self._draining = True
        self._process.drain()


@ray.remote
class StoreActor:
    """A site's store of KV blocks in a process of its own. Workers do without one that failed."""

    def __init__(self, config: StoreProcessConfig, log_dir: str | None) -> None:
        log_to(config.name, _log_file(log_dir, config.name))
        keep_freed_memory()
        self._process = StoreProcess(config)
        _on_sigterm(self._process.stop)
        self._life = threading.Thread(target=self._run, name="store-life", daemon=True)
        self._life.start()

    def stop(self) -> None:
        """Write what waits, as far as there is time for it, and end."""
        self._process.stop()
        self._life.join()

    def _run(self) -> None:
        try:
            self._process.run()
        except StartFailed as error:
            log.error("cannot start", extra={"reason": str(error)})
        except BaseException:
            log.exception("store died")
            os._exit(1)


@ray.remote
class AgentActor:
    """A site's agent in a process of its own."""

    def __init__(self, spec: SiteSpec, log_dir: str | None) -> None:
        log_to(f"agent {spec.site}", _log_file(log_dir, f"agent-{spec.site}"))
        self._spec = spec
        self._placer = RayPlacer(spec.site, log_dir)
        self._settled = threading.Event()
        self._failure: str | None = None
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            # Its port is taken, or its certificate is of no use.
            if isinstance(error, OSError | TlsError) and not self._settled.is_set():
                self._failure = f"agent of {self._spec.site}: {error}"
                self._settled.set()
                return
            log.exception("agent died")
            os._exit(1)  # Ray starts another, which adopts the workers
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _serve(self) -> None:
        spec = self._spec
        tls = None if spec.tls is None else load_contexts(spec.tls, spec.site, spec.sites)
        agent = SiteAgent(spec, self._placer, os.environ[SECRET_ENV], tls)
        await agent.run(self._settled.set)

    def wait_ready(self) -> str:
        """The address of the agent's front, once it serves. Raises StartFailed."""
        self._settled.wait()
        if self._failure is not None:
            raise StartFailed(self._failure)
        return f"{self._spec.host}:{self._spec.port}"


def _log_file(log_dir: str | None, name: str) -> Path | None:
    return None if log_dir is None else Path(log_dir) / f"{name.replace('/', '-')}.log"


def _on_sigterm(act: Callable[[], None]) -> None:
    """Call `act` in a thread: an actor's main thread waits inside Ray and runs no handlers."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM:
                log.info("SIGTERM")
                act()

    threading.Thread(target=watch, name="sigterm", daemon=True).start()
