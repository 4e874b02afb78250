"""What a store holds, told in differences, always adds up to what it holds."""

import random
import time
from pathlib import Path

import pytest

from tests.workers.tiers.blocks_rig import block, key, served, store, written
from tests.workers.tiers.test_server import Site, soon
from workers.tiers import holdings as module
from workers.tiers.files import BlockFiles
from workers.tiers.holdings import Holdings, Told
from workers.tiers.store import BlockStore


def long_key(number: int) -> bytes:
    """A key whose name's first bytes are its own."""
    return bytes(16) + number.to_bytes(8, "big") + bytes(8)


def short(*numbers: int) -> set[bytes]:
    return {long_key(number)[16:24] for number in numbers}


class Listener:
    """Who asks now and then, and takes in what it is told."""

    def __init__(self) -> None:
        self.version = b""
        self.known: set[bytes] = set()
        self.wholes = 0

    def ask(self, holdings: Holdings | BlockStore) -> Told:
        told = (holdings.holdings if isinstance(holdings, BlockStore) else holdings.since)(
            self.version
        )
        assert not told.whole or not told.removed
        self.wholes += told.whole
        self.known = set(told.added) | (set() if told.whole else self.known - set(told.removed))
        self.version = told.version
        return told

    def ask_all(self, holdings: Holdings | BlockStore) -> set[bytes]:
        """Until nothing is new."""
        while True:
            before = self.version
            self.ask(holdings)
            if before == self.version:
                return self.known


@pytest.mark.parametrize(("at_once", "remembered"), [(1000, 1000), (7, 40), (3, 4)])
def test_listeners_who_ask_now_and_then_know_what_there_is(
    monkeypatch: pytest.MonkeyPatch, at_once: int, remembered: int
) -> None:
    """However little is told at a time, and however soon it is forgotten what went."""
    monkeypatch.setattr(module, "TOLD_AT_ONCE", at_once)
    monkeypatch.setattr(module, "REMEMBERED", remembered)
    rng, holdings = random.Random(2), Holdings()
    places: dict[int, int] = {}
    listeners = [Listener() for _ in range(4)]
    for _ in range(1500):
        for _ in range(rng.randrange(4)):
            number = rng.randrange(60)
            if places.get(number) and rng.random() < 0.5:
                holdings.went(long_key(number))
                places[number] -= 1
            elif places.get(number, 0) < 3:  # in memory, on its way to its file, and in its file
                holdings.came(long_key(number))
                places[number] = places.get(number, 0) + 1
        held = short(*(number for number, count in places.items() if count))
        who = listeners[rng.randrange(4)]
        who.ask(holdings)
        if rng.random() < 0.3:
            assert who.ask_all(holdings) == held
    for who in listeners:
        assert who.ask_all(holdings) == held
    assert len(holdings._names) <= 2 * (60 + remembered) + 1
    if remembered == 1000:
        assert [who.wholes for who in listeners] == [1] * 4


def test_who_was_away_for_long_is_told_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 8)
    holdings, away = Holdings(), Listener()
    holdings.came(long_key(0))
    away.ask(holdings)
    for number in range(100):
        holdings.came(long_key(number + 1))
        holdings.went(long_key(number))
    told = away.ask(holdings)
    assert told.whole
    assert away.known == short(100)


def test_who_is_told_little_by_little_is_not_told_what_it_never_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TOLD_AT_ONCE", 2)
    holdings, new = Holdings(), Listener()
    for number in range(8):
        holdings.came(long_key(number))
    for number in (2, 3):
        holdings.went(long_key(number))
    pages = [new.ask(holdings) for _ in range(3)]
    assert [(page.whole, len(page.added), page.removed) for page in pages] == [
        (True, 2, ()),
        (False, 2, ()),
        (False, 2, ()),
    ]
    assert new.ask_all(holdings) == short(0, 1, 4, 5, 6, 7)
    holdings.went(long_key(0))
    assert new.ask(holdings).removed == tuple(short(0))


@pytest.mark.parametrize("version", [b"", b"?", bytes(24), b"\xff" * 24])
def test_a_version_of_another_life_is_none(version: bytes) -> None:
    holdings = Holdings()
    holdings.came(long_key(1))
    told = holdings.since(version)
    assert (told.whole, told.added) == (True, tuple(short(1)))
    assert Holdings().since(told.version).whole


def test_nothing_new_is_told_shortly() -> None:
    holdings = Holdings()
    holdings.came(long_key(1))
    told = holdings.since(b"")
    assert holdings.since(told.version) == Told(version=told.version, whole=False, added=())


def test_a_report_costs_what_it_tells_not_what_the_store_holds() -> None:
    """Measured as the ratio of two reports of one news each, of a small and of a large store."""

    def seconds(held: int) -> float:
        holdings, listener = Holdings(), Listener()
        for number in range(held):
            holdings.came(long_key(number))
        listener.ask_all(holdings)
        best = float("inf")
        for number in range(held, held + 20):
            holdings.came(long_key(number))
            began = time.perf_counter()
            told = holdings.since(listener.version)
            best = min(best, time.perf_counter() - began)
            listener.version = told.version
            assert told.added == tuple(short(number))
        return best

    assert seconds(100_000) < 20 * seconds(1000)  # a hundred times as many


def test_a_stores_holdings_are_what_it_finds(tmp_path: Path) -> None:
    """Through both tiers, evictions, lost files and a restart."""
    rng, listener = random.Random(3), Listener()
    tiers = store(tmp_path)
    for step in range(200):
        number = rng.randrange(40)
        tiers.put("t", [block(number)])
        if step % 7 == 0:
            path = BlockFiles(tmp_path).path(key(rng.randrange(40)), "t")
            written(tiers)
            path.unlink(missing_ok=True)
        served(tiers, range(rng.randrange(40), 40))
        if step == 120:
            tiers.close()
            tiers = store(tmp_path)
        if step % 5 == 0:
            written(tiers)
            keys = [key(n) for n in range(40)]
            there = {k[16:24] for k, tier in zip(keys, tiers.find(keys), strict=True) if tier}
            assert listener.ask_all(tiers) == there
    assert listener.wholes == 2


def test_a_store_tells_over_its_socket() -> None:
    site = Site(store(memory_bytes=20_000))
    client = site.client()
    client.put("t", [(long_key(n), block(n)[1]) for n in range(1, 4)], soon())
    nothing = client.holdings(b"", soon())
    assert nothing.added == ()  # their checksums are of other keys
    site.tiers.put("t", [block(1)])
    told = client.holdings(nothing.version, soon())
    assert (told.whole, told.added, told.removed) == (False, (key(1)[16:24],), ())
    site.close()
