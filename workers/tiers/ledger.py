"""What a tier holds, whose it is, and who leaves when it is full. No bytes, no I/O, no lock."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from workers.tiers.eviction import POLICIES, Policy

# Room is made in strokes: above `high` of the capacity blocks leave until `low` is reached.
HIGH, LOW = 0.98, 0.93


class Cause(StrEnum):
    """Why a block left."""

    ROOM = "room"  # the tier was full
    QUOTA = "quota"  # its tenant had more than its quota
    DISK_FULL = "disk_full"  # the disk was, before the tier


class Entry(NamedTuple):
    """Whose block it is, and how large."""

    tenant: str
    nbytes: int


class Left(NamedTuple):
    """A block that had to leave."""

    key: bytes
    entry: Entry
    cause: Cause


class TooLarge(Exception):
    """A block that will never fit in."""


class Ledger:
    """Each tenant has a queue of its own: above its quota it loses its own blocks, and when the
    tier is full whoever has most loses.

    `quotas`: bytes, by tenant; who has none may fill the tier. Raises ValueError for a policy that
    does not exist.
    """

    def __init__(self, capacity: int, policy: str, quotas: Mapping[str, int]) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}: known are {', '.join(POLICIES)}")
        self.capacity = capacity
        self.used = 0
        self._policy = POLICIES[policy]
        self._quotas = quotas
        self._entries: dict[bytes, Entry] = {}
        self._queues: dict[str, Policy] = {}
        self._used_by: dict[str, int] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def __getitem__(self, key: bytes) -> Entry:
        return self._entries[key]

    @property
    def used_by(self) -> Mapping[str, int]:
        """Bytes, by tenant."""
        return self._used_by

    def add(self, key: bytes, entry: Entry) -> list[Left]:
        """Take a block in; returns those that left for it. Raises TooLarge and KeyError (known)."""
        if key in self._entries:
            raise KeyError(key)
        left = self.make_room(entry)
        if entry.tenant not in self._queues:
            self._queues[entry.tenant] = self._policy()
            self._used_by[entry.tenant] = 0
        self._queues[entry.tenant].add(key)
        self._entries[key] = entry
        self._used_by[entry.tenant] += entry.nbytes
        self.used += entry.nbytes
        return left

    def make_room(self, entry: Entry) -> list[Left]:
        """Let blocks leave until a block like this has room. Raises TooLarge."""
        tenant, nbytes = entry
        quota = min(self._quotas.get(tenant, self.capacity), self.capacity)
        if nbytes > HIGH * quota:
            raise TooLarge(f"a block of {nbytes} bytes, {quota} for {tenant}")
        left: list[Left] = []
        if self._used_by.get(tenant, 0) + nbytes > HIGH * quota and tenant in self._quotas:
            while self._used_by.get(tenant, 0) and self._used_by[tenant] + nbytes > LOW * quota:
                left.append(self._leave(tenant, Cause.QUOTA))
        if self.used + nbytes > HIGH * self.capacity:
            while self.used and self.used + nbytes > LOW * self.capacity:
                left.append(self._leave(self._largest(), Cause.ROOM))
        return left

    def shed(self, nbytes: int, cause: Cause) -> list[Left]:
        """Let blocks of at least so many bytes leave, as far as there are any."""
        left: list[Left] = []
        while self.used and sum(gone.entry.nbytes for gone in left) < nbytes:
            left.append(self._leave(self._largest(), cause))
        return left

    def touch(self, keys: Iterable[bytes]) -> None:
        """Blocks were asked for; those that come last are the last to leave."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._queues[entry.tenant].hit(key)

    def remove(self, key: bytes) -> Entry | None:
        """A block is gone for another reason; None: it was not here."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._queues[entry.tenant].remove(key)
            self._forget(entry)
        return entry

    def _largest(self) -> str:
        return max(self._used_by, key=lambda tenant: (self._used_by[tenant], tenant))

    def _leave(self, tenant: str, cause: Cause) -> Left:
        key = self._queues[tenant].victim()
        entry = self._entries.pop(key)
        self._forget(entry)
        return Left(key, entry, cause)

    def _forget(self, entry: Entry) -> None:
        self.used -= entry.nbytes
        self._used_by[entry.tenant] -= entry.nbytes
