"""The engine interface: sequences that compute KV and sample tokens, one batch step at a time.

An engine knows nothing of legs, laws or gateways. A sequence is a list of token ids of which the
first `computed` have their KV in the pool. While a sequence has uncomputed tokens, or is shorter
than its goal, a step works on it: it computes (in chunks) what is missing, and when everything is
computed and the length is below the goal it samples the next token. Prefill, extend and decode
are thus one thing.

Threads: `open` to `close`, `begin` and `finish` are called by one thread, the engine's. `put`,
`read` and `read_cached` may be called by others at any time; `cancel` too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from workers.api.info import EngineInfo, Part
from workers.api.messages import Sampling, TokenLogprobs
from workers.costs import Costs


class SeqId(NamedTuple):
    """One sequence: a leg of a request."""

    request: str
    epoch: int


class NoRoom(Exception):
    """The pool cannot set the tokens aside now; holds what was wanted and what is free."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"no KV memory: {wanted} tokens wanted, {free} free")
        self.wanted = wanted
        self.free = free


class GrammarRefused(Exception):
    """The engine cannot keep to the grammar that a sequence asks for; one line for people."""


class GrammarLost(Exception):
    """A sequence's grammar cannot be followed any further; one line for people."""


class EngineLost(Exception):
    """What computes for the engine is gone, or does not answer; one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """What a sequence needs for its whole life.

    `tokens` are prompt and output ids so far; the first `prompt_len` are the prompt. Stop ids
    may not be sampled at an output index below `min_tokens`; with a grammar, which says itself
    where the text may end, that holds nothing back.
    """

    tokens: Sequence[int]
    prompt_len: int
    reserve: int
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSlice:
    """K or V of one layer for tokens [start, stop) of a sequence, canonical and token-major.

    `data`: [tokens, kv_heads, head_size], dtype uint16 holding bfloat16 bits (or the unsigned
    type as wide as the pool's dtype). `positions`: RoPE position of each token, [tokens] int32.
    Of a sequence that has lost tokens it holds those of the range that are kept.
    """

    layer: int
    part: Part
    start: int
    stop: int
    positions: np.ndarray
    data: np.ndarray


class Sample(NamedTuple):
    """One sampled token, already appended to its sequence."""

    seq: SeqId
    token: int
    logprobs: TokenLogprobs | None = None
    margin: float | None = None


class StepResult(NamedTuple):
    """What a step did: samples, and the new `computed` of every sequence it worked on.

    `lost`: sequences that would have sampled and never can, each with the reason. `took_s`: what
    the step took, where its caller cannot tell; 0: it was no more than a look.
    """

    samples: tuple[Sample, ...]
    computed: dict[SeqId, int]
    prefill_tokens: int  # tokens computed beyond the one per sequence that decode computes
    lost: tuple[tuple[SeqId, str], ...] = ()
    took_s: float | None = None


class KeptTokens(NamedTuple):
    """What eviction has come to: two counts since the engine began, and how things are.

    `living_tokens` of the sequences that have lost some lie in `places` places of their blocks.
    """

    evicted_tokens: int
    freed_blocks: int
    living_tokens: int
    places: int


class Step(Protocol):
    """A batch chosen by `begin`. `duration_s` is modelled time to let pass before `finish`."""

    @property
    def seqs(self) -> tuple[SeqId, ...]: ...
    @property
    def duration_s(self) -> float | None: ...


# Called in the engine's thread as soon as K and V of `layer` for tokens [start, stop) are in the
# pool: (seq, layer, start, stop).
KVListener = Callable[[SeqId, int, int, int], None]


class Engine(Protocol):
    """See the module's docstring. Every verb on an unknown sequence raises KeyError."""

    info: EngineInfo
    on_kv: KVListener | None
    on_lost: Callable[[], None] | None  # from any thread: the next `begin` raises EngineLost

    @property
    def costs(self) -> Costs | None:
        """What its steps take by its own model; None: that is to be measured."""

    def open(self, seq: SeqId, spec: SequenceSpec, *, reuse: bool) -> int:
        """Set memory aside and return how many leading tokens were found in the pool's cache.

        With `reuse` those are taken over as computed (never the last token: it must be computed
        for its logits, so at most len(tokens) - 1). Raises NoRoom,
        and GrammarRefused.
        """

    def grow(self, seq: SeqId, reserve: int) -> None:
        """Raise the reservation to `reserve` tokens. Raises NoRoom and changes nothing then."""

    def append(self, seq: SeqId, ids: Sequence[int]) -> None:
        """Add tokens whose KV is still to be computed."""

    def truncate(self, seq: SeqId, length: int) -> None:
        """Forget every token from `length` on, and its KV."""

    def set_goal(self, seq: SeqId, length: int | None) -> None:
        """Sample while the sequence is shorter than `length`; None: leave the sequence alone."""

    def length(self, seq: SeqId) -> int: ...
    def computed(self, seq: SeqId) -> int: ...

    def open_import(self, seq: SeqId, tokens: int) -> int:
        """Expect KV for tokens [0, tokens) from outside; returns how many are there already."""

    def put(self, seq: SeqId, kv: KVSlice) -> None:
        """Take one slice of an open import, in any order, repeats allowed. Raises ValueError."""

    def missing(self, seq: SeqId) -> int:
        """Slices-worth of tokens (summed over layers and parts) still missing; 0: complete."""

    def commit_import(self, seq: SeqId) -> None:
        """Make the imported tokens computed. Raises ValueError when some are missing."""

    def imported(self, seq: SeqId) -> int:
        """How many leading tokens of an open import are complete."""

    def keep_import(self, seq: SeqId) -> int:
        """End an import with what has come of it: so many leading tokens are computed now."""

    def share(self, source: SeqId, seq: SeqId, tokens: int) -> None:
        """Take the first `tokens` computed tokens of `source`; an open import gives way."""

    def read(self, seq: SeqId, layer: int, part: Part, start: int, stop: int) -> KVSlice:
        """A copy of one slice that is in the pool. KeyError once the sequence is closed."""

    def sendable(self, seq: SeqId) -> int:
        """Leading computed tokens of which it is decided which are kept: they may be read."""

    def pin(self, seq: SeqId) -> None:
        """No token of it dies until `unpin`: somebody reads it piece by piece."""

    def unpin(self, seq: SeqId) -> None:
        """Once for each `pin`; the sequence may be closed."""

    def kept(self) -> KeptTokens: ...

    def read_cached(self, name: bytes) -> np.ndarray | None:
        """A copy of a unit of the prefix cache, by the name of its last canonical block.

        [layers, 2, unit tokens, kv_heads, head_size], bits; a unit is lcm(block size, 16) tokens.
        None: it is not here, or not any more. From any thread.
        """

    def close(self, seq: SeqId) -> None:
        """Give the memory back; complete blocks may stay as unreferenced cache."""

    def cancel(self, seq: SeqId) -> None:
        """Stop working on it as soon as possible, also inside a step; `close` still follows."""

    def begin(self) -> Step | None:
        """Choose the next batch; None when no sequence has work. Raises EngineLost."""

    def finish(self, step: Step) -> StepResult:
        """Compute the batch. A sequence that it lost is only to be closed."""

    def kv_free_tokens(self) -> int:
        """Tokens that could be reserved now, evictable cache included."""

    def kv_held_tokens(self) -> int:
        """Tokens in blocks that some sequence references; 0 when nothing is open."""

    def shutdown(self) -> None:
        """End what would outlive this process. Nothing else is called after it."""
