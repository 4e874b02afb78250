"""Quantities as people write them, to SI numbers and back; whatever is ambiguous is refused."""

import math
import re
from collections.abc import Mapping

NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
QUANTITY = re.compile(rf"(?P<sign>[+-]?)\s*(?P<number>{NUMBER})\s*(?P<unit>[A-Za-zµμ/ ]*)")

WITH_UNIT = rf"^\s*\+?\s*({NUMBER})\s*[A-Za-zµμ/ ]+$"  # what an editor can tell of one

DURATIONS_S = {
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,  # the Greek letter, which looks the same
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
DISTANCES_KM = {"km": 1.0}
PREFIXES = {"": 1e0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
RATES_BYTES_PER_S = (
    {f"{p}bps": factor / 8 for p, factor in PREFIXES.items()}
    | {f"{p}bit/s": factor / 8 for p, factor in PREFIXES.items()}
    | {f"{p}B/s": factor for p, factor in PREFIXES.items()}
)
SIZES_BYTES = {f"{p}B": factor for p, factor in PREFIXES.items()} | {
    f"{p}iB": 1024.0**power for power, p in enumerate("KMGT", start=1)
}
PRICES_PER_HOUR = {"/h": 1.0, "/hour": 1.0}
PRICES_PER_GB = {"/GB": 1.0}

# A bandwidth that leaves open whether bits or bytes are meant, or per what.
AMBIGUOUS_RATE = re.compile(r"(?P<prefix>[kKmMgGtT]?)i?(?:b|B|bit|byte|bytes|Bps|bytes/s|b/s)?")


class UnitError(ValueError):
    """A quantity that cannot be read, or that can be read in more than one way."""


def parse_duration_s(text: str) -> float:
    """Seconds, from text such as 50ms, 2s or 1.5 min. Raises UnitError."""
    return _parse(text, DURATIONS_S, what="a duration", example="50ms")


def parse_distance_km(text: str) -> float:
    """Kilometres, from text such as 4000 km. Raises UnitError."""
    return _parse(text, DISTANCES_KM, what="a distance", example="4000 km")


def parse_rate_bytes_per_s(text: str) -> float:
    """Bytes per second, from text such as 20Gbps or 2.5 GB/s. Raises UnitError."""
    return _parse(text, RATES_BYTES_PER_S, what="a bandwidth", example="20Gbps")


def parse_size_bytes(text: str) -> int:
    """Whole bytes, from text such as 8GiB or 200 GB. Raises UnitError."""
    return round(_parse(text, SIZES_BYTES, what="a size", example="8GiB"))


def parse_price_per_h(text: str) -> float:
    """Money per hour in the user's currency, from text such as 2.0/h. Raises UnitError."""
    return _parse(text, PRICES_PER_HOUR, what="a price", example="2.0/h")


def parse_price_per_gb(text: str) -> float:
    """Money per 1e9 bytes in the user's currency, from text such as 0.02/GB. Raises UnitError."""
    return _parse(text, PRICES_PER_GB, what="a price", example="0.02/GB")


def show_rate(bytes_per_s: float) -> str:
    """Bytes per second as people write a line's bandwidth, in bits: 20 Gbps."""
    bits = 8 * bytes_per_s
    prefix = next((p for p in "TGMk" if bits >= PREFIXES[p]), "")
    return f"{bits / PREFIXES[prefix]:.4g} {prefix}bps"


def _parse(text: str, units: Mapping[str, float], *, what: str, example: str) -> float:
    match = QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UnitError(f"expected {what} such as {example}, got {text!r}")
    unit = match["unit"].replace(" ", "")
    if not unit:
        raise UnitError(f"{text!r} has no unit; write {what} such as {example}")
    if unit not in units:
        raise UnitError(_unknown_unit(text, match["number"], unit, units, example))
    if match["sign"] == "-":
        raise UnitError(f"{what} must not be negative, got {text!r}")
    value = float(match["number"]) * units[unit]
    if not math.isfinite(value):
        raise UnitError(f"{what} must be finite, got {text!r}")
    return value


def _unknown_unit(
    text: str, number: str, unit: str, units: Mapping[str, float], example: str
) -> str:
    if units is RATES_BYTES_PER_S and (match := AMBIGUOUS_RATE.fullmatch(unit)):
        prefix = "k" if match["prefix"] in "kK" and match["prefix"] else match["prefix"].upper()
        return (
            f"{text!r} is ambiguous: write {number}{prefix}bps for bits or "
            f"{number}{prefix}B/s for bytes per second"
        )
    same = [known for known in units if known.lower() == unit.lower()]
    if same:
        return f"unknown unit {unit!r} in {text!r}; did you mean {number}{same[0]}?"
    return f"unknown unit {unit!r} in {text!r}; write it such as {example}"
