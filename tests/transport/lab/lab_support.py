"""What the lab's tests share: who may make namespaces, sockets at an end, what is left behind."""

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from transport.lab import namespaces
from transport.lab.lab import End

WAIT_S = 10.0


@cache
def why_no_lab() -> str | None:
    """None where a lab can be made."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    try:
        os.close(namespaces.create())
    except OSError as error:
        return f"may not make a namespace: {error}"
    return None


needs_lab = pytest.mark.skipif(why_no_lab() is not None, reason=f"{why_no_lab()}")


def udp_at(end: End, port: int) -> socket.socket:
    """A bound UDP socket at an end: a socket stays in the namespace it was made in."""
    made = namespaces.inside(end.namespace, partial(socket.socket, type=socket.SOCK_DGRAM))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    made.bind((end.address, port))
    made.settimeout(WAIT_S)
    return made


def tcp_at(end: End) -> socket.socket:
    """A TCP socket at an end."""
    made = namespaces.inside(end.namespace, socket.socket)
    made.settimeout(WAIT_S)
    return made


def holders(inodes: set[int]) -> set[int]:
    """The processes that are in one of the network namespaces or hold a descriptor of it."""
    names = {f"net:[{inode}]" for inode in inodes}
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        links = [f"/proc/{entry}/ns/net"]
        try:
            links += [f"/proc/{entry}/fd/{fd}" for fd in os.listdir(f"/proc/{entry}/fd")]
        except OSError:  # it has ended
            continue
        for link in links:
            try:
                if os.readlink(link) in names:
                    found.add(int(entry))
            except OSError:
                continue
    return found


def within(seconds: float, good: Callable[[], bool]) -> bool:
    """Whether another process or thread gets there in time; looked at every few milliseconds."""
    give_up, pause = time.monotonic() + seconds, threading.Event()
    while not good():
        if time.monotonic() > give_up:
            return False
        pause.wait(0.005)
    return True
