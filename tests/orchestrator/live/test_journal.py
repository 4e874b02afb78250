"""The journal: what is written is read again; a full disk ends it; what is broken is named."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
import pytest

from orchestrator.errors import UserError
from orchestrator.lifecycle.parity import Entry, feed
from orchestrator.live.journal import FLUSH_S, Header, Journal, JournalError, read_journal
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived
from orchestrator.virtual.faults.cases import play
from orchestrator.virtual.gateway import IdWatch
from tests.orchestrator.virtual.faults.troubled import config_of, everything, recorded

WORLD = play(everything())
CONFIG = config_of(WORLD, WORLD.gateways[0])
HEADER = Header(model="smollm2-135m", config=CONFIG)
ENTRIES = recorded(WORLD.gateways[0])


@dataclass
class Later:
    """What an event loop was asked to call later."""

    calls: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def __call__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.calls.append((delay_s, callback))


def write(path: Path, entries: list[Entry]) -> None:
    journal = Journal(path, Later())
    journal.begin(HEADER)
    for entry in entries:
        journal.record(entry.at, entry.event, entry.actions)
    journal.close()


def read(path: Path) -> list[Entry]:
    header, entries = read_journal(path)
    assert header == HEADER
    return list(entries)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


# ------------------------------------------------------------ there and back


def test_what_is_written_is_read(path: Path) -> None:
    write(path, ENTRIES)
    assert len(ENTRIES) > 100
    assert read(path) == ENTRIES
    assert path.stat().st_mode & 0o077 == 0, "it holds what clients asked"


def test_what_came_before_the_header_follows_it(path: Path) -> None:
    journal = Journal(path, Later())
    journal.record(ENTRIES[0].at, ENTRIES[0].event, ENTRIES[0].actions)
    journal.begin(HEADER)
    journal.record(ENTRIES[1].at, ENTRIES[1].event, ENTRIES[1].actions)
    journal.close()
    assert read(path) == ENTRIES[:2]


def test_it_is_flushed_within_a_second(path: Path) -> None:
    later = Later()
    journal = Journal(path, later)
    journal.begin(HEADER)
    journal.record(ENTRIES[0].at, ENTRIES[0].event, ENTRIES[0].actions)
    assert [delay for delay, _ in later.calls] == [FLUSH_S] == [1.0]
    assert path.read_bytes() == b""
    later.calls.pop()[1]()
    assert read(path) == ENTRIES[:1]
    journal.record(ENTRIES[1].at, ENTRIES[1].event, ENTRIES[1].actions)
    later.calls.pop()[1]()
    assert read(path) == ENTRIES[:2]
    journal.record(ENTRIES[2].at, ENTRIES[2].event, ENTRIES[2].actions)
    journal.close()
    later.calls.pop()[1]()  # comes too late and must not matter
    assert read(path) == ENTRIES[:3]


# ------------------------------------------------------------ what cannot be written


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "journal"
    with pytest.raises(UserError) as refused:
        Journal(path, Later())
    assert str(refused.value) == f"{path}: cannot record there: No such file or directory"


def test_a_full_disk_ends_the_journal_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    journal = Journal(Path("/dev/full"), later)
    journal.begin(HEADER)
    with caplog.at_level(logging.ERROR):
        later.calls.pop()[1]()
        for entry in ENTRIES:
            journal.record(entry.at, entry.event, entry.actions)
        journal.close()
    assert [(r.message, r.__dict__["reason"]) for r in caplog.records] == [
        ("the journal ends here", "No space left on device")
    ]
    assert later.calls == []


def test_a_disk_that_is_full_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(Path("/dev/full"), Later())
    journal.begin(HEADER)
    journal.close()
    assert [r.message for r in caplog.records] == ["the journal ends here"]


def test_an_event_without_a_form_ends_the_journal(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(path, Later())
    journal.begin(HEADER)
    journal.record(1.0, Arrived(request="\ud800", prompt_ids=(1,), limit=1), ())
    journal.record(ENTRIES[0].at, ENTRIES[0].event, ENTRIES[0].actions)
    journal.close()
    assert "Arrived" in caplog.records[0].__dict__["reason"]
    assert read(path) == []


# ------------------------------------------------------------ what cannot be read


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    write(path, ENTRIES[:5])
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in (1, last // 2, last - 1):
        path.write_bytes(whole[:-cut])
        assert read(path) == ENTRIES[:4]


@pytest.mark.parametrize(
    ("number", "line", "words"),
    [
        (1, b'{"journal":1,"model":"m","config":{}}', "line 1: journal: format 2 can be read"),
        (1, b'{"journal":2,"model":3,"config":{}}', "line 1: model: must be a string"),
        (1, b'{"journal":2,"model":"m","config":{"kind":"config"}}', "gateway, gateway_site miss"),
        (1, b"[]", "line 1: must be an object of config, journal, model"),
        (3, b"no json", "line 3: not JSON"),
        (3, b"\xff", "line 3: not JSON"),
        (3, b'{"at":1.0,"event":{}}', "line 3: must be an object of actions, at, event"),
        (3, b'{"at":"1","event":{},"actions":[]}', "line 3: at: must be a number of seconds"),
        (3, b'{"at":1.0,"event":{"kind":"up"},"actions":[]}', "missing"),
        (3, b'{"at":1.0,"event":{"kind":"war"},"actions":[]}', "line 3: kind: unknown"),
        (3, b'{"at":1.0,"event":{"kind":"tick"},"actions":{}}', "line 3: actions: must be a list"),
        (3, b'{"at":1.0,"event":{"kind":"tick"},"actions":[1]}', "line 3: an action must be"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    path: Path, number: int, line: bytes, words: str
) -> None:
    write(path, ENTRIES[:4])
    lines = path.read_bytes().splitlines()
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(JournalError) as refused:
        list(read_journal(path)[1])
    assert str(refused.value).startswith(f"{path}: line {number}: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_journal(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="no header"):
        read_journal(path)


def test_a_journal_that_is_not_there(path: Path) -> None:
    with pytest.raises(JournalError, match="No such file or directory"):
        read_journal(path)


# ------------------------------------------------------------ feeding it again


def fed(entries: list[Entry], config: CoreConfig = CONFIG) -> int | None:
    """The number of the first entry that a fresh machine answers otherwise."""
    found = feed(config, IdWatch, entries)
    assert found.events == len(entries)
    return None if found.first_difference is None else found.first_difference.number


def test_a_journal_fed_again_is_identical(path: Path) -> None:
    write(path, ENTRIES)
    header, entries = read_journal(path)
    found = feed(header.config, IdWatch, entries)
    assert found.first_difference is None
    assert found.events == len(ENTRIES)
    assert found.actions == sum(len(entry.actions) for entry in ENTRIES)
    assert found.requests == sum(isinstance(entry.event, Arrived) for entry in ENTRIES) > 0


def answered() -> list[int]:
    return [number for number, entry in enumerate(ENTRIES) if entry.actions]


def test_one_changed_action_is_found() -> None:
    for at in itertools.islice(answered(), 0, None, 40):
        last = ENTRIES[at].actions[-1]
        name = "worker" if hasattr(last, "worker") else "request"
        changed = replace(
            ENTRIES[at], actions=(*ENTRIES[at].actions[:-1], replace(last, **{name: "x"}))
        )
        assert fed([*ENTRIES[:at], changed, *ENTRIES[at + 1 :]]) == at + 1


def test_one_dropped_action_is_found() -> None:
    at = answered()[5]
    less = replace(ENTRIES[at], actions=ENTRIES[at].actions[:-1])
    found = feed(CONFIG, IdWatch, [*ENTRIES[:at], less])
    assert found.first_difference is not None
    assert found.first_difference.answered == ENTRIES[at].actions
    assert found.first_difference.entry == less


def test_one_dropped_event_is_found() -> None:
    arrivals = [n for n, entry in enumerate(ENTRIES) if isinstance(entry.event, Arrived)]
    for at in arrivals[:5]:
        number = fed([*ENTRIES[:at], *ENTRIES[at + 1 :]])
        assert number is not None
        assert number > at


def test_another_time_is_found() -> None:
    at = answered()[len(answered()) // 2]
    assert fed([*ENTRIES[:at], replace(ENTRIES[at], at=ENTRIES[at].at + 1e6)]) == at + 1


def test_another_configuration_is_found() -> None:
    assert fed(ENTRIES, replace(CONFIG, gateway="another")) is not None


def test_a_defect_of_the_fresh_machine_is_told() -> None:
    def no_watch(stops: tuple[str, ...]) -> IdWatch:
        raise RuntimeError("no stop strings today")

    event = Arrived(request="r", prompt_ids=(1,), limit=1, stop_strings=("x",))
    end = Entry(at=0.0, event=event, actions=ENTRIES[answered()[0]].actions)
    found = feed(CONFIG, no_watch, [end]).first_difference
    assert found is not None
    assert found.defect == "RuntimeError: no stop strings today"


def test_lines_are_json(path: Path) -> None:
    write(path, ENTRIES[:3])
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[0].keys() == {"journal", "model", "config"}
    assert all(line.keys() == {"at", "event", "actions"} for line in lines[1:])
