"""The topologies that ship with the project."""

from importlib.resources import as_file, files
from pathlib import Path


def packaged_topology(name: str) -> Path:
    """The path of a shipped topology. Raises FileNotFoundError for a name there is not."""
    with as_file(files("configs") / "topologies" / f"{name}.yaml") as path:
        if not path.is_file():
            raise FileNotFoundError(f"no topology {name!r} ships with the project")
        return path
