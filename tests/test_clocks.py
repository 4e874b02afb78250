"""Durations are of one clock: wall clocks are read where they are shown, and none travels."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from workers.api.messages import DownMessage, UpMessage

ROOT = Path(__file__).parent.parent
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow"}
# Who may read a wall clock, and what for.
READERS = {
    "orchestrator/cli/doctor.py": "looks how far the gateway's clock is from this one",
    "orchestrator/cli/init.py": "the validity of certificates",
    "orchestrator/cli/status.py": "shown beside each change",
    "orchestrator/live/agent.py": "an agent's epoch: an order of agents, and no moment",
    "orchestrator/live/openai/app.py": "shown to clients as `created`",
    "orchestrator/live/openai/template.py": "today's date in a chat template",
    "orchestrator/live/telemetry.py": "places a trace, whose spans are of one clock",
    "transport/tls.py": "the validity of certificates",
    "workers/tiers/files.py": "the age of files of this machine",
}


def wall_clocks(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL:
            yield ast.unparse(node)


def test_who_reads_a_wall_clock() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ("orchestrator", "workers", "transport")
        for path in sorted((ROOT / room).rglob("*.py"))
        if any(wall_clocks(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == READERS.keys()


@pytest.mark.parametrize("message", [*get_args(UpMessage), *get_args(DownMessage)])
def test_no_message_carries_a_moment(message: type) -> None:
    moments = ("at", "now", "time", "timestamp", "deadline", "until")
    for field in dataclasses.fields(message):
        word = field.name.split("_")[-1]
        assert "float" not in str(field.type) or word not in moments, field.name
