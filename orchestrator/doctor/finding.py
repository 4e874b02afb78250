"""One finding of the doctor's."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How it is: good, worse than it could be, or something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, how it is, and the way out where it could be better."""

    check: str
    state: State
    value: str
    advice: str | None = None


def ok(check: str, value: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, state=State.OK, value=value)


def good_if(
    good: bool, check: str, value: str, advice: str, *, otherwise: State = State.WARN
) -> Finding:
    """Good, or `otherwise` with the way out."""
    if good:
        return ok(check, value)
    return Finding(check=check, state=otherwise, value=value, advice=advice)


def size(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes:g} bytes"
