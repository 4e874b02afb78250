"""Blocks as files: one file a block, written aside and renamed.

Not segments that are appended to: a file is either whole under its name or not there at all, any
block can leave at any time without moving others, two processes that write the same block write
the same file, and the index is the directory itself. A block is a few hundred kilobytes, so the
file system's part of the work is small. Nothing is synced: after a loss of power a file may be
torn, its checksum shows it, and a lost block is only computed again.

    root / tenant / first two digits of the name / key in hexadecimal

A file is a head (magic, version, key, length, checksum of the data, checksum of the head) and the
data. Its modification time is when it was last used.
"""

import contextlib
import errno
import itertools
import os
import re
import secrets
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zlib_ng import zlib_ng

from workers.tiers.blocks import KEY_BYTES, SPACE_BYTES, Block, checksum
from workers.tiers.ledger import Entry

_MAGIC, _VERSION = b"PDKV", 1
_HEAD = struct.Struct(f"<4sHxx{KEY_BYTES}sQI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_NAME = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")
_ASIDE = re.compile(rf"\.{_NAME.pattern}\.\d+\.\d+\.part")
# Of the process or its host; says nothing of what was asked for.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_ABANDONED_S = 60.0  # a file still aside after that belongs to a process that died


class CorruptFile(Exception):
    """A file does not hold the block that its name promises; one line saying why."""


def cause_of(error: OSError) -> str:
    """A short name of what went wrong, such as `enospc`."""
    known = errno.errorcode.get(error.errno or 0)
    return known.lower() if known else type(error).__name__.lower()


class Found(NamedTuple):
    """A file that was there at the start."""

    key: bytes
    entry: Entry


class Scanned(NamedTuple):
    """What was there at the start, least recently used first, and what was wrong, by its cause."""

    found: list[Found]
    defects: Counter[str]


class BlockFiles:
    """The files under `root`, which is made. Raises OSError, also when it cannot be written to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Of files aside: another process with our number, in a container, has others.
        self._numbers = itertools.count(secrets.randbits(48))
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(f"{root}: cannot be written to")

    def write(self, key: bytes, tenant: str, block: Block) -> None:
        """Write a block's file, or leave nothing behind. Raises OSError."""
        path = self.path(key, tenant)
        aside = path.parent / f".{path.name}.{os.getpid()}.{next(self._numbers)}.part"
        head = _HEAD.pack(_MAGIC, _VERSION, key, len(block.data), block.crc)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with aside.open("xb", buffering=0) as file:
                _write_all(file.fileno(), head + _CRC.pack(zlib_ng.crc32(head)))
                _write_all(file.fileno(), block.data)
            aside.rename(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def read(self, key: bytes, tenant: str) -> Block:
        """A block whose checksum is right. Raises CorruptFile and OSError."""
        with self.path(key, tenant).open("rb", buffering=0) as file:
            nbytes, crc = _head(file.fileno(), key)
            data = bytearray(nbytes)
            view, read = memoryview(data), 0
            while read < nbytes and (more := os.readv(file.fileno(), [view[read:]])):
                read += more
            if read < nbytes or os.read(file.fileno(), 1):
                raise CorruptFile(f"{read} bytes or more, its head says {nbytes}")
        if checksum(key, data) != crc:
            raise CorruptFile("its bytes do not match their checksum")
        return Block(data, crc)

    def touch(self, key: bytes, tenant: str) -> None:
        """Remember, beyond this process, that a block was used."""
        os.utime(self.path(key, tenant))

    def remove(self, key: bytes, tenant: str) -> None:
        """Harmless when it is not there."""
        self.path(key, tenant).unlink(missing_ok=True)

    def scan(self) -> Scanned:
        """Look at every file's head and size, and remove what is torn or was never finished.

        Files that cannot be read, and those with other names than ours, are left alone.
        """
        found: list[tuple[float, Found]] = []
        defects: Counter[str] = Counter()
        for path in self._files():
            try:
                with path.open("rb", buffering=0) as file:
                    there = os.fstat(file.fileno())
                    if _ASIDE.fullmatch(path.name):
                        if time.time() - there.st_mtime < _ABANDONED_S:
                            continue
                        raise CorruptFile("it was never finished")
                    key = bytes.fromhex(path.name)
                    nbytes, _ = _head(file.fileno(), key)
                if there.st_size != HEAD_BYTES + nbytes:
                    raise CorruptFile(f"{there.st_size} bytes")
            except CorruptFile:
                defects["corrupt"] += 1
                with contextlib.suppress(OSError):
                    path.unlink()
            except FileNotFoundError:
                continue  # another process removed it
            except OSError as error:
                defects[cause_of(error)] += 1
            else:
                entry = Entry(path.parent.parent.name, nbytes)
                found.append((there.st_mtime, Found(key, entry)))
        found.sort(key=lambda timed: timed[0])
        return Scanned([each for _, each in found], defects)

    def path(self, key: bytes, tenant: str) -> Path:
        """Where a block's file is. Raises ValueError for a tenant that cannot be a folder."""
        if not TENANT.fullmatch(tenant):
            raise ValueError(f"tenant {tenant!r}: letters, digits, _ and -, at most 40")
        return self._root / tenant / key[SPACE_BYTES:].hex()[:2] / key.hex()

    def _files(self) -> Iterator[Path]:
        for path in self._root.glob("*/[0-9a-f][0-9a-f]/*"):
            ours = _NAME.fullmatch(path.name) or _ASIDE.fullmatch(path.name)
            if ours and TENANT.fullmatch(path.parent.parent.name):
                yield path


def _head(file: int, key: bytes) -> tuple[int, int]:
    """Length and checksum of a file's data. Raises CorruptFile."""
    head = os.read(file, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        raise CorruptFile(f"{len(head)} bytes are no head")
    if _CRC.pack(zlib_ng.crc32(head[: _HEAD.size])) != head[_HEAD.size :]:
        raise CorruptFile("its head does not match its checksum")
    magic, version, written, nbytes, crc = _HEAD.unpack_from(head)
    if (magic, version) != (_MAGIC, _VERSION):
        raise CorruptFile(f"magic {magic!r}, version {version}")
    if written != key:
        raise CorruptFile(f"it holds block {written.hex()}")
    return nbytes, crc


def _write_all(file: int, data: memoryview | bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
