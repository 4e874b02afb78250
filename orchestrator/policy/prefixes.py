"""What the gateway knows of each worker's cached prefixes: names of 16-token blocks, bounded.

All workers serve one model, so unlike theirs the names are without its fingerprint.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from workers.kv.prefix import CANONICAL_TOKENS as BLOCK
from workers.kv.prefix import block_names


def block_hashes(
    ids: Sequence[int], cache_salt: str, known: Sequence[bytes] = ()
) -> tuple[bytes, ...]:
    """Chained hashes of the complete canonical blocks of `ids`; the salt starts the chain.

    `known` are those of its first blocks, and are not computed again.
    """
    return block_names("", cache_salt, ids, known)


Name = Any  # of a block: bytes, or what a workload calls it; equal is all that matters


class BlockNames:
    """Names content by its tokens. Prompts without tokens are named by whoever made them.

    `blocks_per_worker`: how many of a worker's are remembered, the newest.
    """

    block_tokens = BLOCK
    blocks_per_worker = 4096

    def of_prompt(self, prompt_ids: Sequence[int], cache_salt: str) -> tuple[Name, ...]:
        """Names of a prompt's leading blocks; what they are of is nobody else's business."""
        return block_hashes(prompt_ids, cache_salt)

    def of_answered(
        self,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        cache_salt: str,
        known: Sequence[Name],
    ) -> tuple[Name, ...]:
        """Names of a prompt with its answer; `known` are the prompt's own."""
        return block_hashes((*prompt_ids, *answer_ids), cache_salt, known)


class PrefixBook:
    """Per worker the blocks it was seen to hold; a guess, since workers evict on their own."""

    def __init__(self, names: BlockNames | None = None) -> None:
        self.names = names or BlockNames()
        self._limit = self.names.blocks_per_worker
        self._seen: dict[str, OrderedDict[Name, None]] = {}

    def note(self, worker: str, hashes: Sequence[Name]) -> None:
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

    def hits(self, hashes: Sequence[Name], workers: Iterable[str]) -> dict[str, int]:
        """Leading tokens each worker probably has; workers without any are left out."""
        found: dict[str, int] = {}
        if not hashes:
            return found
        for worker in workers:
            seen = self._seen.get(worker)
            if not seen:
                continue
            depth = len(list(takewhile(seen.__contains__, hashes)))
            if depth:
                found[worker] = depth * self.names.block_tokens
        return found
