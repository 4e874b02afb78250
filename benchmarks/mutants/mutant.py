"""A mutant: a rule broken by replacing text in one module, while Python imports it."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from compiled.finder import VARIABLE, is_compiled

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule, broken. `part`: of PROTOCOL or of the product, as the lists are divided.

    `edits`: text that occurs once in the module, and what stands there instead. `exempt`: why the
    seeds of `pdd bench faults` cannot notice it; None: they must.
    """

    part: str
    name: str
    module: str
    edits: tuple[tuple[str, str], ...]
    exempt: str | None = None


def broken(
    part: str, name: str, module: str, *edits: tuple[str, str], exempt: str | None = None
) -> Mutant:
    """A mutant, as the lists of them are written."""
    return Mutant(part, name, module, edits, exempt)


def source_path(module: str) -> Path:
    """Where a module of ours lies."""
    return ROOT / (module.replace(".", "/") + ".py")


def mutate(mutant: Mutant) -> str:
    """The module's source with the mutant in it. LookupError: the list is out of date."""
    source = source_path(mutant.module).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if source.count(old) != 1:
            raise LookupError(f"{mutant.name}: {old!r} occurs {source.count(old)} times")
        source = source.replace(old, new)
    return source


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Loads one module with the mutant's source; never from or into a cache."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(source_path(mutant.module)))
        self._source = mutate(mutant)

    def get_code(self, fullname: str) -> object:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class MutantFinder(importlib.abc.MetaPathFinder):
    """Finds the mutant's module before anyone else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(name, MutantLoader(self._mutant))


def install(mutant: Mutant) -> None:
    """Break the rule in this process. RuntimeError when its module was imported already."""
    if mutant.module in sys.modules or is_compiled():
        raise RuntimeError(f"{mutant.module} is imported already")
    os.environ[VARIABLE] = "1"  # what was compiled with the rule would not hear that it is broken
    sys.meta_path.insert(0, MutantFinder(mutant))
