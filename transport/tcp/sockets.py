"""What is set on a KV connection's socket, and what the kernel says of it."""

import contextlib
import socket
import struct
from dataclasses import dataclass

CONGESTION = "bbr"  # holds its rate up to about 2 % loss; cubic falls to a few Mbps at 1e-4
# What may wait inside the kernel unsent, out of our scheduler's reach.
UNSENT_BYTES = 256 << 10
_IDLE_S, _PROBE_S, _PROBES = 30, 10, 3  # keep-alive: a dead peer is noticed within a minute
MOST_BUFFER_BYTES = 256 << 20
# How long TCP waits at most before it tries again on a line that was cut.
RETRY_MS = 1000
_TCP_RTO_MAX_MS = 44
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33

# struct tcp_info of <linux/tcp.h>: tcpi_bytes_sent and tcpi_bytes_retrans.
_SENT_AT = 200
_COUNTERS = struct.Struct("=QQ")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What TCP has sent on one connection, repeats included, and the repeats."""

    sent_bytes: int
    repeated_bytes: int


def buffer_bytes(line_bytes_per_s: float, rtt_s: float, connections: int) -> int:
    """How much one of `connections` should be able to hold: twice its bandwidth x delay.

    At most MOST_BUFFER_BYTES.
    """
    share = 2 * line_bytes_per_s * rtt_s / connections
    return min(MOST_BUFFER_BYTES, int(share))


def tune(sock: socket.socket, buffer: int | None) -> None:
    """Set up a connection; `buffer` bytes each way if the kernel would not grow to it itself."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    with contextlib.suppress(OSError):  # a kernel without it keeps its default
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())
    with contextlib.suppress(OSError):  # before Linux 6.15 the wait doubles up to two minutes
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, RETRY_MS)
    if buffer is not None:
        hold(sock, buffer)


def congestion(sock: socket.socket) -> str:
    """The congestion control in use."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return raw.split(b"\0")[0].decode()


def traffic(sock: socket.socket) -> Traffic | None:
    """None: this kernel does not count it."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENT_AT + _COUNTERS.size)
    if len(info) < _SENT_AT + _COUNTERS.size:
        return None
    return Traffic(*_COUNTERS.unpack_from(info, _SENT_AT))


def hold(sock: socket.socket, buffer: int) -> None:
    """Let a socket hold `buffer` bytes each way; of a listening one, all that come in by it.

    A fixed size stops the kernel from growing the buffer, so it is set only above its most.
    """
    for force, most in ((_SO_SNDBUFFORCE, _most("wmem")), (_SO_RCVBUFFORCE, _most("rmem"))):
        if buffer > most:
            with contextlib.suppress(OSError):  # not privileged: the kernel's growth is better
                sock.setsockopt(socket.SOL_SOCKET, force, buffer)


def _most(kind: str) -> int:
    """Bytes to which the kernel lets a TCP buffer grow."""
    with open(f"/proc/sys/net/ipv4/tcp_{kind}") as limits:
        return int(limits.read().split()[2])
