"""What a store holds, told in differences, always adds up to what it holds."""

import random

from tests.workers.tiers.blocks_rig import block, key, store
from tests.workers.tiers.test_server import Site, soon
from workers.tiers.holdings import REMEMBERED, Holdings, Told


def short(numbers: object) -> frozenset[bytes]:
    return frozenset(key(number)[16:24] for number in numbers)  # type: ignore[attr-defined]


def taken_in(known: frozenset[bytes], told: Told) -> frozenset[bytes]:
    return told.added if told.whole else (known - told.removed) | told.added


def long_key(number: int) -> bytes:
    """A key whose name's first bytes are its own."""
    return bytes(16) + number.to_bytes(8, "big") + bytes(8)


def test_listeners_who_ask_now_and_then_know_what_there_is() -> None:
    rng, holdings, held = random.Random(2), Holdings(), set()
    listeners = [(0, frozenset[bytes]()) for _ in range(4)]
    wholes = 0
    for _ in range(600):
        for _ in range(rng.randrange(4)):
            number = rng.randrange(30)
            (held.discard if number in held else held.add)(number)
        keys = [long_key(number) for number in held]
        who = rng.randrange(4) if rng.random() < 0.9 else 0
        version, known = listeners[who]
        told = holdings.since(version, keys)
        known = taken_in(known, told)
        assert known == frozenset(k[16:24] for k in keys)
        listeners[who] = told.version, known
        wholes += told.whole
    assert wholes <= 8


def test_who_was_away_for_long_is_told_everything() -> None:
    holdings = Holdings()
    first = holdings.since(0, [long_key(0)])
    assert first.whole
    for number in range(REMEMBERED + 2):
        last = holdings.since(first.version, [long_key(number + 1)])
    assert last.whole
    assert last.added == {long_key(REMEMBERED + 2)[16:24]}


def test_another_life_is_another_version() -> None:
    told = Holdings().since(0, [long_key(1)])
    again = Holdings().since(told.version, [long_key(1)])
    assert again.whole


def test_nothing_new_is_told_shortly() -> None:
    holdings = Holdings()
    told = holdings.since(0, [long_key(1)])
    assert holdings.since(told.version, [long_key(1)]) == Told(
        version=told.version, whole=False, added=frozenset()
    )


def test_a_store_tells_over_its_socket() -> None:
    site = Site(store(memory_bytes=20_000))
    client = site.client()
    client.put("t", [(long_key(n), block(n)[1]) for n in range(1, 4)], soon())
    nothing = client.holdings(0, soon())
    assert nothing.added == frozenset()  # their checksums are of other keys
    site.tiers.put("t", [block(1)])
    told = client.holdings(nothing.version, soon())
    assert (told.whole, told.added, told.removed) == (False, {key(1)[16:24]}, frozenset())
    site.close()
