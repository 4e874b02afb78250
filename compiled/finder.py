"""Finds compiled modules in place of their sources, as long as they are of these very sources.

`python -m compiled.build` leaves them in `build/core`, with the digest of every source of ours that
they were made of. Each process compares those before it imports the core: if one has changed, the
core is interpreted, and one line says so. Nothing is built: nothing is looked for.
"""

import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build" / "core"
MANIFEST = "sources.json"
GROUP = "pdd_core__mypyc"  # the library that holds them all
LIBRARY = GROUP + EXTENSION_SUFFIXES[0]  # the suffix is that of this Python on this machine
VARIABLE = "PDD_INTERPRETED"  # in the environment: the core is interpreted, built or not


def digest(source: bytes) -> str:
    return sha256(source).hexdigest()


def manifest(built: Path) -> dict[str, Any]:
    """The `modules` of a build, and the digest of each of the `sources` that they were made of."""
    found: dict[str, Any] = json.loads((built / MANIFEST).read_bytes())
    return found


def changed(root: Path, built: Path) -> str | None:
    """A source that is not what it was when `built` was made of it; None: all are."""
    sources: dict[str, str] = manifest(built)["sources"]
    for name, made_of in sources.items():
        path = root / name
        if not path.is_file() or digest(path.read_bytes()) != made_of:
            return name
    return None


class CompiledFinder(MetaPathFinder):
    """Finds the modules that were compiled, and the library that holds them."""

    def __init__(self, built: Path) -> None:
        self._built = built
        self._names = {*manifest(built)["modules"], GROUP}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        file = str(self._built / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]))
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


@cache
def install() -> None:
    """Use what was compiled, if it may be used. Every package of ours asks before its modules."""
    there = (BUILT / LIBRARY).is_file() and (BUILT / MANIFEST).is_file()
    if not there or VARIABLE in os.environ:
        return
    name = changed(ROOT, BUILT)
    if name is None:
        sys.meta_path.insert(0, CompiledFinder(BUILT))
    else:
        print(
            f"pdd: {name} has changed since `make compiled`: the core is interpreted "
            "(`make compiled` builds it anew, `make interpreted` removes what was built)",
            file=sys.stderr,
        )


def is_compiled() -> bool:
    """Whether this process uses what was compiled."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
