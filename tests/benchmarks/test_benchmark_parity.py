"""A live run with a loss in it, recorded and fed to a fresh machine: identical actions."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.parity import KINDS, asks, record
from orchestrator.cli.main import run
from orchestrator.live.journal import read_journal
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, ClientGone, HandoffMode, Route, WorkerLost, WorkerUp

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of one live run, in which no request failed."""
    journal = tmp_path_factory.mktemp("parity") / "journal"
    assert record(journal, tell=print) == []
    return journal


def fed(journal: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `pdd bench parity` says of a journal; its exit code must agree."""
    code = run(["bench", "parity", str(journal), "-o", "json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if told["identical"] else 1)
    return told


def test_a_live_run_is_identical(live: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = fed(live, capsys)
    assert told.pop("events") == len(live.read_bytes().splitlines()) - 1
    assert told.pop("actions") > 1000
    # One kind of client asks for two choices; another may leave before its request was read.
    asked, each = len(asks("m")), len(asks("m")) // len(KINDS)
    assert asked <= told.pop("requests") <= asked + each
    assert told == {"identical": True, "first_difference": None, "failed_requests": 0}


def test_what_the_run_went_through(live: Path) -> None:
    entries = list(read_journal(live)[1])
    events = [entry.event for entry in entries]
    done = [a.summary for entry in entries for a in entry.actions if isinstance(a, Finish)]
    assert sum(isinstance(event, WorkerLost) for event in events) == 1
    assert sum(isinstance(event, WorkerUp) for event in events) == 4
    assert sum(isinstance(event, ClientGone) for event in events) >= 6
    assert any(isinstance(event, Arrived) and event.stop_strings for event in events)
    assert {summary.route for summary in done} == set(Route)
    assert {summary.handoff for summary in done} == {None, *HandoffMode}
    assert any(summary.handoff_index and summary.relay_tokens for summary in done)
    assert any(summary.recoveries for summary in done)


def test_one_changed_action_is_found_out(
    live: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = live.read_bytes().splitlines(keepends=True)
    at = next(n for n in range(len(lines) // 2, len(lines)) if b'"kind":"emit"' in lines[n])
    entry = orjson.loads(lines[at])
    emit = next(action for action in entry["actions"] if action["kind"] == "emit")
    emit["ids"][0] += 1
    lines[at] = orjson.dumps(entry) + b"\n"
    told = fed(written(tmp_path, lines), capsys)
    assert told["first_difference"]["number"] == at
    assert told["first_difference"]["recorded"] == entry["actions"]
    assert told["first_difference"]["answered"] != entry["actions"]


def test_one_dropped_event_is_found_out(
    live: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = live.read_bytes().splitlines(keepends=True)
    # One that was placed at once: a request whose client leaves while it waits has no actions.
    placed = b'"kind":"arrived"', b'"kind":"start"'
    half = len(lines) // 2
    at = next(n for n in range(half, len(lines)) if all(mark in lines[n] for mark in placed))
    told = fed(written(tmp_path, lines[:at] + lines[at + 1 :]), capsys)
    assert told["first_difference"]["number"] >= at


def written(folder: Path, lines: list[bytes]) -> Path:
    journal = folder / "tampered"
    journal.write_bytes(b"".join(lines))
    return journal
