"""What a reader must know of a replay besides its figures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Something that was done to the deployment, in seconds from the start. None: to the end."""

    text: str
    at_s: float
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was replayed. `facts`: names and texts in order, such as ("seed", "1")."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    faults: tuple[Window, ...] = ()
