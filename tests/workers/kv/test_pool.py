"""The pool's accounting: places of blocks, reservations, the prefix cache, truncation."""

import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from workers.kv.pool import BlockCopy, BlockPool, BlockTable, PoolFull
from workers.kv.prefix import block_names, extend_chain, root_key


def names(tokens: list[int], unit_tokens: int) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_key("model", ""), tokens, len(tokens))
    step = unit_tokens // 16
    return chain[step - 1 :: step]


def filled(pool: BlockPool, tokens: list[int]) -> None:
    """Leave the whole units of `tokens` in the pool as cache."""
    count = -(-len(tokens) // pool.block_size)
    table = pool.open(count, [])
    pool.extend(table, count)
    for unit, name in enumerate(names(tokens, pool.unit_tokens)):
        pool.remember(table, unit, name)
    pool.close(table)


def test_reservation_is_kept_whatever_others_take() -> None:
    pool = BlockPool(10, 16)
    first = pool.open(6, [])
    with pytest.raises(PoolFull) as caught:
        pool.open(5, [])
    assert (caught.value.wanted, caught.value.available) == (5, 4)
    second = pool.open(4, [])
    assert pool.available == 0
    pool.extend(second, 4)
    pool.extend(first, 6)
    assert pool.held == 10
    with pytest.raises(ValueError, match="promised"):
        pool.extend(first, 7)
    with pytest.raises(PoolFull):
        pool.grow(first, 7)
    pool.close(second)
    pool.grow(first, 7)
    pool.close(first)
    assert (pool.held, pool.available) == (0, 10)


def test_cache_is_found_by_content_and_evicted_from_its_end() -> None:
    pool = BlockPool(8, 16)
    tokens = list(range(64))
    filled(pool, tokens)
    assert (pool.held, pool.cached, pool.available) == (0, 4, 8)
    assert len(pool.find(names(tokens, 16))) == 4
    assert len(pool.find(names([*tokens[:32], 99, *tokens[33:]], 16))) == 2
    table = pool.open(6, [])
    pool.extend(table, 6)  # two of the four cached blocks must go: the last ones
    assert len(pool.find(names(tokens, 16))) == 2


def test_found_blocks_are_pinned_by_the_table_that_takes_them() -> None:
    pool = BlockPool(4, 16)
    tokens = list(range(48))
    filled(pool, tokens)
    found = pool.find(names(tokens, 16))
    table = pool.open(4, found)
    assert (pool.held, pool.available) == (3, 0)
    pool.extend(table, 4)
    assert table.blocks[:3] == found
    with pytest.raises(PoolFull):
        pool.open(1, [])


def test_finding_blocks_does_not_make_room_for_them() -> None:
    """Two cached blocks, one promised away: reviving both would break the promise."""
    pool = BlockPool(2, 16)
    tokens = list(range(32))
    filled(pool, tokens)
    pool.open(1, [])
    with pytest.raises(PoolFull):
        pool.open(2, pool.find(names(tokens, 16)))


@pytest.mark.parametrize(("block_size", "unit"), [(8, 16), (16, 16), (24, 48), (32, 32), (48, 48)])
def test_other_block_sizes_cache_whole_units(block_size: int, unit: int) -> None:
    pool = BlockPool(40, block_size)
    assert pool.unit_tokens == unit
    tokens = list(range(200))
    filled(pool, tokens)
    found = pool.find(names(tokens, unit))
    assert len(found) * block_size == 200 // unit * unit
    assert len(set(found)) == len(found)


def test_evicting_half_a_unit_forgets_all_of_it() -> None:
    pool = BlockPool(4, 8)  # a unit is two blocks
    tokens = list(range(32))
    filled(pool, tokens)
    assert pool.cached == 4
    table = pool.open(1, [])
    pool.extend(table, 1)
    assert len(pool.find(names(tokens, 16))) == 2
    assert (pool.held, pool.cached, pool.available) == (1, 2, 3)


def test_truncating_into_a_shared_block_replaces_it() -> None:
    pool = BlockPool(6, 16)
    first = pool.open(3, [])
    pool.extend(first, 2)
    second = pool.open(3, [])
    pool.adopt(second, first.blocks[:2])
    shared = first.blocks[1]
    copy = pool.truncate(first, 20)
    assert copy == BlockCopy(shared, first.blocks[1])
    assert second.blocks[1] == shared != first.blocks[1]
    assert first.blocks[0] == second.blocks[0]


def two_named_blocks() -> tuple[BlockPool, list[int], BlockTable]:
    """A pool of four, the tokens of a table's two blocks, and the table."""
    pool = BlockPool(4, 16)
    tokens = list(range(32))
    table = pool.open(2, [])
    pool.extend(table, 2)
    for unit, name in enumerate(names(tokens, 16)):
        pool.remember(table, unit, name)
    return pool, tokens, table


def test_truncating_into_a_named_block_takes_its_name() -> None:
    pool, tokens, table = two_named_blocks()
    assert pool.truncate(table, 20) is None
    assert pool.find(names(tokens, 16)) == table.blocks[:1]
    assert table.capacity == 2


def test_truncating_on_a_block_boundary_keeps_what_was_cut_as_cache() -> None:
    pool, tokens, table = two_named_blocks()
    assert pool.truncate(table, 16) is None
    assert len(pool.find(names(tokens, 16))) == 2
    assert pool.cached == 1


def test_truncation_that_would_break_a_promise_changes_nothing() -> None:
    pool = BlockPool(3, 16)
    first = pool.open(2, [])
    pool.extend(first, 2)
    second = pool.open(2, list(first.blocks))
    pool.open(1, [])
    before = list(second.blocks)
    with pytest.raises(PoolFull):
        pool.truncate(second, 20)
    assert (second.blocks, second.promised, pool.available) == (before, 0, 0)


def test_names_depend_on_model_salt_and_all_earlier_tokens() -> None:
    ids = list(range(16))
    roots = {root_key("a", ""), root_key("b", ""), root_key("a", "salt"), root_key("as", "alt")}
    assert len(roots) == 4
    names = {block_names(*of, ids) for of in (("a", ""), ("b", ""), ("a", "salt"), ("as", "alt"))}
    assert len(names) == 4
    assert block_names("a", "", [*ids[:15], 16]) not in names
    assert block_names("a", "", ids * 2)[1] not in {first for (first,) in names}


def test_names_are_the_same_in_another_process() -> None:
    code = "from workers.kv.prefix import *; print(block_names('m', 's', range(16))[0].hex())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert done.stdout.strip() == block_names("m", "s", range(16))[0].hex()


class Accounting(RuleBasedStateMachine):
    """Any order of verbs, against a model that only knows each table's block count."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, 8)
        self.open_tables: list[tuple[object, list[int]]] = []

    @rule(target=tables, capacity=st.integers(0, 8), stem=st.integers(0, 2), data=st.data())
    def open(self, capacity: int, stem: int, data: st.DataObject) -> object:
        tokens = [stem] * 64
        found = self.pool.find(names(tokens, 16)[: data.draw(st.integers(0, 4))])
        capacity = max(capacity, len(found))
        before = self.pool.available
        try:
            table = self.pool.open(capacity, found)
        except PoolFull:
            assert self.pool.available == before
            return multiple()
        self.open_tables.append((table, tokens))
        return table

    @rule(table=tables, count=st.integers(0, 8))
    def extend(self, table, count: int) -> None:
        self.pool.extend(table, min(count, table.capacity))  # never fails within the promise

    @rule(table=tables, capacity=st.integers(0, 12))
    def grow(self, table, capacity: int) -> None:
        before = (table.promised, self.pool.available)
        try:
            self.pool.grow(table, capacity)
        except PoolFull:
            assert (table.promised, self.pool.available) == before

    @rule(table=tables)
    def remember(self, table) -> None:
        tokens = next(tokens for known, tokens in self.open_tables if known is table)
        for unit, name in enumerate(names(tokens, 16)[: len(table.blocks) // 2]):
            self.pool.remember(table, unit, name)

    @rule(table=tables, tokens=st.integers(0, 64))
    def truncate(self, table, tokens: int) -> None:
        tokens = min(tokens, len(table.blocks) * 8)
        before = (list(table.blocks), table.promised, self.pool.available)
        try:
            self.pool.truncate(table, tokens)
        except PoolFull:
            assert (table.blocks, table.promised, self.pool.available) == before
            return
        assert len(table.blocks) == -(-tokens // 8)
        if tokens % 8:  # writable: nobody else's, and no longer found by name
            last = table.blocks[-1]
            assert self.pool._references[last] == 1
            assert self.pool._names[last] is None

    @rule(giver=tables, taker=tables)
    def share(self, giver, taker) -> None:
        begun = len(taker.blocks)
        more = giver.blocks[begun : begun + taker.promised]
        if giver is not taker and not set(more) & set(taker.blocks):
            self.pool.adopt(taker, more)

    @rule(table=consumes(tables))
    def close(self, table) -> None:
        self.open_tables = [pair for pair in self.open_tables if pair[0] is not table]
        self.pool.close(table)

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        pool = self.pool
        counts = [0] * pool.blocks
        for table, _ in self.open_tables:
            for block in table.blocks:
                counts[block] += 1
        assert counts == pool._references
        held = {block for block, count in enumerate(counts) if count}
        places = [*pool._free, *pool._cached, *held]
        assert sorted(places) == list(range(pool.blocks))
        assert pool.held == len(held)

    @invariant()
    def promises_can_be_kept(self) -> None:
        assert self.pool._promised == sum(table.promised for table, _ in self.open_tables)
        assert self.pool.available >= 0

    @invariant()
    def cached_blocks_have_names_and_names_have_blocks(self) -> None:
        pool = self.pool
        assert all(pool._names[block] is None for block in pool._free)
        assert all(pool._names[block] is not None for block in pool._cached)
        for name, blocks in pool._units.items():
            assert [pool._names[block] for block in blocks] == [name] * len(blocks)
        named = sum(name is not None for name in pool._names)
        assert named == sum(len(blocks) for blocks in pool._units.values())

    def teardown(self) -> None:
        for table, _ in self.open_tables:
            self.pool.close(table)
        assert self.pool.held == 0
        assert self.pool.available == self.pool.blocks


Accounting.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAccounting = Accounting.TestCase
