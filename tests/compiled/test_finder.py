"""What was compiled of other sources is never used."""

import json
import shutil
from pathlib import Path

import pytest

from compiled.finder import LIBRARY, MANIFEST, VARIABLE, changed, digest
from tests.compiled.child import child

ASK = "import orchestrator, workers; from compiled.finder import is_compiled; print(is_compiled())"


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A copy of the core's sources, with a build of them that holds no module."""
    for folder in ("compiled", "orchestrator", "workers"):
        shutil.copytree(
            root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    sources = ("orchestrator/state/law.py", "workers/api/messages.py")
    digests = {name: digest((tmp_path / name).read_bytes()) for name in sources}
    manifest = {"modules": ["orchestrator.state.law"], "sources": digests}
    built = tmp_path / "build" / "core"
    built.mkdir(parents=True)
    (built / LIBRARY).touch()
    (built / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return tmp_path


def ask(checkout: Path, **environment: str) -> tuple[str, str]:
    """Whether a new process would use the build, and what it says about it."""
    used, said = child(ASK, checkout, **environment)
    return used.strip(), said


def test_a_build_of_these_sources_is_used(checkout: Path) -> None:
    assert ask(checkout) == ("True", "")


def test_a_changed_source_is_told_and_all_is_interpreted(checkout: Path) -> None:
    with (checkout / "orchestrator/state/law.py").open("a", encoding="utf-8") as law:
        law.write("\n")
    used, said = ask(checkout)
    assert used == "False"
    assert said.count("\n") == 1
    assert "orchestrator/state/law.py has changed since `make compiled`" in said
    assert changed(checkout, checkout / "build" / "core") == "orchestrator/state/law.py"


def test_a_source_that_has_gone_counts_as_changed(checkout: Path) -> None:
    (checkout / "workers/api/messages.py").unlink()
    assert ask(checkout)[0] == "False"


def test_the_environment_can_refuse_it(checkout: Path) -> None:
    assert ask(checkout, **{VARIABLE: "1"}) == ("False", "")


def test_without_a_build_there_is_nothing_to_say(checkout: Path) -> None:
    """Or with one of another Python, whose library has another name."""
    (checkout / "build" / "core" / LIBRARY).unlink()
    assert ask(checkout) == ("False", "")
