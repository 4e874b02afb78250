"""Where a site or a gateway listens, as people write it."""

import re

LOOPBACK = "127.0.0.1"
MOST_PORT = 65535
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


class AddressError(ValueError):
    """A host or a range of ports that cannot be."""


def check_host(text: str) -> str:
    """A name or an IPv4 address at which others reach this machine. Raises AddressError."""
    if text == "0.0.0.0":
        raise AddressError("0.0.0.0 is no address that others can reach; give the machine's own")
    if not HOST.fullmatch(text):
        raise AddressError(f"expected a host such as 10.0.0.1, got {text!r}")
    return text


def ports_needed(workers: int) -> int:
    """How many a site takes: one for its agent, of each worker one for HTTP and one for KV."""
    return 1 + 2 * workers


def parse_ports(text: str) -> range:
    """Ports from text such as 7000-7009, both ends included. Raises AddressError."""
    match = PORTS.fullmatch(text.replace(" ", ""))
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < first <= last <= MOST_PORT:
        raise AddressError(f"expected a range of ports such as 7000-7009, got {text!r}")
    return range(first, last + 1)
