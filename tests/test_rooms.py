"""Imports run downwards only, and the core stays pure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Bottom to top. Rooms in one row are on one floor and do not know each other. A module belongs to
# the longest name that begins its own.
FLOORS = [
    ["compiled"],
    ["transport.base"],
    ["transport.stream"],
    ["transport.codecs"],
    ["transport.tls", "transport.memory"],
    ["transport.certificates", "transport.tcp", "transport.emulator", "transport.lab"],
    ["workers.api"],
    ["workers.costs"],
    ["workers.kv"],
    ["workers.tiers"],
    ["workers.engines"],
    ["workers"],
    ["orchestrator.errors", "orchestrator.children"],
    ["orchestrator.catalogue"],
    ["orchestrator.state"],
    ["orchestrator.policy"],
    ["orchestrator.lifecycle"],
    ["orchestrator.membership"],
    ["orchestrator.topology"],
    ["orchestrator.metrics", "orchestrator.doctor", "orchestrator.plan", "orchestrator.look"],
    ["orchestrator.replan"],
    ["orchestrator.live", "orchestrator.virtual"],
    ["orchestrator.replay"],
    ["benchmarks"],
    ["orchestrator.cli"],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
PURE = (
    "transport.stream",
    "orchestrator.state",
    "orchestrator.policy",
    "orchestrator.lifecycle",
    "orchestrator.membership",
    "orchestrator.plan",
    "orchestrator.replan",
)
IMPURE = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "datetime",
    "fastapi",
    "httpx",
    "multiprocessing",
    "os",
    "pydantic",
    "random",
    "ray",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "torch",
    "transformers",
    "uuid",
}
TOPS = {room.split(".")[0] for room in FLOOR}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for top in sorted(TOPS) for path in sorted((ROOT / top).rglob("*.py"))
}


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """The full names that a module imports; `from a import b` is a.b when that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: -node.level]
                base = ".".join([*above, *filter(None, [base])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in SOURCES else base


IMPORTS = {
    module: set(imports(ast.parse(path.read_text(encoding="utf-8")), module))
    for module, path in SOURCES.items()
}


def room_of(module: str) -> str | None:
    known = [room for room in FLOOR if module == room or module.startswith(room + ".")]
    return max(known, key=len, default=None)


def test_the_sources_are_found() -> None:
    assert {"transport.base", "workers.api.messages", "orchestrator.state"} <= SOURCES.keys()
    assert "workers.api.messages" in IMPORTS["orchestrator.topology.schema"]


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_every_module_is_in_a_room(module: str) -> None:
    assert module in ("orchestrator", "transport") or room_of(module) is not None


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_run_downwards(module: str) -> None:
    here = room_of(module)
    if here is None:
        return
    for name in IMPORTS[module]:
        there = room_of(name)
        if there is not None and there != here:
            assert FLOOR[there] < FLOOR[here], f"{module} imports {name} from above"


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_no_folder_imports_its_parent(module: str) -> None:
    parts = module.split(".")
    parents = {".".join(parts[:n]) for n in range(1, len(parts))}
    assert not parents & IMPORTS[module]


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if m.startswith(PURE)))
def test_the_core_is_pure(module: str) -> None:
    """Not through any of our own modules either."""
    seen, new = {module}, [module]
    while new:
        here = new.pop()
        for name in IMPORTS[here]:
            assert name.split(".")[0] not in IMPURE, f"{module} reaches {name} through {here}"
            if name in SOURCES and name not in seen:
                seen.add(name)
                new.append(name)
