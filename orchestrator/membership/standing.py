"""What operators want of a site, as its agent and every gateway know it.

Whoever is asked gives it the next version and tells the agent; the agent carries out what is later
than what it has, and its reports tell the others. So the agent decides between two who were asked
at once, and a gateway or an agent that begins anew learns from the other side.
"""

from dataclasses import dataclass
from typing import Any

from workers.api.wire import shown

MOST_VERSION = 2**53  # the next one is still an integer to every reader of JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`drained`: the site is to have no workers. `replace`: workers of which each is to end in
    peace, once, and another process to take its place.
    """

    version: int = 0
    drained: bool = False
    replace: frozenset[str] = frozenset()

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "version": self.version,
            "drained": self.drained,
            "replace": sorted(self.replace),
        }


def read_standing(body: Any) -> Standing:
    """From JSON values. Raises ValueError, whose text names the field."""
    if not isinstance(body, dict):
        raise ValueError("standing: not an object")
    version, drained, replace = (body.get(key) for key in ("version", "drained", "replace"))
    if type(version) is not int or not 0 <= version < MOST_VERSION:
        raise ValueError(f"standing.version: {shown(version)} is no version")
    if type(drained) is not bool:
        raise ValueError(f"standing.drained: {shown(drained)} is neither true nor false")
    if not isinstance(replace, list) or not all(type(name) is str for name in replace):
        raise ValueError("standing.replace: not a list of names")
    return Standing(version=version, drained=drained, replace=frozenset(replace))
