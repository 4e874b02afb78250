"""What the gateway knows of each worker's cached prefixes: hashes of 16-token blocks, bounded."""

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BLOCK = 16
BLOCK_BYTES = 4 * BLOCK
DIGEST_BYTES = 16


def block_hashes(
    ids: Sequence[int], cache_salt: str, known: tuple[bytes, ...] = ()
) -> tuple[bytes, ...]:
    """Chained hashes of the complete canonical blocks of `ids`; the salt starts the chain.

    `known` are those of its first blocks, and are not computed again.
    """
    begun, whole = len(known) * BLOCK, len(ids) // BLOCK * BLOCK
    words = struct.pack(f"<{whole - begun}I", *ids[begun:whole])
    parent = blake2b(cache_salt.encode(), digest_size=DIGEST_BYTES).digest()
    if known:
        parent = known[-1]
    hashes = list(known)
    for start in range(0, len(words), BLOCK_BYTES):
        block = words[start : start + BLOCK_BYTES]
        parent = blake2b(parent + block, digest_size=DIGEST_BYTES).digest()
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
            depth = 0
            for h in hashes:
                if h not in seen:
                    break
                depth += 1
            if depth:
                found[worker] = depth * BLOCK
        return found
