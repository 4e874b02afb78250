"""What the gateway knows of each worker's cached prefixes: names of 16-token blocks, bounded.

All workers serve one model, so unlike theirs the names are without its fingerprint.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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


class _Seen:
    """Names one worker was seen to hold, at most `limit`: those noted last.

    A note is kept whole and its names get its number in one go; which of them are still the newest
    word of theirs is only looked at when the oldest has to go.
    """

    __slots__ = ("_limit", "_noted", "_notes", "_number", "_oldest", "newest")

    def __init__(self, limit: int) -> None:
        self.newest: dict[Name, int] = {}  # the number of the last note that has it
        self._limit = limit
        self._number = 0
        self._notes: deque[tuple[int, Sequence[Name]]] = deque()
        self._noted = 0  # names in them
        self._oldest = self._from_oldest()

    def note(self, names: Sequence[Name]) -> None:
        self._number += 1
        self.newest.update(dict.fromkeys(names, self._number))
        self._notes.append((self._number, names))
        self._noted += len(names)
        while len(self.newest) > self._limit:
            del self.newest[next(self._oldest)]
        if self._noted > 2 * self._limit:
            self._drop_outdated()

    def _from_oldest(self) -> Iterator[Name]:
        while True:
            number, names = self._notes.popleft()
            self._noted -= len(names)
            for name in names:
                if self.newest.get(name) == number:
                    yield name

    def _drop_outdated(self) -> None:
        """What was noted again since would otherwise stay for as long as nothing has to go."""
        newest, notes = self.newest, self._notes
        kept = [(number, [n for n in names if newest[n] == number]) for number, names in notes]
        self._notes = deque((number, names) for number, names in kept if names)
        self._noted = sum(len(names) for _, names in self._notes)


class PrefixBook:
    """Per worker the blocks it was seen to hold; a guess, since workers evict on their own."""

    def __init__(self, names: BlockNames | None = None) -> None:
        self.names = names or BlockNames()
        self._seen: dict[str, _Seen] = {}

    def note(self, worker: str, hashes: Sequence[Name]) -> None:
        """`worker` has computed or received these blocks."""
        if not hashes:
            return
        seen = self._seen.get(worker)
        if seen is None:
            seen = self._seen[worker] = _Seen(self.names.blocks_per_worker)
        seen.note(hashes)

    def forget(self, worker: str) -> None:
        """The worker restarted: its cache is empty."""
        self._seen.pop(worker, None)

    def hits(self, hashes: Sequence[Name], workers: Iterable[str]) -> dict[str, int]:
        """Leading tokens each worker probably has; workers without any are left out."""
        found: dict[str, int] = {}
        if not hashes:
            return found
        first, block_tokens = hashes[0], self.names.block_tokens
        for worker in workers:
            seen = self._seen.get(worker)
            if seen is None or first not in seen.newest:
                continue
            newest, depth = seen.newest, 0
            for name in hashes:
                if name not in newest:
                    break
                depth += 1
            found[worker] = depth * block_tokens
        return found
