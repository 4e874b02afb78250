"""The token table: vToken's four invariants over random lives, and what each verb does."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.kv.tokens import DEAD, TokenTable


def table_of(tokens: int, dead: list[int], block_size: int = 4) -> TokenTable:
    table = TokenTable(block_size, tokens)
    table.kill(np.array(dead, dtype=np.int64))
    return table


def test_identity_until_something_dies() -> None:
    table = TokenTable(4, 6)
    table.grow(9)
    assert table.places.tolist() == list(range(9))
    assert (table.live, table.rows, table.in_place) == (9, 3, 9)
    assert table.reach(3) == 12
    assert table.rows_for(13) == 4


def test_waste_is_the_share_of_places_without_a_living_token() -> None:
    table = table_of(8, [1, 2, 5])
    assert table.waste == 3 / 8
    assert table.living().tolist() == [0, 3, 4, 6, 7]
    assert table.living(3, 7).tolist() == [3, 4, 6]


def test_a_token_dies_once() -> None:
    table = table_of(8, [1])
    for again in ([1], [2, 2]):
        with pytest.raises(ValueError, match="once"):
            table.kill(np.array(again))


def test_rows_come_back_in_place_only_when_wholly_dead() -> None:
    table = table_of(12, [0, 1, 2, 4, 5, 6, 7])
    assert table.dead_rows() == [1]
    table.drop([1])
    assert table.rows == 2
    assert table.places[[3, 8, 11]].tolist() == [3, 4, 7]
    with pytest.raises(ValueError, match="living"):
        table.drop([0])


def test_a_plan_lowers_the_count_of_rows_or_is_none() -> None:
    everything = [True] * 3
    assert table_of(12, [0, 1, 2]).plan(everything) is None  # nine tokens need three rows
    repack = table_of(12, [0, 1, 2, 5]).plan(everything)
    assert repack is not None
    assert len(repack.rows) == 2
    assert (repack.sources.tolist(), repack.targets.tolist()) == ([3], [5])


def test_a_plan_holds_for_one_snapshot_only() -> None:
    table = table_of(12, [0, 1, 2, 5])
    repack = table.plan([True] * 3)
    assert repack is not None
    table.grow(13)
    with pytest.raises(ValueError, match="snapshot"):
        table.apply(repack)


def test_rows_that_others_read_are_emptied_and_never_filled() -> None:
    table = table_of(16, [0, 1, 5, 6, 9, 10, 11])
    repack = table.plan([False, False, True, True])
    assert repack is not None
    assert set(repack.targets // 4) <= {2, 4}
    assert repack.rows == (3, 2, 4)
    assert repack.fresh == 1


def test_a_prefix_that_is_whole_stays_where_it_is() -> None:
    table = table_of(16, [8, 9, 12, 13])
    repack = table.plan([True] * 4)
    assert repack is not None
    table.apply(repack)
    assert table.places[:8].tolist() == list(range(8))
    assert table.in_place == 8


def test_truncated_to_what_is_whole_it_grows_in_place_again() -> None:
    table = table_of(12, [6, 7])
    table.truncate(6)
    table.grow(8)
    assert table.places.tolist() == list(range(8))
    assert table.in_place == 8


class Lives(RuleBasedStateMachine):
    """A sequence whose tokens' bytes lie in blocks of a memory, as an engine keeps them.

    Some rows are shared: another reader holds what was there, and must find it unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 4
        self.memory: dict[int, list[int | None]] = {}
        self.blocks: list[int] = []
        self.table = TokenTable(self.size)
        self.bytes: dict[int, int] = {}  # living token -> what was written for it
        self.readers: dict[int, list[int | None]] = {}  # shared block -> what its reader saw
        self.written = 0

    def fresh_block(self) -> int:
        block = len(self.memory)
        self.memory[block] = [None] * self.size
        return block

    def slot(self, place: int) -> tuple[int, int]:
        return self.blocks[place // self.size], place % self.size

    def read(self, token: int) -> int | None:
        block, offset = self.slot(int(self.table.places[token]))
        return self.memory[block][offset]

    @rule(count=st.integers(1, 9))
    def grow(self, count: int) -> None:
        begun = len(self.table)
        self.table.grow(begun + count)
        while len(self.blocks) < self.table.rows:
            self.blocks.append(self.fresh_block())
        for token in range(begun, begun + count):
            self.written += 1
            block, offset = self.slot(int(self.table.places[token]))
            assert block not in self.readers
            self.memory[block][offset] = self.bytes[token] = self.written

    @precondition(lambda self: self.bytes)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        dying = data.draw(st.sets(st.sampled_from(sorted(self.bytes))))
        self.table.kill(np.array(sorted(dying), dtype=np.int64))
        for token in dying:
            del self.bytes[token]

    @precondition(lambda self: len(self.table))
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.table)))
        self.table.truncate(length)
        self.bytes = {token: b for token, b in self.bytes.items() if token < length}
        del self.blocks[self.table.rows :]
        if self.blocks and self.blocks[-1] in self.readers:  # its owner replaces such a one
            whole = self.memory[self.blocks[-1]]
            self.blocks[-1] = self.fresh_block()
            self.memory[self.blocks[-1]] = list(whole)

    @precondition(lambda self: len(self.blocks) > 1)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.blocks[:-1]))
        self.readers.setdefault(block, list(self.memory[block]))

    @rule()
    def reclaim_in_place(self) -> None:
        dead = self.table.dead_rows()
        self.table.drop(dead)
        for row in reversed(dead):
            del self.blocks[row]

    @rule()
    def repack(self) -> None:
        repack = self.table.plan([block not in self.readers for block in self.blocks])
        if repack is None:
            return
        before = self.table.rows
        blocks = [*self.blocks, *(self.fresh_block() for _ in range(repack.fresh))]
        alive = set(self.table.places[self.table.places != DEAD].tolist())
        assert alive.isdisjoint(repack.targets.tolist())
        moves = list(zip(repack.sources.tolist(), repack.targets.tolist(), strict=True))
        for source, target in moves:
            came, goes = blocks[source // self.size], blocks[target // self.size]
            assert goes not in self.readers
            self.memory[goes][target % self.size] = self.memory[came][source % self.size]
            # Half way through the copies whoever reads by the old table finds every token.
            assert all(self.read(token) == self.bytes[token] for token in self.bytes)
        self.table.apply(repack)
        self.blocks = [blocks[row] for row in repack.rows]
        assert self.table.rows < before
        assert len(self.blocks) == self.table.rows

    @invariant()
    def every_living_token_and_its_bytes_survive(self) -> None:
        assert self.table.living().tolist() == sorted(self.bytes)
        assert self.table.live == len(self.bytes)
        assert all(self.read(token) == self.bytes[token] for token in self.bytes)

    @invariant()
    def the_map_is_one_to_one(self) -> None:
        alive = self.table.places[self.table.places != DEAD]
        assert len(np.unique(alive)) == len(alive)
        assert not len(alive) or alive.max() < self.table.rows * self.size

    @invariant()
    def other_readers_find_what_they_saw(self) -> None:
        for block, seen in self.readers.items():
            assert self.memory[block] == seen

    @invariant()
    def tokens_in_place_are_where_their_numbers_say(self) -> None:
        first = self.table.in_place
        assert self.table.places[:first].tolist() == list(range(first))


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
