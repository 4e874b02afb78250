"""What has changed between two accounts of a running service: one line for each thing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

AWAY = {"state": "away"}

# Of a worker, what is worth a line when it is another; its load is so all the time.
WATCHED = ("state", "roles", "pid")

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different of a gateway, a site or a worker: the facts that differ, or all of one
    that is new; None: it was not there before, or is no longer.
    """

    name: str
    before: Facts | None
    after: Facts | None

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.name}: gone"
        if self.before is None:
            return f"{self.name}: {', '.join(_new(self.after))}"
        differ = (
            f"{what} {self.before.get(what, 'none')} > {self.after.get(what, 'none')}"
            for what in {**self.before, **self.after}
        )
        return f"{self.name}: {', '.join(differ)}"


def _new(facts: Facts) -> Iterator[str]:
    for what, value in facts.items():
        yield value if what == "state" else f"{what} {value}"


class Watch:
    """Compares each account with the one before."""

    def __init__(self) -> None:
        self._known: dict[str, Facts] = {}

    def see(self, told: Mapping[str, Any] | None) -> list[Change]:
        """What `/status` says now; None: no answer, so of all but the gateway nobody knows."""
        now = {**self._known, "gateway": AWAY} if told is None else dict(_facts(told))
        found = [
            Change(name=name, **_differing(self._known.get(name), now.get(name)))
            for name in {**self._known, **now}
            if self._known.get(name) != now.get(name)
        ]
        self._known = now
        return found


def _differing(before: Facts | None, after: Facts | None) -> dict[str, Facts | None]:
    if before is None or after is None:
        return {"before": before, "after": after}
    differ = [what for what in {**before, **after} if before.get(what) != after.get(what)]
    return {
        "before": {what: before[what] for what in differ if what in before},
        "after": {what: after[what] for what in differ if what in after},
    }


def _facts(told: Mapping[str, Any]) -> Iterator[tuple[str, Facts]]:
    state = "ready" if told["ready"] else f"not ready: {told['why_not']}"
    yield "gateway", {"state": state, "name": told["gateway"]["name"]}
    for site in told["sites"]:
        yield f"site {site['name']}", {"state": site["state"]}
    for worker in told["workers"]:
        values = ((what, worker[what]) for what in WATCHED)
        facts = {what: _text(value) for what, value in values if value is not None}
        yield f"worker {worker['name']}", facts


def _text(value: str | int | list[str]) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
