"""TCP on this machine: what the kernel allows, and what a KV connection gets."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.doctor.finding import Finding, State, good_if, ok, size
from transport.tcp import sockets

SYSCTLS = Path("/proc/sys/net")
BEYOND_BYTES = 1 << 20  # how much more than the kernel would grow to is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The kernel's settings; bytes. None: this kernel or container does not show it.

    `rmem` and `wmem`: least, first and most of a TCP buffer.
    """

    available: str | None  # congestion controls
    allowed: str | None  # those that everybody may choose
    rmem: tuple[int, int, int]
    wmem: tuple[int, int, int]
    rmem_max: int | None
    wmem_max: int | None
    slow_start_after_idle: bool
    window_scaling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What was read back from a connection that was set up as those that carry KV."""

    congestion: str
    send_bytes: int
    receive_bytes: int
    nodelay: bool
    unsent_bytes: int
    keepalive: tuple[int, int, int] | None  # idle s, between probes s, probes; None: off
    forced_bytes: int | None  # a buffer beyond the kernel's most; None: it could not be had


def read_kernel(root: Path = SYSCTLS) -> Kernel:
    """The settings below `root`, as they are now."""
    return Kernel(
        available=_text(root, "ipv4/tcp_available_congestion_control"),
        allowed=_text(root, "ipv4/tcp_allowed_congestion_control"),
        rmem=_three(root, "ipv4/tcp_rmem"),
        wmem=_three(root, "ipv4/tcp_wmem"),
        rmem_max=_number(root, "core/rmem_max"),
        wmem_max=_number(root, "core/wmem_max"),
        slow_start_after_idle=_number(root, "ipv4/tcp_slow_start_after_idle") == 1,
        window_scaling=_number(root, "ipv4/tcp_window_scaling") != 0,
    )


def probe(kernel: Kernel) -> Connection:
    """Make connections over loopback as the transport does, and ask what they got."""
    beyond = max(kernel.rmem[2], kernel.wmem[2]) + BEYOND_BYTES
    with _connected(beyond) as sock:
        # The kernel doubles what is asked for, for its own bookkeeping.
        held = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        forced = held if held >= beyond else None
    with _connected(None) as sock:
        keepalive = None
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            keepalive = (
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            )
        return Connection(
            congestion=sockets.congestion(sock),
            send_bytes=sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            receive_bytes=sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            nodelay=bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)),
            unsent_bytes=sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT),
            keepalive=keepalive,
            forced_bytes=forced,
        )


def tcp_findings(kernel: Kernel, got: Connection) -> list[Finding]:
    """What that means for KV."""
    scaling = good_if(
        kernel.window_scaling,
        "window scaling",
        "on" if kernel.window_scaling else "off: a window is at most 64 KiB",
        "sysctl -w net.ipv4.tcp_window_scaling=1",
        otherwise=State.FAIL,
    )
    return [
        _congestion(kernel, got),
        _options(got),
        ok("SO_SNDBUF", _buffer(got.send_bytes, "tcp_wmem", kernel.wmem[2])),
        ok("SO_RCVBUF", _buffer(got.receive_bytes, "tcp_rmem", kernel.rmem[2])),
        ok("buffers by force", _forced(kernel, got)),
        scaling,
        _idle(kernel, got),
    ]


def _congestion(kernel: Kernel, got: Connection) -> Finding:
    wanted = sockets.CONGESTION
    if wanted not in (kernel.available or "").split():
        advice = f"modprobe tcp_{wanted}"
    else:
        allowed = f"{kernel.allowed or ''} {wanted}".strip()
        advice = f"sysctl -w net.ipv4.tcp_allowed_congestion_control='{allowed}'"
    return good_if(
        got.congestion == wanted,
        "congestion control",
        f"{got.congestion}; the kernel has {kernel.available or 'not told what'}",
        f"{advice}: at a loss of 1e-4 a connection of {got.congestion} falls to a few tens of Mbps",
    )


def _options(got: Connection) -> Finding:
    alive = "off"
    if got.keepalive is not None:
        idle, every, probes = got.keepalive
        alive = f"{idle} s, then {probes} probes every {every} s"
    return good_if(
        got.nodelay and got.unsent_bytes == sockets.UNSENT_BYTES and got.keepalive is not None,
        "socket options",
        f"TCP_NODELAY {'on' if got.nodelay else 'off'}, TCP_NOTSENT_LOWAT "
        f"{size(got.unsent_bytes)}, keep-alive {alive}",
        "the kernel did not take what was set: is this a sandbox without all of Linux's TCP?",
    )


def _buffer(first: int, name: str, most: int) -> str:
    return f"{size(first)} when new, grows to {size(most)} ({name})"


def _forced(kernel: Kernel, got: Connection) -> str:
    if got.forced_bytes is not None:
        return f"possible, beyond the kernel's most: {size(got.forced_bytes)} was given"
    limits = ", ".join(
        f"{name} {size(most)}"
        for name, most in (("wmem_max", kernel.wmem_max), ("rmem_max", kernel.rmem_max))
        if most is not None
    )
    return f"not without CAP_NET_ADMIN, so the kernel's growth counts; {limits or 'limits hidden'}"


def _idle(kernel: Kernel, got: Connection) -> Finding:
    # tcp_slow_start_after_idle_check() leaves controls with a rate of their own, as BBR, alone.
    good = not kernel.slow_start_after_idle or got.congestion == sockets.CONGESTION
    value = "on" if kernel.slow_start_after_idle else "off"
    if good and kernel.slow_start_after_idle:
        value += f", which {got.congestion} does not heed"
    return good_if(
        good,
        "slow start after idle",
        value,
        "sysctl -w net.ipv4.tcp_slow_start_after_idle=0: warm connections keep their window",
    )


@contextlib.contextmanager
def _connected(buffer: int | None) -> Iterator[socket.socket]:
    """A connection to ourselves, tuned as the transport's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0],
    ):
        sockets.tune(ours, buffer)
        yield ours


def _text(root: Path, name: str) -> str | None:
    try:
        return (root / name).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _number(root: Path, name: str) -> int | None:
    text = _text(root, name)
    return None if text is None else int(text)


def _three(root: Path, name: str) -> tuple[int, int, int]:
    least, first, most = map(int, (root / name).read_text(encoding="utf-8").split())
    return least, first, most
