"""Network namespaces without a name, and the TUN devices in them: Linux's own calls.

A namespace lives as long as a process is in it or a descriptor of it is open, a device as long
as its descriptor: what a killed process made is gone with it.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000  # linux/sched.h
# linux/if_tun.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
# linux/sockios.h and net/if.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFTXQLEN, _SIOCETHTOOL = 0x8922, 0x8943, 0x8946
ETHTOOL_STSO = 0x1F  # linux/ethtool.h: set TCP segmentation offload
_IFF_UP = 0x1
_LISTEN = "0A"  # net/tcp_states.h

_DEVICE = b"pdd"
_NETMASK = "255.255.255.252"
# Packets that may wait in the device while the shuttle waits for a core.
_DEVICE_QUEUE = 10_000
_KILL_S = 10.0
_KILL_AGAIN_S = 0.01

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def inside(namespace: int, work: Callable[[], T]) -> T:
    """`work()` in a thread that is in the namespace; what it starts is there too.

    `namespace`: a descriptor. Raises what `work` raises, and OSError.
    """
    return _in_thread(lambda: _call("setns", namespace, _CLONE_NEWNET), work)


def create() -> int:
    """A descriptor of a fresh namespace. Raises OSError."""
    return _in_thread(
        lambda: _call("unshare", _CLONE_NEWNET),
        lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC),
    )


def _in_thread(enter: Callable[[], None], work: Callable[[], T]) -> T:
    """Enter and work in a thread of its own, which is thrown away: there is no way back out."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            enter()
            results.append(work())
        except BaseException as error:  # handed over, whatever it is
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def set_sysctl(namespace: int, name: str, value: str) -> None:
    """Set a sysctl of a namespace. Raises OSError, ValueError."""
    parts = name.split(".")
    if parts[0] != "net" or not all(part and "/" not in part for part in parts):
        raise ValueError(f"sysctl {name!r}: only those of net. belong to a namespace")
    path = Path("/proc/sys", *parts)
    with _allowed(value) if path == _CONGESTION else nullcontext():
        inside(namespace, lambda: path.write_text(value))


@contextmanager
def _allowed(congestion: str) -> Iterator[None]:
    """The algorithm, if the machine has it, may be the default of a namespace for a moment.

    The kernel asks for that outside its first namespace, though once set it stays.
    """
    try:
        before = _ALLOWED.read_text()
        if congestion not in before.split():
            _ALLOWED.write_text(f"{before.strip()} {congestion}")
    except OSError:  # no such algorithm, or not for us to allow: the kernel will say so
        yield
        return
    try:
        yield
    finally:
        _ALLOWED.write_text(before)


def open_device(address: str, mtu: int) -> int:
    """A TUN device, up, in the namespace the thread is in; its non-blocking descriptor.

    The loopback device is brought up too, and IPv6 off: its neighbour discovery would send
    packets that nobody asked for. Raises OSError.
    """
    for which in ("all", "default"):
        path = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
        if path.exists():
            path.write_text("1")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, flags))
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _bring_up(control, b"lo")
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", _DEVICE, _DEVICE_QUEUE))
            fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", _DEVICE, mtu))
            fcntl.ioctl(control, _SIOCSIFADDR, _address_request(address))
            fcntl.ioctl(control, _SIOCSIFNETMASK, _address_request(_NETMASK))
            _bring_up(control, _DEVICE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def ethtool(command: int, value: int = 0) -> int:
    """A command of struct ethtool_value on the device of the namespace the thread is in.

    Returns the value after it. Raises OSError.
    """
    data = (ctypes.c_uint32 * 2)(command, value)
    request = struct.pack("16sP16x", _DEVICE, ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return data[1]


def _bring_up(control: socket.socket, device: bytes) -> None:
    request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", device, 0))
    flags = struct.unpack("16sH22x", request)[1] | _IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, flags))


def _address_request(address: str) -> bytes:
    """struct ifreq with a struct sockaddr_in."""
    return struct.pack("16sHH4s16x", _DEVICE, socket.AF_INET, 0, socket.inet_aton(address))


def tcp_listens() -> bool:
    """Whether a TCP socket listens in the namespace the thread is in: proc_pid_net(5)'s tables."""
    for table in ("tcp", "tcp6"):
        lines = Path(f"/proc/thread-self/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        if any(line.split()[3] == _LISTEN for line in lines):
            return True
    return False


def kill_inside(ends: Sequence[int]) -> None:
    """Kill whoever is in one of the namespaces (descriptors) until nobody is left.

    Again and again: a process may start others while it is being looked for.
    """
    inodes = {os.fstat(end).st_ino for end in ends}
    give_up = time.monotonic() + _KILL_S
    while (found := _processes_inside(inodes)) and time.monotonic() < give_up:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_AGAIN_S)


def _processes_inside(inodes: set[int]) -> list[int]:
    """Those whose /proc/PID/ns/net is one of the inodes."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is a zombie
            if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                found.append(int(entry))
    return found
