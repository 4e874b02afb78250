"""The book of cached prefixes."""

import random
from collections import OrderedDict
from itertools import takewhile

from orchestrator.policy.prefixes import BLOCK, BlockNames, PrefixBook, block_hashes, short_names

IDS = tuple(range(100, 100 + 4 * BLOCK))


def test_only_complete_blocks_are_named() -> None:
    assert block_hashes(IDS[: BLOCK - 1], "") == ()
    assert len(block_hashes(IDS[:BLOCK], "")) == 1
    assert len(block_hashes(IDS[: 3 * BLOCK + 5], "")) == 3


def test_a_block_is_named_with_all_that_came_before_it() -> None:
    whole = block_hashes(IDS, "")
    assert block_hashes(IDS[: 2 * BLOCK], "") == whole[:2]
    other = block_hashes((1, *IDS[1:]), "")
    assert not set(other) & set(whole)


def test_a_chain_goes_on_from_what_is_known() -> None:
    whole = block_hashes(IDS, "tenant a")
    for blocks in range(len(whole) + 1):
        assert block_hashes(IDS, "tenant a", whole[:blocks]) == whole


def test_another_salt_shares_nothing() -> None:
    assert not set(block_hashes(IDS, "tenant a")) & set(block_hashes(IDS, "tenant b"))


def test_hashes_are_the_same_in_every_process() -> None:
    """Never Python's own hash: it is salted per process."""
    (first,) = block_hashes(tuple(range(BLOCK)), "salt")
    assert first.hex() == "724e2ddc0f6cbd8b51cd46cb674e835f"


def test_a_hit_is_the_leading_part_that_a_worker_has() -> None:
    book = PrefixBook()
    mine = block_hashes(IDS, "")
    book.note("a", mine[:2])
    book.note("b", (mine[0], mine[2]))
    book.note("c", mine[1:])
    assert book.hits(mine, ["a", "b", "c", "never seen"]) == {"a": 2 * BLOCK, "b": BLOCK}


def test_only_the_workers_asked_for_are_looked_at() -> None:
    book = PrefixBook()
    hashes = block_hashes(IDS, "")
    book.note("a", hashes)
    book.note("b", hashes)
    assert book.hits(hashes, ["b"]) == {"b": len(IDS)}


def short(*names: bytes) -> list[bytes]:
    return short_names(b"".join(name[:8] for name in names).hex())


def test_a_store_is_read_by_every_pool_of_its_site_that_has_one() -> None:
    book, mine = PrefixBook(), block_hashes(IDS, "")
    for worker, site, pool in (("a", "s", "x"), ("b", "s", "y"), ("c", "s", "z"), ("d", "t", "x")):
        book.belongs(worker, site, pool)
    book.store_holds("s", "x", True, short(*mine[:2]), ())
    book.store_holds("s", "y", True, short(mine[2]), ())
    asked = ["a", "b", "c", "d", "e"]
    assert book.hits(mine, asked) == {"a": 3 * BLOCK, "b": 3 * BLOCK}
    book.note("c", mine[:1])
    book.note("a", mine)
    hits = book.hits(mine, asked)
    assert hits == {"a": 4 * BLOCK, "b": 3 * BLOCK, "c": BLOCK}
    assert book.loads(mine, hits) == {"b": 3 * BLOCK}
    book.note("b", mine[:1])
    assert book.loads(mine, hits) == {"b": 2 * BLOCK}
    assert book.hits(block_hashes(IDS, "salt"), asked) == {}


def test_a_store_tells_what_came_and_went() -> None:
    book, mine = PrefixBook(), block_hashes(IDS, "")
    book.belongs("a", "s", "x")
    book.store_holds("s", "x", True, short(*mine[:1]), ())
    book.store_holds("s", "x", False, short(*mine[1:3]), ())
    assert book.hits(mine, ["a"]) == {"a": 3 * BLOCK}
    book.store_holds("s", "x", False, (), short(mine[1]))
    assert book.hits(mine, ["a"]) == {"a": BLOCK}
    book.forget("a")  # restarted: what its site holds it can load again
    book.belongs("a", "s", "x")
    assert book.hits(mine, ["a"]) == {"a": BLOCK}
    book.store_holds("s", "x", True, (), ())  # it is away
    assert book.hits(mine, ["a"]) == {}


def test_a_restarted_worker_has_nothing() -> None:
    book = PrefixBook()
    hashes = block_hashes(IDS, "")
    book.note("a", hashes)
    book.forget("a")
    book.forget("a")
    assert book.hits(hashes, ["a"]) == {}


def test_the_book_is_bounded_and_keeps_what_was_seen_last() -> None:
    names = BlockNames()
    names.blocks_per_worker = 4
    book = PrefixBook(names)
    old, new = block_hashes(IDS, "old"), block_hashes(IDS, "new")
    book.note("a", old)
    book.note("a", new[:2])
    assert book.hits(old, ["a"]) == {}  # its first blocks went
    assert book.hits(new, ["a"]) == {"a": 2 * BLOCK}
    book.note("a", new[:1])
    book.note("a", old[:3])
    assert book.hits(new, ["a"]) == {"a": BLOCK}


def test_the_book_forgets_like_a_plain_list_in_order_of_the_last_note() -> None:
    """Chains that share their heads, noted again and again, against the simplest book there is."""
    draw = random.Random(1)
    for limit in (1, 3, 7, 40):
        names = BlockNames()
        names.blocks_per_worker = limit
        book, known = PrefixBook(names), OrderedDict[object, None]()
        for _ in range(300):
            tail, length = draw.randrange(4), draw.randrange(1, 8)
            chain = tuple((tail if i > 2 else 0, i) for i in range(length))
            book.note("a", chain)
            for name in chain:
                known[name] = None
                known.move_to_end(name)
            while len(known) > limit:
                known.popitem(last=False)
            asked = tuple((draw.randrange(4) if i > 2 else 0, i) for i in range(8))
            depth = len(list(takewhile(known.__contains__, asked)))
            assert book.hits(asked, ["a"]) == ({"a": depth * BLOCK} if depth else {})
