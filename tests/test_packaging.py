"""What is shipped: the wheel has all that a deployment needs, and the image's recipe is sound."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestrator", "workers", "transport", "benchmarks", "compiled", "configs")


def tracked() -> set[str]:
    """What the repository has, as far as it is there."""
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel lies unpacked; it is built elsewhere, since building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        to = folder / "source" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", folder, folder / "source"], check=True, timeout=110)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as inside:
        inside.extractall(folder / "site")
    return folder / "site"


def test_every_file_is_in_the_wheel(unpacked: Path) -> None:
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    wanted = {name for name in tracked() if name.partition("/")[0] in PACKAGES}
    assert {name for name in wanted - found if not name.endswith(".md")} == set()


def test_what_was_installed_makes_a_topology_and_reads_it(unpacked: Path, tmp_path: Path) -> None:
    """Away from the checkout, with nothing but what the wheel brought."""
    environment = os.environ | {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
    script = (
        "import sys, orchestrator; from orchestrator.cli.main import run; "
        f"assert orchestrator.__file__.startswith({str(unpacked)!r}), orchestrator.__file__; "
        "sys.exit(run(sys.argv[1:]))"
    )

    def pdd(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "wrote topology.yaml" in pdd("init")
    assert "hami" in pdd("validate", "topology.yaml")
    assert '"$schema"' in pdd("schema", "scenario")


def test_the_image_recipe_is_sound() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [linter, "--no-color", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_copies_every_package() -> None:
    recipe = (ROOT / "Dockerfile").read_text()
    allowed = (ROOT / ".dockerignore").read_text()
    for package in PACKAGES:
        assert f"COPY {package} {package}\n" in recipe
        assert f"!{package}\n" in allowed
