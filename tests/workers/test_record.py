"""Records: named fields, set once."""

from dataclasses import FrozenInstanceError, field, replace

import pytest

from workers.api.record import record


@record
class Note:
    """A field of each kind."""

    name: str
    size: int = 3
    marks: list[int] = field(default_factory=list)


@record
class Empty:
    """No field at all."""


def test_fields_are_what_was_given_or_their_defaults() -> None:
    a, b = Note(name="a"), Note(name="b", size=4, marks=[1])
    assert (a.name, a.size, a.marks) == ("a", 3, [])
    assert (b.name, b.size, b.marks) == ("b", 4, [1])
    assert a.marks is not Note(name="a").marks
    assert a == Note(name="a") != replace(a, size=4)
    assert Empty() == Empty()


def test_nothing_is_set_again() -> None:
    note = Note(name="a")
    with pytest.raises(FrozenInstanceError):
        note.size = 5  # type: ignore[misc]
    assert note.size == 3


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "colour": "red"}])
def test_a_field_that_is_missing_or_unknown_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(TypeError):
        Note(**arguments)  # type: ignore[arg-type]


def test_fields_have_names() -> None:
    with pytest.raises(TypeError):
        Note("a")  # type: ignore[misc]
