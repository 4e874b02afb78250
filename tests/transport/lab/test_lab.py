"""The lab itself: packets through two kernels' ends. Needs root, else it is skipped."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.transport.lab.lab_support import (
    WAIT_S,
    holders,
    needs_lab,
    tcp_at,
    udp_at,
    within,
)
from transport.lab import namespaces
from transport.lab.board import VALUES, write_line
from transport.lab.lab import Lab, LabError
from transport.lab.line import DirectionStats, LabLine
from transport.lab.queue import LOST, admit, new_chances, new_state

pytestmark = needs_lab

PORT = 5000
ETHTOOL_GTSO = 0x1E  # linux/ethtool.h: get TCP segmentation offload
UDP_HEADERS = 28  # IPv4 and UDP


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A line of 10 Gbps and 5 ms."""
    with Lab(LabLine(delay_s=0.005, rate_bytes_per_s=1.25e9), seed=11) as made:
        yield made


@pytest.fixture
def sockets(lab: Lab) -> Iterator[tuple[socket.socket, socket.socket]]:
    """UDP sockets at both ends, the near one connected to the far one."""
    with udp_at(lab.near, PORT) as near, udp_at(lab.far, PORT) as far:
        near.connect((lab.far.address, PORT))
        far.connect((lab.near.address, PORT))
        yield near, far


def settled(lab: Lab, packets: int) -> DirectionStats:
    """The near to far direction, once that many packets have met their fate."""

    def fates() -> int:
        stats = lab.stats().near_to_far
        return stats.packets + stats.lost + stats.no_room + stats.cut + stats.refused

    assert within(WAIT_S, lambda: fates() >= packets), f"{packets} expected: {lab.stats()}"
    return lab.stats().near_to_far


def rtt_s(near: socket.socket, far: socket.socket) -> float:
    """The best of ten: whatever else the machine does only adds."""
    best = float("inf")
    for _ in range(10):
        began = time.monotonic()
        near.send(b"there")
        far.recv(100)
        far.send(b"back")
        near.recv(100)
        best = min(best, time.monotonic() - began)
    return best


def test_the_round_trip_is_twice_the_delay(
    lab: Lab, sockets: tuple[socket.socket, socket.socket]
) -> None:
    assert 0.010 <= rtt_s(*sockets) < 0.011
    lab.set(delay_s=0.025)
    assert 0.050 <= rtt_s(*sockets) < 0.051


def test_the_rate_is_never_exceeded(lab: Lab, sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    lab.set(rate_bytes_per_s=1e6, buffer_bytes=1_000_000)
    began = time.monotonic()
    for _ in range(100):
        near.send(bytes(2000))
    for _ in range(100):
        far.recv(3000)
    least_s = 100 * (2000 + UDP_HEADERS) / 1e6 + 0.005
    assert time.monotonic() - began >= least_s
    assert lab.stats().near_to_far.nbytes == 100 * (2000 + UDP_HEADERS)


def test_the_seed_says_which_packets_are_lost(
    lab: Lab, sockets: tuple[socket.socket, socket.socket]
) -> None:
    near, far = sockets
    lab.set(loss=0.05)
    values = np.zeros(VALUES)
    write_line(values, lab.line)
    state, chances = new_state(), new_chances(11, 0)
    fates = [admit(values, state, chances, float(n), 32)[0] for n in range(1000)]
    for n in range(1000):
        near.send(n.to_bytes(4, "big"))
    stats = settled(lab, 1000)
    assert (stats.lost, stats.packets) == (fates.count(LOST), 1000 - fates.count(LOST))
    arrived = [int.from_bytes(far.recv(100), "big") for _ in range(stats.packets)]
    assert arrived == [n for n in range(1000) if fates[n] != LOST]


def test_what_the_buffer_cannot_hold_is_dropped(
    lab: Lab, sockets: tuple[socket.socket, socket.socket]
) -> None:
    lab.set(rate_bytes_per_s=1e4, buffer_bytes=10_000)
    for _ in range(100):
        sockets[0].send(bytes(972))
    assert within(WAIT_S, lambda: lab.stats().near_to_far.no_room >= 80)
    stats = lab.stats().near_to_far
    assert 80 <= stats.no_room <= 90  # ten fit, and what drains meanwhile
    assert 0 < stats.queue_bytes <= 10_000


def test_cut_and_restore(lab: Lab, sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    lab.set(delay_s=0.1, rate_bytes_per_s=100)  # it waits half a second before the line
    near.send(b"on the line when it is cut")
    assert within(WAIT_S, lambda: lab.stats().near_to_far.queue_bytes > 0)
    lab.cut()
    near.send(b"sent while it is cut")
    assert settled(lab, 2).cut == 2
    lab.restore()
    lab.set(rate_bytes_per_s=1.25e9)
    near.send(b"after")
    assert far.recv(100) == b"after"


def test_a_stream_over_a_bad_line_is_intact(lab: Lab) -> None:
    """Large packets are taken apart at the losses and the kernel at the far end agrees."""
    lab.set(loss=0.02, jitter_s=0.0005)
    data = np.random.default_rng(3).bytes(16 << 20)
    received: list[bytes] = []

    def receive(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(WAIT_S)
            while piece := accepted.recv(1 << 20):
                received.append(piece)

    with tcp_at(lab.far) as listener, tcp_at(lab.near) as sender:
        listener.bind((lab.far.address, PORT))
        listener.listen()
        assert lab.far.listens()
        assert not lab.near.listens()
        thread = threading.Thread(target=receive, args=(listener,))
        thread.start()
        sender.settimeout(60)
        sender.connect((lab.far.address, PORT))
        sender.sendall(data)
        sender.shutdown(socket.SHUT_WR)
        thread.join(60)
    assert hashlib.sha256(b"".join(received)).digest() == hashlib.sha256(data).digest()
    stats = lab.stats()
    assert stats.near_to_far.lost > 10
    assert stats.near_to_far.refused == stats.far_to_near.refused == 0
    assert stats.near_to_far.nbytes >= len(data) * 9000 // 8960


def test_a_command_runs_at_its_end_with_that_ends_settings(lab: Lab) -> None:
    outside = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text()
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text()
    lab.near.sysctl("net.ipv4.tcp_congestion_control", "reno")
    lab.near.sysctl("net.ipv4.tcp_rmem", "4096 131072 50000000")
    lab.far.sysctl("net.ipv4.tcp_congestion_control", "cubic")
    show = "cat /proc/sys/net/ipv4/tcp_congestion_control; cat /proc/sys/net/ipv4/tcp_rmem"
    texts = []
    for end in (lab.near, lab.far):
        with end.exec(["sh", "-c", show], stdout=subprocess.PIPE, text=True) as command:
            texts.append(command.communicate(timeout=WAIT_S)[0].split())
    assert texts[0] == ["reno", "4096", "131072", "50000000"]
    assert texts[1][0] == "cubic"
    assert Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text() == outside
    assert Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text() == allowed
    with pytest.raises(ValueError, match="only those of net"):
        lab.near.sysctl("kernel.hostname", "x")


def test_a_slow_line_gets_its_packets_one_by_one(lab: Lab) -> None:
    get = partial(namespaces.ethtool, ETHTOOL_GTSO)

    def takes_large() -> list[int]:
        return [namespaces.inside(end.namespace, get) for end in (lab.near, lab.far)]

    assert takes_large() == [1, 1]
    lab.set(rate_bytes_per_s=1e6)
    assert takes_large() == [0, 0]
    lab.set(rate_bytes_per_s=1e8)
    assert takes_large() == [1, 1]


def test_loopback_is_up_at_both_ends(lab: Lab) -> None:
    for end in (lab.near, lab.far):
        with tcp_at(end) as listener, tcp_at(end) as client:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            client.connect(listener.getsockname())
            assert client.getpeername() == listener.getsockname()


def test_what_cannot_be_changed_is_refused(lab: Lab) -> None:
    before = lab.line
    with pytest.raises(ValueError, match="mtu: stays"):
        lab.set(mtu=1500)
    with pytest.raises(ValueError, match="loss: must be in"):
        lab.set(loss=2.0)
    with pytest.raises(ValueError, match="more than the lab can hold"):
        lab.set(rate_bytes_per_s=1e12)
    assert lab.line == before


def inodes_of(lab: Lab) -> set[int]:
    return {os.fstat(end.namespace).st_ino for end in (lab.near, lab.far)}


def assert_nobody_holds(inodes: set[int]) -> None:
    """No process is in the namespaces or holds them: so they and their devices are gone."""
    assert within(WAIT_S, lambda: not holders(inodes)), holders(inodes)


def test_nothing_is_left_after_the_end() -> None:
    with Lab(LabLine(delay_s=0.001, rate_bytes_per_s=1e8)) as lab:
        inodes = inodes_of(lab)
        assert holders(inodes)  # the check can see them
        command = lab.near.exec(["sh", "-c", "sleep 1000 & sleep 1000"])
    assert_nobody_holds(inodes)
    assert command.wait(WAIT_S) == -signal.SIGKILL


KILLED = """
    import json, os, sys
    from transport.lab.lab import Lab
    from transport.lab.line import LabLine

    with Lab(LabLine(delay_s=0.001, rate_bytes_per_s=1e8)) as lab:
        for end in (lab.near, lab.far):
            end.exec(["sh", "-c", "trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000"])
        inodes = [os.fstat(end.namespace).st_ino for end in (lab.near, lab.far)]
        print(json.dumps(inodes), flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_lab_is_killed(signum: signal.Signals, root: Path) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed:
        assert killed.stdout is not None
        inodes = set(json.loads(killed.stdout.readline()))
        assert len(inodes) == 2
        # The lab, its shuttle, two commands of three processes each.
        assert within(WAIT_S, lambda: len(holders(inodes)) >= 8)
        assert len(holders(inodes)) == 8
        killed.send_signal(signum)
        assert killed.wait(WAIT_S) == -signum
        assert_nobody_holds(inodes)


def test_a_lab_whose_shuttle_is_gone_says_so() -> None:
    with Lab(LabLine(delay_s=0.001, rate_bytes_per_s=1e8)) as lab:
        inodes = inodes_of(lab)
        [shuttle] = holders(inodes) - {os.getpid()}
        command = lab.far.exec(["sleep", "1000"])
        os.kill(shuttle, signal.SIGKILL)
        os.waitid(os.P_PID, shuttle, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LabError, match="shuttle is gone, exit code -9"):
            lab.stats()
    assert_nobody_holds(inodes)
    assert command.wait(WAIT_S) == -signal.SIGKILL
