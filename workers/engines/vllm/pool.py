"""KV in shared memory: canonical slots, and who may write them. Worker and vLLM both map it.

The worker owns the pool: it gives blocks to sequences, and a row to each run (one request of
vLLM's). What happens in vLLM goes by three rules, which need no lock and no message:

* A run writes only while its row's claim is its own. The worker takes a claim back to end it.
* A rank's epoch is odd while it works on a step that may touch the pool. Memory of a run that was
  revoked is free once every rank was seen between two steps, or in a later one.
* `saved` grows when the bytes are there, never before.
"""

import contextlib
import fcntl
import json
import mmap
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from workers.api.info import BYTES_PER_ELEMENT

_MAGIC = b"PDDKV\x00\x00\x01"
_HEADER = 4096
_FAULT = 512
_TEXT = _HEADER - _FAULT
MARGINS = 64  # of a run's newest samples

NOBODY = 0

_fence = threading.Lock()


def fence() -> None:
    """What was written before is seen by others before what is read after. A lock that is taken
    and given back is such a barrier for the processor.
    """
    with _fence:
        pass


class PoolRefused(Exception):
    """A pool cannot be made or opened; one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """`rows`: runs at once. `ranks`: vLLM's tensor-parallel size. Sizes are in tokens."""

    layers: int
    slots: int
    kv_heads: int
    head_size: int
    kv_dtype: str
    block_size: int
    rows: int
    ranks: int

    @property
    def bits_dtype(self) -> np.dtype:
        return np.dtype(f"u{BYTES_PER_ELEMENT[self.kv_dtype]}")

    @property
    def bits_shape(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.kv_heads, self.head_size)

    @property
    def kv_bytes(self) -> int:
        return int(np.prod(self.bits_shape, dtype=np.int64)) * self.bits_dtype.itemsize


class SharedPool:
    """A mapped pool.

    `bits`: [layers, 2, slots, kv_heads, head_size], K before V. `claims`: [rows] uint64, whose
    run. `epochs`: [ranks] uint64. `saved`: [rows, layers, ranks] int32, leading tokens whose KV a
    rank has put. `margins`: [rows, MARGINS] float32, of output index modulo MARGINS.
    """

    def __init__(
        self, path: Path, shape: PoolShape, file: mmap.mmap, handle: int | None = None
    ) -> None:
        self.path = path
        self.shape = shape
        self._file = file
        self._handle = handle  # the owner's, locked as long as it lives
        at = _HEADER

        def array(dtype: np.dtype | type, dims: tuple[int, ...]) -> np.ndarray:
            nonlocal at
            count = int(np.prod(dims, dtype=np.int64))
            made = np.frombuffer(file, dtype, count, at).reshape(dims)
            at += -(-made.nbytes // _HEADER) * _HEADER
            return made

        self.claims = array(np.uint64, (shape.rows,))
        self.epochs = array(np.uint64, (shape.ranks,))
        self.saved = array(np.int32, (shape.rows, shape.layers, shape.ranks))
        self.margins = array(np.float32, (shape.rows, MARGINS))
        self.bits = array(shape.bits_dtype, shape.bits_shape)

    @classmethod
    def create(cls, path: Path, shape: PoolShape) -> "SharedPool":
        """A new pool that only this user can open. Raises PoolRefused."""
        size = _size(shape)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            room = os.statvfs(path.parent)
            if size > room.f_bavail * room.f_frsize:
                raise PoolRefused(
                    f"{path.parent} has {room.f_bavail * room.f_frsize >> 20} MiB free and the KV "
                    f"pool takes {size >> 20}: lower kv_tokens, or give the container more shared "
                    "memory (docker: --shm-size)"
                )
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.ftruncate(handle, size)
            file = mmap.mmap(handle, size)
        except OSError as error:
            raise PoolRefused(f"{path}: {error.strerror}") from error
        text = json.dumps(asdict(shape)).encode()
        file[: len(_MAGIC)] = _MAGIC
        file[len(_MAGIC) : len(_MAGIC) + len(text)] = text
        return cls(path, shape, file, handle)

    @classmethod
    def open(cls, folder: Path, name: str) -> "SharedPool":
        """The pool of that name in a folder of pools, of this user. Raises PoolRefused."""
        if not name or name != os.path.basename(name) or name.startswith("."):
            raise PoolRefused(f"pool {name!r}: must be a plain file name")
        path = folder / name
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                about = os.fstat(handle)
                if about.st_uid != os.geteuid():
                    raise PoolRefused(f"{path} belongs to another user")
                file = mmap.mmap(handle, about.st_size)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            raise PoolRefused(f"{path}: {error}") from error
        if len(file) < _HEADER or file[: len(_MAGIC)] != _MAGIC:
            raise PoolRefused(f"{path} is no KV pool of this version")
        shape = PoolShape(**json.loads(file[len(_MAGIC) : _TEXT].rstrip(b"\0")))
        if len(file) != _size(shape):
            raise PoolRefused(f"{path}: {len(file)} bytes, its shape needs {_size(shape)}")
        return cls(path, shape, file)

    @property
    def fault(self) -> str | None:
        """Why vLLM cannot work with this pool, in its connector's words."""
        return self._file[_TEXT:_HEADER].rstrip(b"\0").decode(errors="replace") or None

    def wants(self, row: int, run: int) -> bool:
        """Whether a row is there, and still that run's."""
        return row < self.shape.rows and int(self.claims[row]) == run

    def report(self, fault: str) -> None:
        """Say why this pool cannot be served; the first one stays."""
        if self.fault is None:
            raw = fault.encode()[:_FAULT]
            self._file[_TEXT : _TEXT + len(raw)] = raw


def sweep(folder: Path) -> None:
    """Remove the pools whose owners are dead, and nothing else that lies there."""
    for path in folder.glob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it has an owner, is gone, or none of ours
            _remove_unowned(path)


def _remove_unowned(path: Path) -> None:
    """With its vLLM's socket. A file becomes a pool only once its owner has locked it. Raises
    OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.pread(handle, len(_MAGIC), 0) == _MAGIC:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.sock").unlink(missing_ok=True)
    finally:
        os.close(handle)


def _size(shape: PoolShape) -> int:
    def pages(nbytes: int) -> int:
        return -(-nbytes // _HEADER) * _HEADER

    return (
        _HEADER
        + pages(8 * shape.rows)
        + pages(8 * shape.ranks)
        + pages(4 * shape.rows * shape.layers * shape.ranks)
        + pages(4 * shape.rows * MARGINS)
        + pages(shape.kv_bytes)
    )
