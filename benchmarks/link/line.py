"""The line that everybody uses, and the kernel's settings at its ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from transport.lab.lab import Lab
from transport.lab.line import LabLine

CONNECTIONS = 8
ONE_WAY_S = 0.025
MTU = 9000
# For everybody alike: room for bandwidth x delay. All else is as the kernel has it; so cubic starts
# slowly again after a pause, which BBR does not.
SYSCTLS = {
    "net.ipv4.tcp_rmem": "4096 131072 67108864",
    "net.ipv4.tcp_wmem": "4096 65536 67108864",
}
# IPv4 and TCP with timestamps, in each packet.
_HEADERS = 52


def payload_gbps(gbps: float) -> float:
    """What of a line's rate can be payload of TCP."""
    return gbps * (MTU - _HEADERS) / MTU


@contextmanager
def opened(gbps: float, loss: float, *, large_buffers: bool = True) -> Iterator[Lab]:
    """A lab of that rate and loss, 50 ms there and back. Raises LabError.

    Without `large_buffers` TCP has what the kernel gives.
    """
    rate = gbps * 1e9 / 8
    line = LabLine(delay_s=ONE_WAY_S, rate_bytes_per_s=rate, loss=loss, mtu=MTU)
    with Lab(line) as lab:
        for end in (lab.near, lab.far):
            for name, value in SYSCTLS.items() if large_buffers else ():
                end.sysctl(name, value)
        yield lab
