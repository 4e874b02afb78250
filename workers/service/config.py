"""What a process is told when it starts, and how it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from transport.tls import TlsFiles
from workers.api.messages import Role
from workers.engines.vllm.settings import VllmSettings
from workers.kv.evict.config import Eviction

T = TypeVar("T")


class StartFailed(Exception):
    """The process cannot start; one line for people, naming the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """How fast a simulated engine is."""

    prefill_tokens_per_s: float = 2000.0
    step_s: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line to another site; `paced`: KV keeps just below its rate, for TCP would not."""

    rate_bytes_per_s: float
    rtt_s: float
    paced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker: its place, its engine's size, its ports and its patience.

    `lines` are the lines to other sites, by their names. `stores`: addresses of the site's stores
    of KV blocks, the one to write to first.
    With `tls` all ports speak TLS and take connections from `sites` only.
    The deployment's secret is not in here: it comes through the environment (SECRET_ENV).
    """

    name: str
    site: str
    pool: str
    roles: tuple[Role, ...]
    model: str  # a catalogue name or a model's directory
    engine: str = "torch"
    simulated: Simulated = field(default_factory=Simulated)
    vllm: VllmSettings | None = None
    kv_dtype: str = "bfloat16"
    parallel: int = 1  # chips over which vLLM splits each layer
    kv_tokens: int = 16384
    block_size: int = 16
    chunk_tokens: int = 128
    eviction: Eviction | None = None  # None: every token is kept
    slots: int = 8
    host: str = "127.0.0.1"
    http_port: int
    kv_port: int
    hold_s: float = 120.0
    lease_s: float = 10.0
    drain_s: float = 60.0
    stall_s: float = 30.0  # one step or call longer than this: the engine hangs
    lines: Mapping[str, Line] = field(default_factory=dict)
    stores: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    sites: tuple[str, ...] = ()


SECRET_ENV = "PDD_SECRET"


def read_config(path: Path, kind: type[T]) -> T:
    """A configuration from a JSON file. Raises StartFailed naming the first mistake."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except OSError as error:
        raise StartFailed(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise StartFailed(f"{path}: {where}: {first['msg']}") from error
