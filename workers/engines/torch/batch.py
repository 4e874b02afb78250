"""Choosing what one step works on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workers.engines.base import SeqId
from workers.engines.torch.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Entry:
    """One sequence's part of a step: run tokens [start, stop), then perhaps sample."""

    seq: SequenceState
    start: int
    stop: int
    sample: bool

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A chosen batch; see `Engine.begin`."""

    entries: tuple[Entry, ...]

    @property
    def seqs(self) -> tuple[SeqId, ...]:
        return tuple(entry.seq.id for entry in self.entries)

    @property
    def duration_s(self) -> float | None:
        return None


def choose_batch(
    states: Iterable[SequenceState], *, context: int, block_size: int, chunk_tokens: int
) -> list[Entry]:
    """Decode rows first, then extends, then prompts within a budget; each in opening order.

    Extends go before prompts because somebody is waiting in the middle of an answer.
    """
    decodes: list[Entry] = []
    extends: list[Entry] = []
    prompts: list[Entry] = []
    for state in states:
        work = state.work(context, block_size)
        if work is None:
            continue
        entry = Entry(state, *work, sample=state.wants_token_at(work[1]))
        if entry.count == 1:
            decodes.append(entry)
        elif len(state.tokens) > state.spec.prompt_len:
            extends.append(entry)
        else:
            prompts.append(entry)
    return decodes + _within_budget(extends + prompts, chunk_tokens)


def _within_budget(entries: Sequence[Entry], budget: int) -> list[Entry]:
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
