"""What the gateway knows of each worker's cached prefixes: hashes of 16-token blocks, bounded."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BLOCK = 16


def block_hashes(ids: Sequence[int], cache_salt: str) -> tuple[bytes, ...]:
    """Chained hashes of the complete canonical blocks of `ids`; the salt starts the chain."""
    parent = blake2b(cache_salt.encode(), digest_size=16).digest()
    words = array("I", ids)
    size = BLOCK * words.itemsize
    raw = words.tobytes()
    hashes = []
    for start in range(0, len(raw) - size + 1, size):
        parent = blake2b(parent + raw[start : start + size], digest_size=16).digest()
        hashes.append(parent)
    return tuple(hashes)


class PrefixBook:
    """Per worker the blocks it was seen to hold; a guess, since workers evict on their own."""

    def __init__(self, blocks_per_worker: int = 4096) -> None:
        self._limit = blocks_per_worker
        self._seen: dict[str, OrderedDict[bytes, None]] = {}

    def note(self, worker: str, hashes: Sequence[bytes]) -> None:
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

    def hits(self, hashes: Sequence[bytes], workers: Iterable[str]) -> dict[str, int]:
        """Leading tokens each worker probably has; workers without any are left out."""
        found = {}
        for worker in workers:
            seen = self._seen.get(worker)
            if not seen:
                continue
            depth = next((i for i, h in enumerate(hashes) if h not in seen), len(hashes))
            if depth:
                found[worker] = depth * BLOCK
        return found
