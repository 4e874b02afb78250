"""Choosing what one step works on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    extends: list[tuple[S, int, int]] = []
    prompts: list[tuple[S, int, int]] = []
    for state in states:
        work = state.work(min(context, state.reach(block_size)))
        if work is None:
            continue
        start, stop = work
        if stop - start == 1:
            decodes.append(Entry(state, start, stop, state.samples_at(stop)))
        elif len(state.tokens) > state.spec.prompt_len:
            extends.append((state, start, stop))
        else:
            prompts.append((state, start, stop))
    return decodes + _within_budget(extends + prompts, chunk_tokens)


def _within_budget(parts: Sequence[tuple[S, int, int]], budget: int) -> list[Entry[S]]:
    """The first parts whose tokens fit in `budget`; the last one may be cut to a chunk."""
    chosen: list[Entry[S]] = []
    for state, start, stop in parts:
        if budget == 0:
            break
        end = min(stop, start + budget)
        chosen.append(Entry(state, start, end, end == stop and state.samples_at(stop)))
        budget -= end - start
    return chosen
