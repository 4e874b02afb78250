"""What the gateway knows of each worker's cached prefixes: hashes of 16-token blocks, bounded."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BLOCK = 16


def block_hashes(ids: tuple[int, ...], cache_salt: str) -> tuple[int, ...]:
    """Chained hashes of the complete canonical blocks of `ids`; the salt starts the chain.

    Python's own 64-bit hash, which is salted for text but not for tuples of integers: these are
    the gateway's guesses alone, and a collision costs no more than a wrong one.
    """
    parent = int.from_bytes(blake2b(cache_salt.encode(), digest_size=8).digest(), "little")
    hashes = []
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        parent = hash((parent, ids[start : start + BLOCK]))
        hashes.append(parent)
    return tuple(hashes)


class PrefixBook:
    """Per worker the blocks it was seen to hold; a guess, since workers evict on their own."""

    def __init__(self, blocks_per_worker: int = 4096) -> None:
        self._limit = blocks_per_worker
        self._seen: dict[str, OrderedDict[int, None]] = {}

    def note(self, worker: str, hashes: Sequence[int]) -> None:
        """`worker` has computed or received these blocks."""
        seen = self._seen.setdefault(worker, OrderedDict())
        for h in hashes:
            if h in seen:
                seen.move_to_end(h)
            else:
                seen[h] = None
        while len(seen) > self._limit:
            seen.popitem(last=False)

    def forget(self, worker: str) -> None:
        """The worker restarted: its cache is empty."""
        self._seen.pop(worker, None)

    def hits(self, hashes: Sequence[int], workers: Iterable[str]) -> dict[str, int]:
        """Leading tokens each worker probably has; workers without any are left out."""
        found = {}
        for worker in workers:
            seen = self._seen.get(worker)
            if not seen:
                continue
            depth = 0
            for h in hashes:
                if h not in seen:
                    break
                depth += 1
            if depth:
                found[worker] = depth * BLOCK
        return found
