"""What a store holds, told in differences: the first bytes of each block's name.

A log of what came and went, in which each name has one place: that of its last change. Who listens
says up to where it knows the log, and is told what follows, so many names at a time; who is new, or
was away for longer than what went is remembered, is told everything that is there. Eight bytes of a
name tell a million blocks apart from a million that are asked for with a chance of error of 5e-8,
and an error costs a wrong guess at a route, no more.
"""

import secrets
import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from workers.tiers.blocks import SPACE_BYTES

SHORT_BYTES = 8
TOLD_AT_ONCE = 1 << 15  # names; half a megabyte in a lease's report
REMEMBERED = 1 << 16  # names that are here no more, at least
_VERSION = struct.Struct("<QQQ")  # life, place in the log, place in it of the first telling
VERSION_BYTES = _VERSION.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`version`: what the listener knows then; `whole`: it must forget what it knew before."""

    version: bytes
    whole: bool
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...] = ()

    def told_on(self) -> dict[str, Any]:
        """As agents report it: JSON, with names and version in hexadecimal."""
        return {
            "version": self.version.hex(),
            "whole": self.whole,
            "added": b"".join(self.added).hex(),
            "removed": b"".join(self.removed).hex(),
        }


# What a store that is away tells: as far as anybody can use it, it is empty.
AWAY = Told(version=b"", whole=True, added=())


class Holdings:
    """The log of one store's life. Every verb costs what it says, not what the store holds.

    A block may be in several places of a store at once, and names that begin alike are one name:
    it is there as long as any of them is.
    """

    def __init__(self) -> None:
        self._life = secrets.randbits(64)  # no two lives share a version
        self._places: dict[bytes, int] = {}  # in how many places each name's blocks are
        self._last: dict[bytes, int] = {}  # each name's place in the log
        self._numbers = array("Q")  # the log: places, ascending, and the names there,
        self._names: list[bytes] = []  # outdated where `_last` says another place
        self._number = 0
        self._forgotten = 0  # the last place whose removal nobody is told of any more

    def came(self, key: bytes) -> None:
        """A block is in one more place of the store."""
        name = _short(key)
        there = self._places.get(name, 0)
        self._places[name] = there + 1
        if not there:
            self._note(name)

    def went(self, key: bytes) -> None:
        """A block is in one place less."""
        name = _short(key)
        there = self._places[name]
        if there > 1:
            self._places[name] = there - 1
        else:
            del self._places[name]
            self._note(name)

    def since(self, version: bytes) -> Told:
        """What to tell who has `version`; empty, or of another life: who knows nothing."""
        life, told, began = _VERSION.unpack(version) if len(version) == VERSION_BYTES else (0, 0, 0)
        # What went before the listener began it never had.
        whole = life != self._life or max(told, began) < self._forgotten
        if whole:
            told, began = 0, self._number
        added: list[bytes] = []
        removed: list[bytes] = []
        for at in range(bisect_right(self._numbers, told), len(self._numbers)):
            if len(added) + len(removed) == TOLD_AT_ONCE:
                break
            told, name = self._numbers[at], self._names[at]
            if self._last.get(name) != told:
                continue
            if name in self._places:
                added.append(name)
            elif told > began:
                removed.append(name)
        return Told(
            version=_VERSION.pack(self._life, told, began),
            whole=whole,
            added=tuple(added),
            removed=tuple(removed),
        )

    def _note(self, name: bytes) -> None:
        self._number += 1
        self._last[name] = self._number
        self._numbers.append(self._number)
        self._names.append(name)
        if len(self._names) > 2 * (len(self._places) + REMEMBERED):
            self._tidy()

    def _tidy(self) -> None:
        """Drop what is outdated, and of what went all but the newest."""
        log = [
            (number, name)
            for number, name in zip(self._numbers, self._names, strict=True)
            if self._last.get(name) == number
        ]
        too_many = len(log) - len(self._places) - REMEMBERED
        kept = []
        for number, name in log:
            if too_many > 0 and name not in self._places:
                too_many -= 1
                self._forgotten = number
                del self._last[name]
            else:
                kept.append((number, name))
        self._numbers = array("Q", (number for number, _ in kept))
        self._names = [name for _, name in kept]


def _short(key: bytes) -> bytes:
    return key[SPACE_BYTES : SPACE_BYTES + SHORT_BYTES]
