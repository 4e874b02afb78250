"""What a command says to programs."""

import json
from typing import Any

import pytest

from orchestrator.cli.main import run


def json_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON of a command that goes well."""
    assert run([*map(str, arguments), "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
