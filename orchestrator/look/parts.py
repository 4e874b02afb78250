"""The files of this folder, as text for pages that carry all they need with them."""

from importlib.resources import files


def look_part(name: str) -> str:
    """`look.css` or `elements.js`."""
    return files("orchestrator.look").joinpath(name).read_text(encoding="utf-8")
