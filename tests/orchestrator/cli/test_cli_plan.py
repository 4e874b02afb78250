"""`pdd plan`: from a scenario's file to roles, reasons and a page."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run
from tests.orchestrator.cli.json_of import json_of

pytestmark = pytest.mark.timeout(300)
SMALL = """\
topology:
  model: llama-3.1-8b
  sites:
    near:
      launch: agent
      pools:
        h100: {chip: h100, count: 2, roles: [prefill, relay]}
    far:
      launch: agent
      pools:
        h20: {chip: h20, count: 2, roles: [main]}
  links:
    - {between: [near, far], distance_km: 4000, bandwidth: 10Gbps}
  gateway: {site: far}
workload:
  generated: {rate: 2/s, prompt: {mean: 1000}, output: {mean: 100}, count: 60}
policies:
  - {name: auto}
prices: {chips: {h100: 2/h, h20: 1/h}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def roles(found: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {
        post["pool"]: (post["prefill"], post["relay"], post["main"]) for post in found["assignment"]
    }


def test_what_is_asked_for_at_the_least_cost(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    found = json_of(capsys, "plan", file)
    assert roles(found) == {"near/h100": (0, 0, 0), "far/h20": (1, 0, 1)}
    assert found["rate_per_s"] > found["demand_per_s"] == pytest.approx(2, rel=0.1)
    assert found["cost_per_h"] == 2.0
    assert "explanation" not in found


def test_roles_that_are_kept_and_why(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    found = json_of(capsys, "plan", file, "--most", "--keep-roles", "--explain")
    (near, far) = roles(found).values()
    assert near[0] > 0 == near[2]
    assert (far[0], far[1]) == (0, 0) < (far[2], 1)
    assert found["demand_per_s"] is None
    assert found["explanation"]["rejected"]
    assert set(found["explanation"]["sites"]) == {"near", "far"}
    (line,) = (shown for shown in found["lines"] if shown["from"] == "near")
    assert 0 < line["used"] < 1


def test_in_words_and_as_a_page(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", str(file), "--html", str(page)]) == 0
    told = capsys.readouterr().out
    for word in ("far/h20", "idle chips", "100% local", "is full first", "were tried"):
        assert word in told
    assert "why others lost" not in told
    assert page.read_text().startswith("<!doctype html>")
    assert run(["plan", str(file), "--explain"]) == 0
    assert "why others lost" in capsys.readouterr().out


def test_a_plan_is_replayed_beside_its_prediction(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    found = json_of(capsys, "replay", file, "--plan")
    assert [policy["policy"] for policy in found["policies"]] == ["auto", "plan"]
    assert found["policies"][1]["goodput_per_s"] == pytest.approx(
        found["plan"]["served_per_s"], rel=0.1
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rate", "0"], "--rate: must be above 0, got 0"),
        (["--rate", "2", "--most"], "--rate and --most: give one of them"),
        (["--jobs", "2"], "--jobs: it is for --sweep; give both"),
        (["--html", "/none/x.html"], "--html: /none/x.html cannot be written"),
        (["--sweep", "link.width=1"], "--sweep link.width=1: unknown parameter 'link.width'"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], file: Path, arguments: list[str], line: str
) -> None:
    assert run(["plan", str(file), *arguments]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert line in told.err


def test_a_model_that_fits_no_pool(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(SMALL.replace("llama-3.1-8b", "deepseek-v3"))
    assert run(["plan", str(file)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "a worker of near.h100 is too small" in first
    assert "a worker of far.h20 is too small" in second
