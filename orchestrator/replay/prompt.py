"""Prompts that have a length and names for what they contain, and no tokens."""

from collections.abc import Sequence

from orchestrator.policy.prefixes import BlockNames, Name
from orchestrator.replay.stores.tiers import short
from workers.kv.prefix import CANONICAL_TOKENS


class Prompt(tuple[int, ...]):
    """Takes the place of a prompt's token ids: nobody in a replay looks at one of them.

    `blocks`: names of its leading whole blocks; an equal name is equal content up to its end.
    """

    length: int
    blocks: tuple[int, ...]

    def __new__(cls, length: int, blocks: tuple[int, ...] = ()) -> "Prompt":
        prompt = super().__new__(cls)
        prompt.length, prompt.blocks = length, blocks
        return prompt

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return bool(self.length)


def blocks_of(prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """The names of a prompt's blocks; of real ids none is known."""
    return prompt_ids.blocks if isinstance(prompt_ids, Prompt) else ()


class PromptNames(BlockNames):
    """For the core: names as they came with the workload, one for `block_tokens` tokens.

    None: workers keep no prefixes, so nothing is worth a name. `kv_tokens`: the most that one of
    them can keep; what is older than so much need not be remembered.
    """

    def __init__(self, block_tokens: int | None, kv_tokens: int) -> None:
        self._named = block_tokens is not None
        self.block_tokens = block_tokens or CANONICAL_TOKENS
        self.blocks_per_worker = max(1, kv_tokens // self.block_tokens)

    def of_prompt(self, prompt_ids: Sequence[int], cache_salt: str) -> tuple[Name, ...]:
        return blocks_of(prompt_ids) if self._named else ()

    def of_answered(
        self,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        cache_salt: str,
        known: Sequence[Name],
    ) -> tuple[Name, ...]:
        """What a prompt and its answer are called only the next turn knows."""
        return tuple(known)

    def short(self, name: Name) -> bytes:
        return short(name)
