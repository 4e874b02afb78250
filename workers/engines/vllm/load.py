"""From a worker's settings to an engine over a vLLM that serves."""

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from workers.api.info import EngineInfo
from workers.engines.models import ModelError
from workers.engines.vllm.client import Door
from workers.engines.vllm.describe import Described, describe
from workers.engines.vllm.engine import VllmEngine
from workers.engines.vllm.pool import PoolRefused, PoolShape, SharedPool, sweep
from workers.engines.vllm.server import Guard, Process, Server, command, environment
from workers.engines.vllm.settings import VllmSettings

KEY_ENV = "PDD_VLLM_API_KEY"  # of a vLLM that was started with --api-key


def load_engine(
    model: Path,
    settings: VllmSettings,
    *,
    name: str,
    dtype: str,
    kv_tokens: int,
    block_size: int,
    slots: int,
    ranks: int,
) -> VllmEngine:
    """Start the vLLM of the worker `name`, or go to its own, and wait until it serves.

    The worker keeps `kv_tokens` of KV in shared memory, or as many as vLLM has room for if that is
    less. Raises ModelError.
    """
    described = describe(model, dtype)  # what is wrong with the model shows at once
    name_of_pool = secrets.token_hex(8)
    if settings.attach is not None:
        pools = Path(settings.pools or "")
        guard = Guard(None, pools / name_of_pool)
        server = Server(Door(settings.attach, os.environ.get(KEY_ENV)), None, guard)
    else:
        pools = private(own_pools())
        socket = pools / f"{name_of_pool}.sock"  # the guard takes it along
        line = command(
            python=settings.python or "python3",
            model=model,
            dtype=dtype,
            socket=socket,
            pools=pools,
            ranks=ranks,
            args=settings.args,
        )
        process = Process(line, environment(settings.env), name)
        guard = Guard(process.group, pools / name_of_pool)
        server = Server(Door("http://vllm", socket=socket), process, guard)
    with contextlib.ExitStack() as undo:
        undo.callback(server.close)
        room = server.start()
        tokens = min(kv_tokens, room.kv_tokens) // block_size * block_size
        engine = _engine(
            described, server, pools / name_of_pool, tokens, block_size, slots, ranks, room.context
        )
        undo.pop_all()
    return engine


def own_pools() -> Path:
    """The folder for the pools of workers that start their vLLM themselves: in memory."""
    shared = Path("/dev/shm")
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / f"pdd-{os.geteuid()}"


def private(folder: Path) -> Path:
    """Made if need be; nobody else may have made it before us. Raises ModelError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise ModelError(f"{folder} must be this user's folder, of mode 700: remove it")
    return folder


def _engine(
    described: Described,
    server: Server,
    place: Path,
    tokens: int,
    block_size: int,
    slots: int,
    ranks: int,
    context: int,
) -> VllmEngine:
    fingerprint = described.fingerprint
    shape = PoolShape(
        layers=fingerprint.layers,
        slots=tokens,
        kv_heads=fingerprint.kv_heads,
        head_size=fingerprint.head_size,
        kv_dtype=fingerprint.kv_dtype,
        block_size=block_size,
        rows=4 * slots,
        ranks=ranks,
    )
    try:
        sweep(place.parent)
        pool = SharedPool.create(place, shape)
    except PoolRefused as error:
        raise ModelError(str(error)) from error
    info = EngineInfo(
        engine="vllm",
        model=described.name,
        fingerprint=fingerprint,
        block_size=block_size,
        kv_total_tokens=tokens,
        max_context=min(described.max_context, context),
        vocab_size=described.vocab_size,
        stop_ids=described.stop_ids,
    )
    engine = VllmEngine(info, pool, server)
    server.on_lost = engine.tell_lost
    return engine
