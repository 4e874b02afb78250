"""The files that ship with the project, by name."""

from importlib.resources import as_file, files
from pathlib import Path

DEFAULT_FILE = Path("topology.yaml")  # what `pdd init` writes and `pdd serve` reads


def packaged_topology(name: str) -> Path:
    """The path of a shipped topology. Raises FileNotFoundError for a name there is not."""
    return _packaged("topologies", name)


def packaged_scenario(name: str) -> Path:
    """The path of a shipped scenario. Raises FileNotFoundError for a name there is not."""
    return _packaged("scenarios", name)


def _packaged(folder: str, name: str) -> Path:
    with as_file(files("configs") / folder / f"{name}.yaml") as path:
        if not path.is_file():
            raise FileNotFoundError(f"no {name}.yaml among the {folder} that ship with the project")
        return path
