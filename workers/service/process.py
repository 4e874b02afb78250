"""A worker as a process: load the engine, serve, end. `python -m workers.service.process FILE`."""

import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from transport.memory import keep_freed_memory
from transport.tls import TlsContexts, TlsError, load_contexts
from workers.costs import MeasuredCosts
from workers.engines.base import Engine
from workers.engines.models import ModelError, resolve_model
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.service.config import SECRET_ENV, StartFailed, WorkerConfig, read_config
from workers.service.front import listen
from workers.service.logs import log_to
from workers.service.server import WorkerServer
from workers.worker import Worker

SIMULATED_MODEL = "simulated"

log = logging.getLogger(__name__)


def _load_torch(config: WorkerConfig) -> Engine:
    model = resolve_model(config.model)  # before the slow import: what is missing shows at once
    importlib.import_module("torch").set_num_threads(1)  # workers share the machine's cores
    load = importlib.import_module("workers.engines.torch.load")
    loaded, eviction, calibration = load.load_model(model), config.eviction, None
    if eviction is not None and eviction.policy == "triattention":
        calibrating = importlib.import_module("workers.engines.torch.calibrate")
        calibration = calibrating.find_calibration(loaded, eviction.calibration)
    engine: Engine = load.build_engine(
        loaded,
        kv_tokens=config.kv_tokens,
        block_size=config.block_size,
        chunk_tokens=config.chunk_tokens,
        kv_dtype=config.kv_dtype,
        eviction=eviction,
        calibration=calibration,
    )
    return engine


def _load_vllm(config: WorkerConfig) -> Engine:
    if config.vllm is None:
        raise ValueError("engine vllm needs the section vllm")
    model = resolve_model(config.model)
    load = importlib.import_module("workers.engines.vllm.load")
    engine: Engine = load.load_engine(
        model,
        config.vllm,
        name=config.name,
        dtype=config.kv_dtype,
        kv_tokens=config.kv_tokens,
        block_size=config.block_size,
        slots=config.slots,
        ranks=config.parallel,
    )
    return engine


def _load_simulated(config: WorkerConfig) -> Engine:
    speed = config.simulated
    return SimulatedEngine(
        simulated_model(config.model),
        MeasuredCosts(prefill_tokens_per_s=speed.prefill_tokens_per_s, decode_step_s=speed.step_s),
        kv_total_tokens=config.kv_tokens,
        block_size=config.block_size,
        chunk_tokens=config.chunk_tokens,
        tokenizer=_tokenizer(config.model),
        eviction=config.eviction,
    )


def _tokenizer(name: str) -> Path | None:
    """The file of the real model that is played; "simulated" plays none."""
    return None if name == SIMULATED_MODEL else resolve_model(name) / "tokenizer.json"


def simulated_model(name: str) -> SimulatedModel:
    """A model of the real one's shape, so that byte counts are true; "simulated": a tiny one."""
    if name == SIMULATED_MODEL:
        return SimulatedModel()
    shape = json.loads((resolve_model(name) / "config.json").read_bytes())
    heads = shape["num_attention_heads"]
    ends = shape["eos_token_id"]
    return SimulatedModel(
        name=name,
        layers=shape["num_hidden_layers"],
        kv_heads=shape.get("num_key_value_heads") or heads,
        head_size=shape.get("head_dim") or shape["hidden_size"] // heads,
        vocab_size=shape["vocab_size"],
        max_context=shape["max_position_embeddings"],
        stop_ids=tuple(ends) if isinstance(ends, list) else (ends,),
    )


# Imported by their loaders: torch is large, and a simulated worker does without.
ENGINES: dict[str, Callable[[WorkerConfig], Engine]] = {
    "torch": _load_torch,
    "simulated": _load_simulated,
    "vllm": _load_vllm,
}


class WorkerProcess:
    """One worker's life in this process. `run` blocks; the other verbs are for other threads."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._server: WorkerServer | None = None
        self._ending = False

    def run(self) -> int:
        """Load and serve until the end; the exit code. Raises StartFailed."""
        config = self._config
        secret = os.environ.get(SECRET_ENV)
        if not secret:
            raise StartFailed(f"{SECRET_ENV} is not set: a worker needs the deployment's secret")
        if config.engine not in ENGINES:
            raise StartFailed(f"engine {config.engine!r}: known are {', '.join(ENGINES)}")
        tls = self._contexts()
        # Bound before the slow loading, so that a taken port shows at once.
        http = _listen(config.host, config.http_port)
        _listen(config.host, config.kv_port).close()
        log.info("loading", extra={"engine": config.engine})
        engine = self._load()
        try:
            with http:
                return uvloop.run(self._serve(engine, secret, tls, http))
        except OSError as error:
            raise StartFailed(f"cannot serve: {error}") from error
        finally:
            engine.shutdown()

    def status(self) -> tuple[dict[str, Any] | None, str | None]:
        """What the worker is, once it serves; and why it is not well, if it is not."""
        with self._lock:
            server = self._server
        if server is None or not server.up:
            return None, None
        return server.describe(), server.health()[1]["reason"]

    def drain(self) -> None:
        """Take no new legs and end when the running ones have."""
        with self._lock:
            self._ending = True
            if self._server is not None:
                self._server.drain()

    def _contexts(self) -> TlsContexts | None:
        config = self._config
        if config.tls is None:
            return None
        try:
            return load_contexts(config.tls, config.site, config.sites)
        except TlsError as error:
            raise StartFailed(str(error)) from error

    def _load(self) -> Engine:
        config = self._config
        try:
            return ENGINES[config.engine](config)
        except ModelError as error:
            raise StartFailed(str(error)) from error
        except MemoryError as error:
            wanted = f"the model and {config.kv_tokens} tokens of KV"
            raise StartFailed(f"not enough memory for {wanted}") from error
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            text = str(error).strip().splitlines() or [""]
            what = f"{type(error).__name__}: {text[0]}"
            raise StartFailed(f"cannot load {config.model!r}: {what}") from error

    async def _serve(
        self, engine: Engine, secret: str, tls: TlsContexts | None, http: socket.socket
    ) -> int:
        config = self._config
        worker = Worker(
            config.name,
            engine,
            slots=config.slots,
            hold_s=config.hold_s,
            lease_s=config.lease_s,
            stores=bool(config.stores),
        )
        server = WorkerServer(config, worker, engine, secret, tls)
        with self._lock:
            self._server = server
            if self._ending:
                server.drain()
        return await server.run(http)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartFailed when something else has the port."""
    try:
        return listen(host, port)
    except OSError as error:
        raise StartFailed(f"port {port} on {host}: {error.strerror}") from error


def main() -> int:
    """Run the worker that the file named on the command line describes."""
    try:
        config = read_config(Path(sys.argv[1]), WorkerConfig)
        log_to(config.name, None)
        keep_freed_memory()
        process = WorkerProcess(config)
        signal.signal(signal.SIGTERM, lambda *_: process.drain())
        return process.run()
    except StartFailed as error:
        print(f"worker cannot start: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
