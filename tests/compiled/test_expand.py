"""Records written out are the records that the decorators make."""

import importlib.util
import inspect
import pickle
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import orjson
import pytest

from compiled.expand import expand

SOURCE = '''"""Some records."""

from dataclasses import dataclass, field

from workers.api.record import record


@record
class Point:
    """Frozen, by name."""

    x: int
    label: str = "none"
    y: float  # behind one with a default


@record
class Path:
    points: tuple[Point, ...] = ()
    start: Point = field(default_factory=lambda: Point(x=0, y=0.0))


@record
class Nothing:
    """No field."""


@dataclass(slots=True, eq=False)
class Book:
    """Changes, by place."""

    owner: str
    pages: list[int] = field(default_factory=list)
    size: int = field(init=False)
    read: int = field(default=3, init=False)
    notes: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.size = len(self.pages)


class Open:
    """No record."""
'''


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The module as it is, and written out."""
    made = []
    for name, source in (("records_as_they_are", SOURCE), ("records_out", expand(SOURCE))):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        made.append(name)
    yield sys.modules[made[0]], sys.modules[made[1]]
    for name in made:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Point", "Path", "Nothing", "Book"])
def test_it_takes_what_the_decorator_would(both: tuple[ModuleType, ModuleType], name: str) -> None:
    """Types apart: what has a default that is made anew may be left out by None."""
    theirs, ours = (inspect.signature(getattr(module, name)) for module in both)
    assert list(ours.parameters) == list(theirs.parameters)
    for ours_one, theirs_one in zip(
        ours.parameters.values(), theirs.parameters.values(), strict=True
    ):
        assert ours_one.kind == theirs_one.kind
        assert (ours_one.default is ours_one.empty) == (theirs_one.default is theirs_one.empty)


def test_fields_and_types_are_the_same(both: tuple[ModuleType, ModuleType]) -> None:
    kept, out = both
    assert [f.name for f in fields(out.Point)] == [f.name for f in fields(kept.Point)]
    assert get_type_hints(out.Path)["points"] == tuple[out.Point, ...]
    assert get_type_hints(out.Book) == get_type_hints(kept.Book)


def test_what_changes_is_no_dataclass_any_more(both: tuple[ModuleType, ModuleType]) -> None:
    """Its numbers are made when they are asked for, which orjson would not survive."""
    kept, out = both
    assert (
        orjson.dumps(kept.Book("me")) == b'{"owner":"me","pages":[],"size":0,"read":3,"notes":{}}'
    )
    with pytest.raises(TypeError, match="not JSON serializable"):
        orjson.dumps(out.Book("me"))
    assert repr(out.Book("me")) == repr(kept.Book("me"))
    again = pickle.loads(pickle.dumps(out.Book("me", [4])))  # noqa: S301
    assert (again.owner, again.pages, again.size) == ("me", [4], 1)


def test_numbers_and_pairs_of_what_travels_are_kept_as_they_came() -> None:
    source = SOURCE.replace("    label:", "    ends: tuple[int, int] = (0, 0)\n    label:")
    text = expand(source)
    assert '    x: Any\n    ends: Any = (0, 0)\n    label: str = "none"\n    y: Any\n' in text
    assert "points: tuple[Point, ...] = ()" in text
    assert "    size: int = field(init=False)" in text


def test_what_changes_has_its_defaults_anew(both: tuple[ModuleType, ModuleType]) -> None:
    for module in both:
        book = module.Book("me", [4, 5])
        other = module.Book("you")
        other.notes["x"] = 1
        assert (book.size, book.read, book.notes, other.pages) == (2, 3, {}, [])
        assert book != module.Book("me", [4, 5])
        book.size = 9
        assert book.size == 9


def test_only_what_is_named_may_be_derived_from() -> None:
    text = expand(SOURCE, frozenset({"Open"}))
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\nclass Open:" in text
    assert text.count("mypyc_attr(") == 1


def test_a_field_that_is_not_understood_is_refused() -> None:
    source = SOURCE.replace("field(init=False)", "field(init=False, hash=True)")
    with pytest.raises(ValueError, match=r"size: field\(hash=\.\.\.\)"):
        expand(source)
