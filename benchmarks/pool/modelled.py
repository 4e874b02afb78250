"""Time to the first token on the simulated engine, at a catalogue model's speed, in virtual time.

The worker's core, its moves of blocks, the store's tiers and the choice between loading and
computing are the real ones. The engine's blocks are small and come as much slower, so that a block
takes as long as the catalogue model's.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.schedule import Schedule
from orchestrator.virtual.stores.moves import VirtualStorage
from orchestrator.virtual.stores.store import StoreSpec, VirtualStore
from workers.api.messages import Role, Start, Stop, TokenRun
from workers.costs import Costs
from workers.engines.base import SeqId, Step
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.engines.simulated.model import SimulatedModel
from workers.outputs import LoadBlocks, Output, SaveBlocks, Up
from workers.tiers.blocks import BlockForm
from workers.worker import Worker

MODEL = SimulatedModel(name="modelled", layers=1, head_size=4, max_context=1 << 20)
SMALL_BYTES = BlockForm.of(MODEL.fingerprint).nbytes
CHUNK_TOKENS = 2048
FOR_EVER_S = 1e9
WARM_TOKENS = 2048  # what a worker computes, and loads, before it is asked: it has measured both
LATE_S = 3600.0


class Asked(NamedTuple):
    """A prefill's token: how long it took, and how much of its prompt came from the store."""

    seconds: float
    loaded: int


class _Worker:
    """A worker over the simulated engine, in virtual time; with a store, or without one."""

    def __init__(self, costs: Costs, schedule: Schedule, store: VirtualStore | None) -> None:
        self._schedule = schedule
        process = Process("worker", "site", schedule)
        process.start()
        engine = SimulatedEngine(
            MODEL, costs, kv_total_tokens=MODEL.max_context, chunk_tokens=CHUNK_TOKENS
        )
        self._core = Worker(
            "worker",
            engine,
            slots=2,
            hold_s=FOR_EVER_S,
            lease_s=FOR_EVER_S,
            stores=store is not None,
        )
        network = Network(schedule, Random(0), one_way_s=0.0, bytes_per_s=1.0)
        self._storage = VirtualStorage(
            process,
            engine,
            [] if store is None else [store],
            network,
            line_bytes_per_s=None,
            loaded=self._loaded,
            wrong=_wrong,
        )
        self._step: Step | None = None
        self._said: TokenRun | None = None
        self._asked = 0

    def ask(self, prompt: tuple[int, ...]) -> Asked:
        """Prefill `prompt`; what is to be kept of it is saved then."""
        self._asked += 1
        name, began, self._said = f"r{self._asked}", self._schedule.now, None
        start = Start(
            request=name,
            epoch=1,
            gateway="bench",
            role=Role.PREFILL,
            prompt_ids=prompt,
            limit=2,
            reserve=len(prompt) + 2,
        )
        self._turn(self._core.handle(start, began))
        self._schedule.run(began + LATE_S, stop=lambda: self._said is not None)
        assert self._said is not None, f"{len(prompt)} tokens took longer than {LATE_S:g} s"
        asked = Asked(self._schedule.now - began, self._said.cached or 0)
        self._turn(self._core.handle(Stop(request=name, epoch=1), self._schedule.now))
        self._schedule.run(self._schedule.now + 1.0)
        return asked

    def _turn(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, LoadBlocks):
                self._storage.load(output)
            elif isinstance(output, SaveBlocks):
                self._storage.save(output)
            elif isinstance(output, Up) and isinstance(output.message, TokenRun):
                self._said = output.message
        if self._step is not None:
            return
        now = self._schedule.now
        self._step = self._core.begin(now)
        if self._step is not None:
            self._schedule.after(self._step.duration_s or 0.0, self._stepped)
        elif (due := self._core.next_deadline()) is not None and due < now + LATE_S:
            self._schedule.at(due, self._woken)

    def _stepped(self) -> None:
        step, self._step = self._step, None
        assert step is not None, "one step at a time"
        self._turn(self._core.finish(step, self._schedule.now))

    def _woken(self) -> None:
        if self._step is None:
            self._turn(self._core.expire(self._schedule.now))

    def _loaded(self, seq: SeqId) -> None:
        self._turn(self._core.blocks_loaded(seq, self._schedule.now))


def ask(
    costs: Costs, tokens: int, *, block_bytes: int, bytes_per_s: float | None, answer_s: float
) -> Asked:
    """A prompt of so many tokens that a store has at `bytes_per_s`; None: that nobody has."""
    schedule, rng = Schedule(), Random(tokens)
    warm, other, prompt = (
        tuple(rng.randrange(3, MODEL.vocab_size) for _ in range(count))
        for count in (WARM_TOKENS, WARM_TOKENS, tokens)
    )
    if bytes_per_s is None:
        return _Worker(costs, schedule, None).ask(prompt)
    spec = StoreSpec(
        site="site",
        pool="pool",
        memory_bytes=2 * SMALL_BYTES * (tokens + 2 * WARM_TOKENS),
        files=False,
        answer_s=answer_s,
        bytes_per_s=bytes_per_s * SMALL_BYTES / block_bytes,
    )
    store = VirtualStore(spec, schedule)
    store.boot()
    writer = _Worker(costs, schedule, store)
    for text in (warm, prompt):
        writer.ask(text)
    reader = _Worker(costs, schedule, store)
    for text in (other, warm):
        reader.ask(text)
    return reader.ask(prompt)


def _wrong(seq: SeqId, error: WrongKV) -> None:
    raise error
