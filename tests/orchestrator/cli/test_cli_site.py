"""`pdd site` given something it cannot use: one clear line and the exit code."""

from pathlib import Path

import pytest

from orchestrator.cli.main import run
from workers.service.config import SECRET_ENV

SECRET = "a-secret-of-this-test"


@pytest.mark.parametrize(
    ("site", "file", "line"),
    [
        ("hammi", "two-machines.yaml", "unknown site 'hammi'; did you mean 'hami'?"),
        (
            "hami",
            "laptop-simulated.yaml",
            "sites.hami.launch: local, so pdd serve starts it with the gateway; for pdd site it "
            "must be agent",
        ),
        (
            "hami",
            "hami-shenzhen.yaml",
            "gateway.agents: missing; say where agents reach the gateway, such as "
            "{host: 10.0.0.2, port: 7100}",
        ),
    ],
)
def test_mistakes(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    site: str,
    file: str,
    line: str,
) -> None:
    monkeypatch.setenv(SECRET_ENV, SECRET)
    assert run(["site", site, str(root / "configs" / "topologies" / file)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"{line}\n")


def test_it_needs_a_secret(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SECRET_ENV, "")
    file = root / "configs" / "topologies" / "two-machines.yaml"
    assert run(["site", "hami", str(file)]) == 2
    assert capsys.readouterr().err.startswith("PDD_SECRET is not set: ")
