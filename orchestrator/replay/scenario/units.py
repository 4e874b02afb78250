"""Rates of requests and rents, as people write them. See `orchestrator.topology.units`."""

import re

from orchestrator.topology.units import NUMBER, UnitError

PER_S = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
HOURS_A_MONTH = 730.0  # a twelfth of a year, as clouds bill it
PER_H = {"/h": 1.0, "/hour": 1.0, "/month": 1 / HOURS_A_MONTH}


def parse_rate_per_s(text: str) -> float:
    """Requests per second, from text such as 80/s or 30/min. Raises UnitError."""
    return _parse(text, PER_S, what="a rate", example="80/s")


def parse_rent_per_h(text: str) -> float:
    """Money per hour in the user's currency, from text such as 40000/month. Raises UnitError."""
    return _parse(text, PER_H, what="a rent", example="40000/month or 50/h")


def _parse(text: str, units: dict[str, float], *, what: str, example: str) -> float:
    match = re.fullmatch(rf"({NUMBER})\s*(/\s*[a-z]+)?", text.strip())
    unit = (match[2] or "").replace(" ", "") if match else ""
    if match is None or unit not in units:
        raise UnitError(f"expected {what} such as {example}, got {text!r}")
    return float(match[1]) * units[unit]
