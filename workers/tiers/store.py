"""One host's tiers: blocks in memory over blocks in files.

What is put is in memory at once and goes to its file in the background, so that it outlives the
process; a block that leaves memory is lost only if its file could not be written. What is read
from a file comes back into memory. All of it may be asked from any thread. Room is made by whoever
needs it, so no thread of its own can die and leave the tiers full.
"""

import contextlib
import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.tiers.blocks import Block, Tier, checksum
from workers.tiers.files import EXHAUSTED, TENANT, BlockFiles, CorruptFile, cause_of
from workers.tiers.holdings import Holdings, Told
from workers.tiers.ledger import Cause, Entry, Ledger, Left, TooLarge

# Blocks that wait to be written, beside what memory holds; more are not written, and counted.
UNWRITTEN_BYTES = 256 << 20
CLOSE_S = 5.0  # for what waits to be written when the store ends
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes. `files`: the folder of the file tier; None: there is none.

    `quotas`: bytes a tenant may have in each tier. `unwritten_bytes`: what may wait for its file
    and has left memory, or has not.
    """

    memory_bytes: int
    files: Path | None = None
    files_bytes: int = 0
    policy: str = "lru"
    quotas: Mapping[str, int] = field(default_factory=dict)
    unwritten_bytes: int = UNWRITTEN_BYTES


class BlockStore:
    """See the module's docstring. Raises OSError when the folder cannot be used."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._memory = Ledger(config.memory_bytes, config.policy, config.quotas)
        self._blocks: dict[bytes, Block] = {}
        self._filed = Ledger(config.files_bytes, config.policy, config.quotas)
        self._unwritten: dict[bytes, Block] = {}
        self._unwritten_bytes = 0
        self._counts: Counter[str] = Counter()
        self._holdings = Holdings()
        self._files: BlockFiles | None = None
        self._closing_at: float | None = None  # of monotonic time; None: it is not closed
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="block-writer")
        if config.files is not None:
            self._files = BlockFiles(config.files)
            self._rebuild(self._files)

    def find(self, keys: Sequence[bytes], *, to_save: bool = False) -> list[Tier | None]:
        """Where each block is; None: not here. They count as used, later ones as less recently.

        What is not here counts as missed, unless it is asked `to_save` it.
        """
        with self._lock:
            self._memory.touch(reversed(keys))
            self._filed.touch(reversed(keys))
            tiers = [self._tier(key) for key in keys]
            if not to_save:
                self._counts["misses"] += tiers.count(None)
            return tiers

    def get(self, key: bytes) -> tuple[Block, Tier] | None:
        """A block and where it was. What is damaged or gone is forgotten: None."""
        with self._lock:
            block = self._blocks.get(key) or self._unwritten.get(key)
            if block is not None:
                self._count_hit(Tier.MEMORY, block)
                return block, Tier.MEMORY
            tenant = self._filed[key].tenant if key in self._filed else None
        if tenant is None:
            self._count("misses")
            return None
        block = self._read(key, tenant)
        if block is None:
            self._count("misses")
            return None
        with self._lock:
            self._count_hit(Tier.FILES, block)
            self._remember(key, tenant, block)
        return block, Tier.FILES

    def put(self, tenant: str, blocks: Iterable[tuple[bytes, Block]]) -> None:
        """Take blocks in. Known, damaged and too large ones are counted and left out.

        Raises ValueError for a tenant's name that is none.
        """
        if not TENANT.fullmatch(tenant):
            raise ValueError(f"tenant {tenant!r}: letters, digits, _ and -, at most 40")
        # In reverse, for of a chain the last is the first that may go.
        for key, block in reversed(list(blocks)):
            if checksum(key, block.data) != block.crc:
                self.defect("put", "corrupt")
                continue
            with self._lock:
                if self._tier(key) is not None:
                    self._counts["known"] += 1
                    continue
                if self._remember(key, tenant, block):
                    self._count_written(Tier.MEMORY, block)
                self._file_later(key, tenant, block)

    def account(self) -> dict[str, Any]:
        """Counters since the start, and what there is now."""
        with self._lock:
            held = {
                Tier.MEMORY.value: _held(self._memory),
                Tier.FILES.value: _held(self._filed),
            }
            return {
                "counts": dict(self._counts),
                "tiers": held,
                "unwritten_bytes": self._unwritten_bytes,
            }

    def holdings(self, since: bytes) -> Told:
        """What to tell somebody who knows version `since` of what is here."""
        with self._lock:
            return self._holdings.since(since)

    def defect(self, kind: str, cause: str) -> None:
        """Something went wrong, here or in front of here, and was survived: what, and of what."""
        self._count(f"defect_{kind}_{cause}")

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Write what waits, as far as there is time for it, and take nothing more."""
        with self._lock:
            self._closing_at = time.monotonic() + limit_s
        self._writer.shutdown()

    # ------------------------------------------------------------ memory; the lock is held

    def _tier(self, key: bytes) -> Tier | None:
        if key in self._blocks or key in self._unwritten:
            return Tier.MEMORY
        return Tier.FILES if key in self._filed else None

    def _remember(self, key: bytes, tenant: str, block: Block) -> bool:
        """Keep a block in memory. False: it is too large for that."""
        if key in self._blocks:
            return True
        try:
            left = self._memory.add(key, Entry(tenant, len(block.data)))
        except TooLarge:
            self._counts["too_large"] += 1
            return False
        self._blocks[key] = block
        self._holdings.came(key)
        for gone in left:
            dropped = self._blocks.pop(gone.key)
            self._holdings.went(gone.key)
            self._counts[f"evicted_{Tier.MEMORY}_{gone.cause}"] += 1
            self._file_later(gone.key, gone.entry.tenant, dropped)
        return True

    def _file_later(self, key: bytes, tenant: str, block: Block) -> None:
        """Let a block be written in the background, unless too much waits for that already."""
        if self._files is None or key in self._filed or key in self._unwritten:
            return
        waiting = self._unwritten_bytes + len(block.data)
        if waiting > self._config.unwritten_bytes or self._closing_at is not None:
            self._counts["writes_refused"] += 1
            return
        self._unwritten[key] = block
        self._unwritten_bytes = waiting
        self._holdings.came(key)
        self._writer.submit(self._write, self._files, key, tenant, block)

    # ------------------------------------------------------------ files; the lock is free

    def _rebuild(self, files: BlockFiles) -> None:
        scanned = files.scan()
        for cause, number in scanned.defects.items():
            self._counts[f"defect_scan_{cause}"] = number
        for key, entry in scanned.found:
            try:
                left = self._filed.add(key, entry)
            except (KeyError, TooLarge):  # another tenant has it too, or the tiers were larger
                self._remove(files, key, entry.tenant)
                continue
            self._holdings.came(key)
            self._leave(left)
            self._remove_all(files, left)
        self._counts["rebuilt"] = len(self._filed)

    def _write(self, files: BlockFiles, key: bytes, tenant: str, block: Block) -> None:
        """The writer's work. Nothing that happens to one block concerns the next."""
        entry = Entry(tenant, len(block.data))
        try:
            with self._lock:
                if self._closing_at is not None and time.monotonic() >= self._closing_at:
                    self._counts["writes_given_up"] += 1
                    return
                left = self._filed.make_room(entry)
                self._leave(left)
            self._remove_all(files, left)
            self._write_somehow(files, key, entry, block)
            with self._lock:
                self._filed.add(key, entry)
                self._holdings.came(key)
                self._count_written(Tier.FILES, block)
        except TooLarge:
            self._count("too_large")
        except OSError as error:
            self.defect("write", cause_of(error))
            log.warning("a block was not written", extra={"reason": str(error)})
        finally:
            with self._lock:
                del self._unwritten[key]
                self._unwritten_bytes -= entry.nbytes
                self._holdings.went(key)

    def _write_somehow(self, files: BlockFiles, key: bytes, entry: Entry, block: Block) -> None:
        """Write a block; on a full disk, in the place of older ones. Raises OSError."""
        try:
            files.write(key, entry.tenant, block)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._count("disk_full")
            with self._lock:
                left = self._filed.shed(2 * entry.nbytes, Cause.DISK_FULL)
                self._leave(left)
            if not left:
                raise
            self._remove_all(files, left)
            files.write(key, entry.tenant, block)

    def _read(self, key: bytes, tenant: str) -> Block | None:
        assert self._files is not None, "only a file tier has files to read"
        try:
            block = self._files.read(key, tenant)
        except CorruptFile as error:
            self._lose("corrupt", key, str(error))
        except OSError as error:
            if error.errno in EXHAUSTED:
                self.defect("read", cause_of(error))
                return None
            self._lose(cause_of(error), key, str(error))
        else:
            with contextlib.suppress(OSError):  # another process has just removed it
                self._files.touch(key, tenant)
            return block
        self._remove(self._files, key, tenant)
        return None

    def _lose(self, cause: str, key: bytes, reason: str) -> None:
        with self._lock:
            self._counts[f"defect_read_{cause}"] += 1
            if self._filed.remove(key) is not None:
                self._holdings.went(key)
        log.warning("a block is lost", extra={"block": key.hex(), "reason": reason})

    def _leave(self, left: Sequence[Left]) -> None:
        """Blocks are in files no more; the lock is held."""
        for gone in left:
            self._holdings.went(gone.key)
            self._counts[f"evicted_{Tier.FILES}_{gone.cause}"] += 1

    def _remove_all(self, files: BlockFiles, left: Sequence[Left]) -> None:
        for gone in left:
            self._remove(files, gone.key, gone.entry.tenant)

    def _remove(self, files: BlockFiles, key: bytes, tenant: str) -> None:
        try:
            files.remove(key, tenant)
        except OSError as error:
            self.defect("remove", cause_of(error))
            log.warning("a block's file stays", extra={"reason": str(error)})

    # ------------------------------------------------------------ counting

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _count_written(self, tier: Tier, block: Block) -> None:
        self._counts[f"written_{tier}"] += 1
        self._counts[f"written_bytes_{tier}"] += len(block.data)

    def _count_hit(self, tier: Tier, block: Block) -> None:
        self._counts[f"hits_{tier}"] += 1
        self._counts[f"read_bytes_{tier}"] += len(block.data)


def _held(ledger: Ledger) -> dict[str, Any]:
    return {
        "blocks": len(ledger),
        "bytes": ledger.used,
        "capacity_bytes": ledger.capacity,
        "tenants": dict(ledger.used_by),
    }
