"""A modelled worker's KV memory: what legs have reserved, and prefixes in what they have not."""

from orchestrator.replay.caches import PrefixCache
from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.prompt import blocks_of

BLOCK = 16  # KV memory is given out in blocks of so many tokens


def in_blocks(tokens: int) -> int:
    """Tokens of the blocks that hold so many."""
    return -(-tokens // BLOCK) * BLOCK


class Memory:
    """Tokens of KV that are free of legs, and the prefix cache that lives there.

    None for `block_tokens`: there is no cache.
    """

    def __init__(self, tokens: int, block_tokens: int | None) -> None:
        self.free_tokens = tokens // BLOCK * BLOCK
        self.cache = None if block_tokens is None else PrefixCache(block_tokens)

    @property
    def block_tokens(self) -> int:
        """What one name of a prompt's block stands for; 0: nothing is kept by name."""
        return 0 if self.cache is None else self.cache.block_tokens

    def take(self, leg: ModelLeg) -> None:
        """Room for what a leg has reserved. What is here of its prompt stays here.

        A prefill computes its prompt's last token anyway.
        """
        self.free_tokens -= leg.reserved
        cache = self.cache
        if cache is not None:
            blocks = blocks_of(leg.start.prompt_ids)
            leg.blocks = blocks[: cache.depth(blocks)]
            cache.hold(leg.blocks)
            cache.fit(self.free_tokens)
            leg.hit = min(len(leg.blocks) * cache.block_tokens, leg.prompt - 1)

    def lacking(self, leg: ModelLeg) -> tuple[int, ...]:
        """The names of its prompt's blocks that were not here, but for its last token's."""
        if self.cache is None:
            return ()
        whole = (leg.prompt - 1) // self.cache.block_tokens
        return blocks_of(leg.start.prompt_ids)[len(leg.blocks) : whole]

    def load(self, leg: ModelLeg, count: int) -> None:
        """So many of the blocks that it lacked come from stores."""
        if self.cache is not None and count:
            new = self.lacking(leg)[:count]
            self.cache.hold(new)
            leg.blocks += new
            leg.hit = min(len(leg.blocks) * self.cache.block_tokens, leg.prompt - 1)

    def keep(self, leg: ModelLeg) -> None:
        """A leg has all of its prompt's KV now: others may use it."""
        if self.cache is not None:
            new = blocks_of(leg.start.prompt_ids)[len(leg.blocks) :]
            self.cache.hold(new)
            leg.blocks += new

    def shrink(self, leg: ModelLeg, tokens: int) -> bool:
        """A leg that has lost tokens needs room for so many only; False: it has no more than that.

        What is cached of its prompt nobody holds any more.
        """
        cache, more = self.cache, leg.reserved - tokens
        if leg.blocks and cache is not None:
            cache.release(leg.blocks)
            leg.blocks = ()
        if more <= 0:
            return False
        self.free_tokens += more
        leg.reserved = tokens
        return True

    def grow(self, leg: ModelLeg) -> bool:
        """One block more for a leg; False: there is none."""
        if self.free_tokens < BLOCK:
            return False
        self.free_tokens -= BLOCK
        leg.reserved += BLOCK
        if self.cache is not None:
            self.cache.fit(self.free_tokens)
        return True

    def give_back(self, leg: ModelLeg) -> None:
        """A leg has ended."""
        self.free_tokens += leg.reserved
        if leg.blocks and self.cache is not None:
            self.cache.release(leg.blocks)
            self.cache.fit(self.free_tokens)
