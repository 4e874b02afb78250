"""An evicting engine under random lives: accounting adds up, and every kept token is its own."""

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.workers.engines.simulated.simulated_rig import COSTS, MODEL, spec
from workers.api.info import Part
from workers.engines.base import NoRoom, SeqId
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import kv_bits
from workers.kv.evict.config import Eviction, Reclaim

BASE = Eviction(policy="random", budget=0.5, slack=4, recent=6, first=2)
PROMPTS = [tuple(range(50, 50 + n)) for n in (5, 20, 33, 60)] + [tuple(range(90, 130))]


class AnyOrder(RuleBasedStateMachine):
    """Sequences that begin, decode, are cut, read, sent, shared and closed, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: SimulatedEngine | None = None
        self.open: list[SeqId] = []
        self.count = 0
        self.pinned: list[SeqId] = []

    @precondition(lambda self: self.engine is None)
    @rule(
        policy=st.sampled_from(["random", "h2o", "sink-recent"]),
        budget=st.sampled_from([0.3, 0.6, 12]),
        low=st.sampled_from([0.0, 0.5, 1.0]),
        reclaim=st.sampled_from(Reclaim),
        size=st.sampled_from([4, 16]),
    )
    def build(self, policy: str, budget: float, low: float, reclaim: Reclaim, size: int) -> None:
        self.engine = SimulatedEngine(
            MODEL,
            COSTS,
            kv_total_tokens=320,
            block_size=size,
            chunk_tokens=24,
            eviction=replace(BASE, policy=policy, budget=budget, low=low, reclaim=reclaim),
        )

    def a_sequence(self, data: st.DataObject) -> SeqId:
        return data.draw(st.sampled_from(self.open))

    @precondition(lambda self: self.engine)
    @rule(prompt=st.sampled_from(PROMPTS), reserve=st.integers(0, 40), reuse=st.booleans())
    def begin(self, prompt: tuple[int, ...], reserve: int, reuse: bool) -> None:
        self.count += 1
        seq = SeqId(f"r{self.count}", 1)
        try:
            self.engine.open(seq, spec(prompt, reserve=len(prompt) + reserve), reuse=reuse)
        except NoRoom:
            return
        self.engine.set_goal(seq, len(prompt) + 1)
        self.open.append(seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(1, 30))
    def decode(self, data: st.DataObject, more: int) -> None:
        seq = self.a_sequence(data)
        goal = self.engine.length(seq) + more
        try:
            self.engine.grow(seq, goal)
        except NoRoom:
            return
        self.engine.set_goal(seq, goal)

    @precondition(lambda self: self.open)
    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.engine.begin()
            if step is None:
                return
            self.engine.finish(step)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        seq = self.a_sequence(data)
        prompt = self.engine._sequences[seq].spec.prompt_len
        length = data.draw(st.integers(prompt, self.engine.length(seq)))
        self.engine.set_goal(seq, None)
        try:
            self.engine.truncate(seq, length)
            self.engine.append(seq, [3] * data.draw(st.integers(0, 9)))
        except NoRoom:
            return

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        seq = self.a_sequence(data)
        self.engine.pin(seq)
        self.pinned.append(seq)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.engine.unpin(self.pinned.pop())

    @precondition(lambda self: self.open)
    @rule(data=st.data(), send=st.booleans(), split=st.integers(1, 59))
    def hand_over(self, data: st.DataObject, send: bool, split: int) -> None:
        source = self.a_sequence(data)
        state = self.engine._sequences[source]
        tokens = self.engine.sendable(source)
        if tokens < state.spec.prompt_len:
            return
        self.count += 1
        seq = SeqId(f"r{self.count}", 1)
        known = tuple(state.tokens[:tokens])
        try:
            more = data.draw(st.integers(1, 20))
            began = spec(known, prompt_len=state.spec.prompt_len, reserve=tokens + more)
            self.engine.open(seq, began, reuse=False)
        except NoRoom:
            return
        self.open.append(seq)
        have = self.engine.open_import(seq, tokens)
        if not send:
            self.engine.share(source, seq, tokens)
            return
        for layer in range(MODEL.layers):
            for part in Part:
                for start, stop in ((have, min(have + split, tokens)), (have + split, tokens)):
                    if start < stop:
                        self.engine.put(seq, self.engine.read(source, layer, part, start, stop))
        self.engine.commit_import(seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        seq = self.a_sequence(data)
        self.open.remove(seq)
        self.pinned = [other for other in self.pinned if other != seq]
        self.engine.close(seq)

    @invariant()
    def blocks_add_up(self) -> None:
        if self.engine is None:
            return
        pool, tables = self.engine._pool, [s.table for s in self.engine._sequences.values()]
        assert pool.available >= 0
        assert pool._promised == sum(table.promised for table in tables)
        assert pool.held == len({block for table in tables for block in table.blocks})
        for state in self.engine._sequences.values():
            if state.kept is not None:
                assert len(state.table.blocks) == state.kept.rows

    @invariant()
    def no_two_sequences_write_the_same_slot(self) -> None:
        """A slot that two sequences read is of the same token after the same history."""
        seen: dict[int, int] = {}
        for state in self.engine._sequences.values() if self.engine else ():
            tokens = state.living(0, state.computed)
            slots = state.slots(self.engine._block_size, 0, state.computed)
            assert len(slots) == len(tokens) == state.live
            assert len(set(slots.tolist())) == len(slots)
            for token, slot in zip(tokens.tolist(), slots.tolist(), strict=True):
                assert seen.setdefault(slot, state.hashes[token]) == state.hashes[token]

    @invariant()
    def what_is_read_is_what_was_computed(self) -> None:
        for seq in self.open:
            state = self.engine._sequences[seq]
            if state.computed:
                piece = self.engine.read(seq, 0, Part.KEY, 0, state.computed)
                hashes = np.array(state.hashes, dtype=np.uint64)[piece.positions]
                assert np.array_equal(piece.data, kv_bits(MODEL, hashes, 0, Part.KEY))

    def teardown(self) -> None:
        for seq in self.open:
            self.engine.close(seq)
        if self.engine is not None:
            assert self.engine.kv_held_tokens() == 0
            assert self.engine.kv_free_tokens() == self.engine.info.kv_total_tokens


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
