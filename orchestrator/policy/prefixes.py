"""What the gateway knows of each worker's cached prefixes: names of 16-token blocks, bounded.

All workers serve one model, so unlike theirs the names are without its fingerprint.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


SHORT_BYTES = 8  # of a name, by which a store tells what it holds
Pool = tuple[str, str]  # site and name

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

    def short(self, name: Name) -> bytes:
        """By which a store tells that it holds this block."""
        first: bytes = name[:SHORT_BYTES]
        return first


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


def short_names(text: str) -> list[bytes]:
    """First bytes of names, which `text` holds one after the other in hexadecimal."""
    raw = bytes.fromhex(text)
    return [raw[at : at + SHORT_BYTES] for at in range(0, len(raw), SHORT_BYTES)]


class PrefixBook:
    """Per worker the blocks it was seen to hold; a guess, since workers evict on their own.

    And per pool what its store holds, by the first bytes of each block's name: the workers of
    every pool with a store have what any store of their site has.
    """

    def __init__(self, names: BlockNames | None = None) -> None:
        self.names = names or BlockNames()
        self._seen: dict[str, _Seen] = {}
        self._pools: dict[str, Pool] = {}  # by worker
        self._stores: dict[Pool, set[bytes]] = {}

    def note(self, worker: str, hashes: Sequence[Name]) -> None:
        """`worker` has computed or received these blocks."""
        if not hashes:
            return
        seen = self._seen.get(worker)
        if seen is None:
            seen = self._seen[worker] = _Seen(self.names.blocks_per_worker)
        seen.note(hashes)

    def belongs(self, worker: str, site: str, pool: str) -> None:
        """Where a worker is."""
        self._pools[worker] = site, pool

    def store_holds(
        self, site: str, pool: str, whole: bool, added: Iterable[bytes], removed: Iterable[bytes]
    ) -> None:
        """A pool's store has come to hold blocks, and lost others; `whole`: it has no more."""
        held = set() if whole else self._stores.get((site, pool), set())
        held.difference_update(removed)
        held.update(added)
        self._stores[site, pool] = held

    def forget(self, worker: str) -> None:
        """The worker restarted: its cache is empty."""
        self._seen.pop(worker, None)
        self._pools.pop(worker, None)

    def hits(self, hashes: Sequence[Name], workers: Iterable[str]) -> dict[str, int]:
        """Leading tokens each worker probably has; workers without any are left out."""
        found: dict[str, int] = {}
        if not hashes:
            return found
        block_tokens = self.names.block_tokens
        stored = self._stored(hashes) if self._stores else {}
        for worker in workers:
            depth = self._own(hashes, worker)
            if stored and worker in self._pools:
                depth = max(depth, stored.get(self._pools[worker], 0))
            if depth:
                found[worker] = depth * block_tokens
        return found

    def loads(self, hashes: Sequence[Name], hits: Mapping[str, int]) -> dict[str, int]:
        """Of what `hits` found for each worker, how much it has not itself: a store has it."""
        if not self._stores:
            return {}
        block_tokens = self.names.block_tokens
        return {
            worker: tokens - own
            for worker, tokens in hits.items()
            if (own := self._own(hashes, worker) * block_tokens) < tokens
        }

    def _own(self, hashes: Sequence[Name], worker: str) -> int:
        """Leading blocks that a worker probably has itself."""
        seen = self._seen.get(worker)
        if seen is None or hashes[0] not in seen.newest:
            return 0
        newest, own = seen.newest, 0
        for name in hashes:
            if name not in newest:
                break
            own += 1
        return own

    def _stored(self, hashes: Sequence[Name]) -> dict[Pool, int]:
        """Leading blocks that each pool with a store finds in its site's stores."""
        shorts = list(map(self.names.short, hashes))
        depths: dict[str, int] = {}
        for site in {site for site, _ in self._stores}:
            stores = [held for (where, _), held in self._stores.items() if where == site]
            depth = 0
            for short in shorts:
                if not any(short in held for held in stores):
                    break
                depth += 1
            depths[site] = depth
        return {(site, pool): depths[site] for site, pool in self._stores}
