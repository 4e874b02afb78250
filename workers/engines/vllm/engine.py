"""The vLLM engine: a server of vLLM's computes, the worker's pool holds the KV.

A sequence with work is one request of vLLM's, a run: the ids so far as its prompt, the KV that is
here loaded by the connector, and what it computes put into the pool step by step. A run is a bet
that the law goes as it samples: it goes on while that is so, and gives way to a new one when the
law turned, or went far ahead. Memory that a run could write to stays its own until it is settled
(see `rows`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import numpy as np

from workers.api.info import EngineInfo, Part
from workers.api.messages import TokenLogprobs
from workers.engines.base import (
    EngineLost,
    NoRoom,
    Sample,
    SeqId,
    SequenceSpec,
    Step,
    StepResult,
)
from workers.engines.paged.engine import PagedEngine
from workers.engines.vllm.asking import Ask, completion
from workers.engines.vllm.client import Over, Told
from workers.engines.vllm.pool import MARGINS, SharedPool
from workers.engines.vllm.rows import Rows
from workers.engines.vllm.sequence import Run, VllmSequence

News = tuple[SeqId, int, int, int]  # see `KVListener`

TICK_S = 0.004  # how long a step without news lasts: the pool is looked at, messages come in
LAG = 8  # tokens that the law may be ahead of a run that samples; beyond, one extend is quicker
STALL_S = 300.0  # no news of a run for so long: it is lost, and vLLM when none has any


class VllmServer(Protocol):
    """What the engine asks of the server that computes. `events` blocks, at most `timeout_s`."""

    model: str

    @property
    def lost(self) -> str | None: ...
    def submit(self, run: int, body: dict[str, object]) -> None: ...
    def abort(self, run: int) -> None: ...
    def events(self, timeout_s: float) -> list[Told | Over]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class VllmStep:
    """A look at what vLLM has done meanwhile; see `Engine.begin`."""

    seqs: tuple[SeqId, ...]

    @property
    def duration_s(self) -> float | None:
        return None


class VllmEngine(PagedEngine[VllmSequence]):
    """See the module's docstring. It takes no grammars."""

    takes_gaps = False  # vLLM knows of a sequence only how many tokens are computed

    def __init__(
        self,
        info: EngineInfo,
        pool: SharedPool,
        server: VllmServer,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(info, chunk_tokens=info.max_context, tokenizer=None)
        self.costs = None
        self._store = pool
        self._server = server
        self._clock = clock
        self._rows = Rows(pool)
        self._runs: dict[int, Run] = {}
        self._next_run = 1
        self._stepped_at = clock()

    def _sequence(self, seq: SeqId, spec: SequenceSpec, root: bytes) -> VllmSequence:
        return VllmSequence(id=seq, spec=spec, root=root, written=[0] * self._layers)

    def tell_lost(self) -> None:
        """From any thread: the server cannot be worked with any more."""
        if self.on_lost is not None:
            self.on_lost()

    def shutdown(self) -> None:
        """The server takes the pool's file along."""
        self._server.close()

    # ------------------------------------------------------------ steps

    def begin(self) -> VllmStep | None:
        self._check()
        with self._lock:
            self._settle()
            for run in self._runs.values():
                state = self._sequences.get(run.seq)
                if state is not None and state.run is run and not self._goes_on(state, run):
                    self._end(run)
            for state in self._aimed.values():
                if state.run is None:
                    self._ask(state)
            if not self._runs:
                return None
            return VllmStep(tuple(s.id for s in self._sequences.values() if s.run is not None))

    def finish(self, step: Step) -> StepResult:
        assert isinstance(step, VllmStep), "a step comes from this engine's begin"
        events = self._server.events(TICK_S)
        heard: list[News] = []
        samples: list[Sample] = []
        lost: list[tuple[SeqId, str]] = []
        computed: dict[SeqId, int] = {}
        prefill, stepped = 0, False
        with self._lock:
            for event in events:
                lost += self._take(event)
            for seq in step.seqs:
                state = self._sequences.get(seq)
                run = None if state is None else state.run
                if state is None or run is None or run.revoked or run.off:
                    continue
                before = state.computed
                drawn, news = self._follow(state, run)
                if drawn or news:
                    samples += drawn
                    heard += news
                    computed[seq] = state.computed
                    prefill += max(0, state.computed - before - 1)
                    stepped |= state.computed > before
            lost += self._stalled()
        if self.on_kv is not None:
            for new in heard:
                self.on_kv(*new)
        return StepResult(
            samples=tuple(samples),
            computed=computed,
            prefill_tokens=prefill,
            lost=tuple(lost),
            took_s=self._took() if stepped else 0.0,
        )

    def _check(self) -> None:
        """Raise EngineLost when vLLM will not go on."""
        why = self._server.lost or self._store.fault
        if why is None and self._runs and all(map(self._is_stalled, self._runs.values())):
            why = f"vLLM has made no progress for {STALL_S:.0f} s"
        if why is not None:
            raise EngineLost(why)

    def _is_stalled(self, run: Run) -> bool:
        return self._clock() - run.news_at > STALL_S

    def _stalled(self) -> list[tuple[SeqId, str]]:
        """Give up the runs of which nothing is heard while others go on."""
        stalled = [
            run
            for run in self._runs.values()
            if not run.revoked and run.table is None and self._is_stalled(run)
        ]
        if len(stalled) == len(self._runs):
            return []  # it is vLLM itself, and `_check` says so
        return [self._lose(run, f"no news of it from vLLM for {STALL_S:.0f} s") for run in stalled]

    def _lose(self, run: Run, why: str) -> tuple[SeqId, str]:
        run.off = True
        self._sequences[run.seq].cancelled = True
        return (run.seq, why)

    def _took(self) -> float:
        """What vLLM's step took that has just put a token's whole KV here."""
        before, self._stepped_at = self._stepped_at, self._clock()
        return self._stepped_at - before

    # ------------------------------------------------------------ runs

    def _ask(self, state: VllmSequence) -> None:
        """Give vLLM a sequence that has work, if it can be now."""
        if state.cut is not None and not self._cut_now(state):
            return
        context, length = self.info.max_context, len(state.tokens)
        most = min(context, state.table.capacity * self._block_size)
        if state.work(most) is None or length >= context:
            return
        row = self._rows.take(self._next_run)
        if row is None:
            return
        goal = length + 1 if state.goal is None else state.goal
        # vLLM samples at least one token, also where only KV is wanted.
        count = max(1, min(goal, most) - length)
        self._pool.extend(state.table, self._blocks_for(min(length + count, most)))
        now = self._clock()
        run = Run(id=self._next_run, row=row, seq=state.id, given=length, news_at=now)
        self._next_run += 1
        if not self._runs:
            self._stepped_at = now
        state.run = self._runs[run.id] = run
        ask = Ask(
            model=self._server.model,
            pool=self._store.path.name,
            row=row,
            run=run.id,
            have=state.computed,
            blocks=state.table.blocks,
            block_size=self._block_size,
            tokens=state.tokens,
            count=count,
        )
        self._server.submit(run.id, completion(state.spec, ask))

    def _goes_on(self, state: VllmSequence, run: Run) -> bool:
        if run.revoked:
            return True
        if run.off or state.work(self.info.max_context) is None or (run.over and not run.told):
            return False
        # A new run gets the law's tokens in one extend. This one has sampled, so all get on.
        return run.fresh == 0 or len(state.tokens) - run.given <= LAG

    def _end(self, run: Run) -> None:
        run.revoked = True
        self._rows.revoke(run.row)
        if not run.over:
            self._server.abort(run.id)

    def _settle(self) -> None:
        """Runs that can write nothing any more give back what they kept."""
        settled = set(self._rows.settled())
        for run in [run for run in self._runs.values() if run.row in settled and run.revoked]:
            del self._runs[run.id]
            if run.table is not None:
                self._pool.close(run.table)
                continue
            state = self._sequences[run.seq]
            state.run = None
            if state.cut is not None:
                self._cut_now(state)

    def _take(self, event: Told | Over) -> list[tuple[SeqId, str]]:
        """Note what vLLM says of a run; a run that it refuses is lost."""
        run = self._runs.get(event.run)
        if run is None or run.revoked:
            return []
        run.news_at = self._clock()
        if isinstance(event, Told):
            run.told.extend(event.tokens)
            return []
        run.over = True
        if event.refusal is None or run.table is not None:
            return []
        return [self._lose(run, event.refusal)]

    def _follow(self, state: VllmSequence, run: Run) -> tuple[list[Sample], list[News]]:
        """Note what KV has come, and take the tokens before which all KV is here."""
        samples: list[Sample] = []
        news = self._advance(state, run)
        while run.told and state.computed >= run.given and not run.off:
            samples += self._agree(state, run, *run.told.popleft())
            news += self._advance(state, run)
        return samples, news

    def _advance(self, state: VllmSequence, run: Run) -> list[News]:
        """What KV is new, layer by layer, as listeners are told."""
        saved = self._store.saved[run.row].min(axis=1)
        there = np.minimum(saved, run.given).tolist()
        news = [
            (state.id, layer, had, has)
            for layer, (had, has) in enumerate(zip(state.written, there, strict=True))
            if has > had
        ]
        if news:
            run.news_at = self._clock()
            ahead = [max(had, has) for had, has in zip(state.written, there, strict=True)]
            if min(ahead) > state.computed:
                self._compute_to(state, min(ahead))
            state.written[:] = ahead
        return news

    def _agree(
        self, state: VllmSequence, run: Run, token: int, logprobs: TokenLogprobs | None
    ) -> list[Sample]:
        """The run sampled a token: a new one, or what the law says anyway, or it is off."""
        samples: list[Sample] = []
        if run.given < len(state.tokens):
            run.off = state.tokens[run.given] != token
        elif state.samples_at(run.given) and not state.cancelled:
            samples = [Sample(state.id, token, logprobs, self._margin(state, run))]
            state.tokens.append(token)
        else:
            run.off = True
        if not run.off:
            run.given += 1
            run.fresh += 1
        return samples

    def _margin(self, state: VllmSequence, run: Run) -> float | None:
        if not state.spec.sampling.margins:
            return None
        at = (run.given - state.spec.prompt_len) % MARGINS
        return float(self._store.margins[run.row, at])

    # ------------------------------------------------------------ memory that a run may write to

    def _release(self, state: VllmSequence) -> None:
        if state.run is None:
            super()._release(state)
            return
        state.run.table = state.table
        if not state.run.revoked:
            self._end(state.run)

    def _cut_table(self, state: VllmSequence, length: int) -> None:
        if state.run is None:
            super()._cut_table(state, length)
            return
        state.run.off = True
        state.cut = length if state.cut is None else min(state.cut, length)

    def _cut_now(self, state: VllmSequence) -> bool:
        """Cut the table of a sequence whose run has ended; False: no room for a copy now."""
        assert state.cut is not None
        try:
            super()._cut_table(state, state.cut)
        except NoRoom:
            return False
        state.cut = None
        return True

    # ------------------------------------------------------------ KV bytes

    def _read_bits(
        self, state: VllmSequence, layer: int, part: Part, tokens: np.ndarray
    ) -> np.ndarray:
        return self._store.bits[layer, _SIDE[part], state.slots_of(self._block_size, tokens)]

    def _write_bits(
        self, state: VllmSequence, layer: int, part: Part, tokens: np.ndarray, data: np.ndarray
    ) -> None:
        self._store.bits[layer, _SIDE[part], state.slots_of(self._block_size, tokens)] = data

    def _read_blocks(self, blocks: Sequence[int]) -> np.ndarray:
        first = np.array(blocks, dtype=np.int64)[:, None] * self._block_size
        return self._store.bits[:, :, (first + np.arange(self._block_size)).ravel()]

    def _copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self._store.bits[:, :, targets] = self._store.bits[:, :, sources]


_SIDE = {Part.KEY: 0, Part.VALUE: 1}
