"""`pdd bench link` with small transfers of random KV: what it measures arrives, whatever happens.

Most of it needs root, else it is skipped.
"""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.link import accidents, run
from benchmarks.link.kv import HEADS, LAYERS, SIZE, TOKEN_BYTES
from benchmarks.link.line import opened
from orchestrator.cli.main import run as pdd
from tests.transport.lab.lab_support import needs_lab

MIB = 1 << 20


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    """256 tokens in a file."""
    path = tmp_path / "kv.npy"
    bits = np.random.default_rng(0).integers(0, 1 << 16, (LAYERS, 2, 256, HEADS, SIZE), np.uint16)
    np.save(path, bits)
    return path


@needs_lab
def test_cells_of_one_line(kv: Path) -> None:
    with opened(1.0, 0.0) as lab:
        cells = run._ours(lab, kv, (1, 2), ("raw",), 2, lambda line: None)
    assert [(cell["size_mib"], cell["codec"]) for cell in cells] == [(1, "raw"), (2, "raw")]
    for cell in cells:
        assert 0 < cell["wire_gbps"] <= 1.0
        low, high = cell["effective_spread_gbps"]
        assert low <= cell["effective_gbps"] <= high


@needs_lab
def test_every_accident_is_survived(kv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SIZE_MIB": 4, "LARGE_MIB": 8, "CUT_S": 0.3, "HARM_AFTER_S": 0.0, "DAMAGE_EVERY": 10}
    for name, value in small.items():
        monkeypatch.setattr(accidents, name, value)
    told: list[str] = []
    rows = accidents.run(kv, told.append)
    assert [row["what"] for row in rows] == [
        "nothing",
        "the line cut for 0.3 s",
        "one connection of 8 killed",
        "one frame in 10 damaged",
        "nothing",
    ]
    assert len(told) == len(rows)
    for row in rows:
        tokens = row["size_mib"] * MIB // TOKEN_BYTES
        # Raw KV: every byte once, and what was sent again.
        assert row["sent_bytes"] - row["resent_bytes"] == tokens * TOKEN_BYTES
    damaged = [row["damaged_frames"] for row in rows]
    assert damaged[3] > 0
    assert damaged[:3] + damaged[4:] == [0, 0, 0, 0]
    assert rows[0]["resent_bytes"] == 0
    assert rows[3]["resent_bytes"] > 0
    assert rows[1]["seconds"] >= 0.3


def test_a_codec_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert pdd(["bench", "link", "--codec", "int8", "--codec", "int5"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("--codec: codec 'int5': known are lossless, ")
