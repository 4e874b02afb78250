"""Choosing what one step works on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from workers.engines.paged.sequence import PagedSequence

S = TypeVar("S", bound=PagedSequence)


@dataclass(frozen=True, slots=True)
class Entry(Generic[S]):
    """One sequence's part of a step: compute tokens [start, stop), then perhaps sample."""

    seq: S
    start: int
    stop: int
    sample: bool

    @property
    def count(self) -> int:
        return self.stop - self.start


def choose_batch(
    states: Iterable[S], *, context: int, block_size: int, chunk_tokens: int
) -> list[Entry[S]]:
    """Decode rows first, then extends, then prompts within a budget; each as `states` has them.

    Extends go before prompts because somebody is waiting in the middle of an answer.
    """
    decodes: list[Entry[S]] = []
    extends: list[Entry[S]] = []
    prompts: list[Entry[S]] = []
    for state in states:
        work = state.work(min(context, state.table.capacity * block_size))
        if work is None:
            continue
        start, stop = work
        entry = Entry(state, start, stop, state.samples_at(stop))
        if stop - start == 1:
            decodes.append(entry)
        elif len(state.tokens) > state.spec.prompt_len:
            extends.append(entry)
        else:
            prompts.append(entry)
    if extends or prompts:
        decodes += _within_budget(extends + prompts, chunk_tokens)
    return decodes


def _within_budget(entries: Sequence[Entry[S]], budget: int) -> list[Entry[S]]:
    """The first entries whose tokens fit in `budget`; the last one may be cut to a chunk."""
    chosen = []
    for entry in entries:
        if budget == 0:
            break
        if entry.count > budget:
            entry = replace(entry, stop=entry.start + budget, sample=False)
        chosen.append(entry)
        budget -= entry.count
    return chosen
