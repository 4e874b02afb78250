"""What a store holds, told in differences: the first bytes of each block's name.

Who listens says which version it has; it is told what has come and gone since, or, when that is
too long ago, everything. Eight bytes of a name tell a million blocks apart from a million that are
asked for with a chance of error of 5e-8, and an error costs a wrong guess at a route, no more.
"""

import secrets
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from workers.tiers.blocks import SPACE_BYTES

SHORT_BYTES = 8
REMEMBERED = 64  # versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`whole`: `added` is everything there is, and `removed` nothing."""

    version: int
    whole: bool
    added: frozenset[bytes]
    removed: frozenset[bytes] = frozenset()


class Holdings:
    """The versions of one store's life. Its first is drawn, so that no two lives share one."""

    def __init__(self) -> None:
        self._now: frozenset[bytes] = frozenset()
        self._version = secrets.randbits(48) << 12
        self._changes: deque[tuple[int, frozenset[bytes], frozenset[bytes]]] = deque(
            maxlen=REMEMBERED
        )  # the version before, what came, what went

    def since(self, version: int, keys: Collection[bytes]) -> Told:
        """What to tell who has `version`, now that the store holds `keys`."""
        now = frozenset(key[SPACE_BYTES : SPACE_BYTES + SHORT_BYTES] for key in keys)
        if now != self._now:
            self._changes.append((self._version, now - self._now, self._now - now))
            self._now = now
            self._version += 1
        if version == self._version:
            return Told(version=version, whole=False, added=frozenset())
        if all(before != version for before, _, _ in self._changes):
            return Told(version=self._version, whole=True, added=now)
        added: set[bytes] = set()
        removed: set[bytes] = set()
        for before, came, went in self._changes:
            if before >= version:
                added, removed = (added - went) | came, (removed - came) | went
        return Told(
            version=self._version,
            whole=False,
            added=frozenset(added),
            removed=frozenset(removed),
        )
