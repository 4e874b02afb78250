"""The lines of a topology: what filling them takes of TCP, and what the kernel allows."""

from orchestrator.doctor.finding import Finding, State, good_if, ok, size
from orchestrator.doctor.tcp import Kernel
from orchestrator.topology.schema import Link, Topology
from orchestrator.topology.units import show_rate
from transport.tcp import sockets
from transport.tcp.client import CONNECTIONS

_ROUND_BYTES = 1 << 20


def line_findings(topology: Topology, kernel: Kernel) -> list[Finding]:
    """One for each link. Both ends of a line need the buffers; this machine's are looked at."""
    return [_line(link, kernel) for link in topology.links]


def _line(link: Link, kernel: Kernel) -> Finding:
    check = f"line {' - '.join(link.between)}"
    rtt_s = 2 * link.delay_s
    flying = link.rate_bytes_per_s * rtt_s
    told = f"{show_rate(link.rate_bytes_per_s)} x {rtt_s * 1e3:.3g} ms = {size(flying)} under way"
    if link.emulate:
        return ok(check, f"{told}; emulated here, so TCP itself goes over loopback")
    needed = sockets.buffer_bytes(link.rate_bytes_per_s, rtt_s, CONNECTIONS)
    smaller = min(kernel.rmem[2], kernel.wmem[2])
    value = f"{told}; {CONNECTIONS} connections need buffers of {size(needed)} each"
    if smaller < needed:
        # Twice bandwidth x delay is what a buffer should be: its half is under way at once.
        held = CONNECTIONS * smaller / 2 / rtt_s
        value += f", the kernel stops at {size(smaller)}: enough for about {show_rate(held)}"
    if needed == sockets.MOST_BUFFER_BYTES and smaller >= needed:
        held = CONNECTIONS * needed / 2 / rtt_s
        return Finding(
            check=check,
            state=State.WARN,
            value=f"{value}, the most they take: enough for about {show_rate(held)}",
            advice="run more workers on both ends: each pair has connections of its own",
        )
    return good_if(smaller >= needed, check, value, f"on both ends: {_sysctls(kernel, needed)}")


def _sysctls(kernel: Kernel, needed: int) -> str:
    most = -(-needed // _ROUND_BYTES) * _ROUND_BYTES
    return "sysctl -w " + " ".join(
        f"net.ipv4.tcp_{name}='{least} {first} {most}'"
        for name, (least, first, has) in (("wmem", kernel.wmem), ("rmem", kernel.rmem))
        if has < needed
    )
