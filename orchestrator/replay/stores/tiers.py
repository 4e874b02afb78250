"""One store without bytes: which blocks are in memory, which in files, and how fast they come."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.policy.prefixes import SHORT_BYTES
from workers.tiers.blocks import KEY_BYTES, SPACE_BYTES, Tier
from workers.tiers.choice import ASSUMED_BYTES_PER_S, ASSUMED_LATENCY_S
from workers.tiers.holdings import Holdings, Told
from workers.tiers.ledger import Entry, Ledger, Left, TooLarge

_SPACE, _REST = bytes(SPACE_BYTES), bytes(KEY_BYTES - SPACE_BYTES - SHORT_BYTES)
TENANT = "all"  # a replay knows none


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """The store of a pool. Sizes in bytes; `files_bytes` 0: there are no files.

    What is not said of its speed is what workers assume before they have measured.
    """

    site: str
    pool: str
    memory_bytes: int
    files_bytes: int = 0
    policy: str = "lru"
    memory_bytes_per_s: float = ASSUMED_BYTES_PER_S[Tier.MEMORY]
    files_bytes_per_s: float = ASSUMED_BYTES_PER_S[Tier.FILES]
    answer_s: float = ASSUMED_LATENCY_S

    def bytes_per_s(self, tier: Tier) -> float:
        return self.memory_bytes_per_s if tier is Tier.MEMORY else self.files_bytes_per_s


def short(name: int) -> bytes:
    """The first bytes of a block's name, of what a workload calls it."""
    return name.to_bytes(SHORT_BYTES, "big", signed=True)


def key(name: int) -> bytes:
    """A block's key; `Holdings` tells the same bytes of it that the core looks for."""
    return _SPACE + short(name) + _REST


class ModelStore:
    """Tiers as `BlockStore` has them: what comes in is in memory and in its file, what leaves
    memory is in its file still, and what is loaded from there is in memory next time.
    """

    def __init__(self, spec: StoreSpec, block_bytes: int) -> None:
        self.spec = spec
        self.free_at = 0.0  # when all that was asked for so far has been given
        self._block = Entry(TENANT, block_bytes)
        self._memory = Ledger(spec.memory_bytes, spec.policy, {})
        self._files = Ledger(spec.files_bytes, spec.policy, {})
        self._holdings = Holdings()

    def find(self, keys: Sequence[bytes]) -> list[Tier | None]:
        """Where each block is. They count as used, later ones as less recently."""
        self._memory.touch(reversed(keys))
        self._files.touch(reversed(keys))
        return [self._tier(name) for name in keys]

    def loaded(self, keys: Sequence[bytes]) -> None:
        """These were given to a worker."""
        for name in keys:
            if name not in self._memory:
                self._take(self._memory, name)

    def put(self, keys: Sequence[bytes]) -> None:
        """Take in what is not here; of a chain its end is the first that may go."""
        for name in reversed(keys):
            if self._tier(name) is None:
                self._take(self._memory, name)
                self._take(self._files, name)

    def since(self, version: bytes) -> Told:
        """What to tell who knows `version` of what is here."""
        return self._holdings.since(version)

    def _tier(self, name: bytes) -> Tier | None:
        if name in self._memory:
            return Tier.MEMORY
        return Tier.FILES if name in self._files else None

    def _take(self, tier: Ledger, name: bytes) -> None:
        try:
            left: list[Left] = tier.add(name, self._block)
        except TooLarge:
            return
        self._holdings.came(name)
        for gone in left:
            self._holdings.went(gone.key)
            if tier is self._memory and gone.key not in self._files:
                self._take(self._files, gone.key)
