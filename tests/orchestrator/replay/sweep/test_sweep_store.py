"""The file of results: what is in it is kept, what is torn is not, what is another's is refused."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from orchestrator.errors import UserError
from orchestrator.replay.sweep.store import Head, Store

HEAD = Head(kind="replay", name="two", content="c0", code="v1")
FIGURES = {"goodput_per_s": 1.5, "cost": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """With two results."""
    path = tmp_path / "deeper" / "results.jsonl"
    with Store(path, HEAD) as store:
        store.add("k1", FIGURES, {"policy": "relay"})
        store.add("k2", {"cost": 2.0}, {"policy": "direct"})
    return path


def known(path: Path) -> dict[str, dict[str, float | None]]:
    with Store(path, HEAD) as store:
        return store.figures


def test_what_is_written_is_read(path: Path) -> None:
    assert known(path) == {"k1": FIGURES, "k2": {"cost": 2.0}}
    head, first, _ = map(orjson.loads, path.read_bytes().splitlines())
    assert head == {"kind": "replay", "name": "two", "content": "c0", "code": "v1", "format": 1}
    assert first == {"cell": "k1", "policy": "relay", "figures": FIGURES}


def test_a_torn_last_line_is_cut_off_wherever_it_is_torn(path: Path) -> None:
    whole = path.read_bytes()
    begin = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for length in range(begin, len(whole)):
        path.write_bytes(whole[:length])
        with Store(path, HEAD) as store:
            assert list(store.figures) == ["k1"]
            store.add("k2", {"cost": 2.0}, {"policy": "direct"})
        assert path.read_bytes() == whole


@pytest.mark.parametrize("length", [0, 1, 30])
def test_a_torn_first_line_is_begun_anew(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    assert known(path) == {}
    assert known(path) == {}
    assert path.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (
            replace(HEAD, content="c1"),
            "results of replay two as it was before it was changed",
        ),
        (replace(HEAD, content="c1", name="six"), "has the results of replay two; give another"),
        (replace(HEAD, kind="plan"), "has the results of replay two; give another file"),
        (replace(HEAD, code="v2"), "has the results of another version of pdd; give another file"),
    ],
)
def test_results_of_something_else_are_refused(path: Path, head: Head, line: str) -> None:
    before = path.read_bytes()
    with pytest.raises(UserError, match=line) as caught:
        Store(path, head)
    assert str(caught.value).startswith(f"{path}: ")
    assert path.read_bytes() == before
    assert len(known(path)) == 2  # the refusal has let go of it


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"cell": "k3"}', b'{"figures": {}}'])
def test_a_bad_line_is_named(path: Path, line: bytes) -> None:
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=r"jsonl:4: not a sweep's result; remove that line"):
        Store(path, HEAD)


@pytest.mark.parametrize("text", ["notes\n", '{"at": 0}\n', "[1]\n"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="not a"):
        Store(path, HEAD)
    assert path.read_text() == text


def test_a_file_without_an_end_of_line_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(UserError, match="not a file of results of a sweep"):
        Store(path, HEAD)
    assert path.read_text() == "my notes"


def test_two_at_once_are_refused(path: Path) -> None:
    with Store(path, HEAD), pytest.raises(UserError, match="another sweep is writing to it"):
        Store(path, HEAD)
    assert len(known(path)) == 2


@pytest.mark.parametrize("name", ["", "file/below"])
def test_a_place_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        Store(tmp_path / name, HEAD)
