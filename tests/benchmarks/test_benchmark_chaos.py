"""`pdd bench chaos`: the short form, and what it counts as broken."""

import json

import pytest

from benchmarks.reliability.asking import CUT_OFF, HANGS, WHOLE, WRONG, expected
from benchmarks.reliability.chaos import FAULTS, PHASES, Cell
from orchestrator.cli.main import run
from workers.engines.simulated.model import SimulatedModel

SHORT = ["--fault", "relay killed", "--fault", "line cut for 1 s", "--phase", "relay"]


@pytest.mark.timeout(400)
def test_a_relay_dies_and_the_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "chaos", *SHORT, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["broken"] == []
    cells = {cell["fault"]: cell for cell in told["cells"]}
    assert set(cells) == {"relay killed", "line cut for 1 s"}
    for cell in cells.values():
        assert cell["outcomes"] == {WHOLE: 2}
        assert cell["left"] == 0
    assert cells["line cut for 1 s"]["longest_gap_s"] > 0.5, "the cut was felt"


@pytest.mark.parametrize(
    ("outcomes", "left", "healed_s", "broken"),
    [
        ({WHOLE: 2}, 0, 1.0, False),
        ({WHOLE: 1, "unavailable": 1}, 0, 1.0, False),
        ({WHOLE: 2}, 16, 1.0, True),
        ({WHOLE: 2}, 0, None, True),
        ({WHOLE: 1, HANGS: 1}, 0, 1.0, True),
        ({WRONG: 2}, 0, 1.0, True),
        ({CUT_OFF: 1}, 0, 1.0, True),
    ],
)
def test_what_is_broken(
    outcomes: dict[str, int], left: int, healed_s: float | None, broken: bool
) -> None:
    cell = Cell(
        fault="relay killed",
        phase="relay",
        outcomes=outcomes,
        added_s=None,
        longest_gap_s=1.0,
        free_s=1.0,
        healed_s=healed_s,
        left=left,
    )
    assert cell.broken is broken


def test_the_right_answer_depends_on_every_token_before() -> None:
    model = SimulatedModel()
    right = expected(model, [1000, 1001, 1002], 8)
    assert len(right) == 8
    assert expected(model, [1000, 1001, 1002, *right[:3]], 5) == right[3:]
    assert expected(model, [1000, 1001, 1003], 8) != right


@pytest.mark.parametrize(
    ("option", "known"), [("--fault", next(iter(FAULTS))), ("--phase", PHASES[0])]
)
def test_what_does_not_exist_is_named(
    option: str, known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "chaos", option, "rain"]) == 2
    assert known in capsys.readouterr().err
