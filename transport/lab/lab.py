"""A lab: a long line between two network namespaces of this machine, while it is open."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from transport.lab import namespaces
from transport.lab.board import IS_CUT, RING_BYTES, Board, memory_bytes, write_line
from transport.lab.line import LabLine, LabStats

_START_S = 300.0  # the loop is compiled when it first runs on a machine
_STOP_S = 20.0
_MESSAGE_BYTES = 4096


class LabError(Exception):
    """The lab cannot be made or is gone; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of the line: a network namespace with an address on the line and a loopback.

    `namespace`: its descriptor, for setns(2).
    """

    address: str
    namespace: int
    entry: str

    def exec(self, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a command at this end; the keywords are those of subprocess.Popen.

        The lab kills it, with all it starts, when it ends. Raises OSError.
        """
        return namespaces.inside(self.namespace, lambda: subprocess.Popen(argv, **popen))

    def sysctl(self, name: str, value: str) -> None:
        """Set one of the namespace's own, such as net.ipv4.tcp_congestion_control.

        Raises OSError, and ValueError for a name outside net.
        """
        namespaces.set_sysctl(self.namespace, name, value)

    def listens(self) -> bool:
        """Whether anything at this end accepts TCP connections."""
        return namespaces.inside(self.namespace, namespaces.tcp_listens)

    @property
    def enter(self) -> str:
        """What to put before a command in another shell, as root, to run it at this end."""
        return f"nsenter --net={self.entry}"


def need_lab() -> None:
    """Raises LabError where no lab can be made."""
    if os.geteuid() != 0:
        raise LabError("the lab makes network namespaces and devices: run it as root (sudo)")
    if not Path("/dev/net/tun").exists():
        raise LabError("the lab needs /dev/net/tun: load the kernel's module, modprobe tun")


class Lab:
    """The line exists inside `with Lab(line) as lab:`; the same seed loses the same packets.

    Needs root. Nothing of it stays, however the process ends: see transport.lab.shuttle.
    Raises LabError, and ValueError for values that cannot be.
    """

    near: End
    far: End

    def __init__(self, line: LabLine, *, seed: int = 0) -> None:
        _check(line)
        if seed < 0:
            raise ValueError(f"seed: must be >= 0, got {seed}")
        self.line = line
        self._seed = seed
        self._ends: list[int] = []
        self._board: Board
        self._control: socket.socket
        self._shuttle: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        need_lab()
        board_fd = Board.create()
        self._board = Board(board_fd)
        self._control, theirs = socket.socketpair()
        with theirs:
            arguments = (theirs.fileno(), board_fd, os.getpid(), self._seed, self.line.mtu)
            self._shuttle = subprocess.Popen(
                [sys.executable, "-m", "transport.lab.shuttle", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), board_fd),
                start_new_session=True,
            )
        os.close(board_fd)
        try:
            self._begin()
        except BaseException:
            self._stop()
            raise
        return self

    def _begin(self) -> None:
        self._control.settimeout(_START_S)
        try:
            text, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 2)
            told = json.loads(text)
        except (OSError, ValueError) as error:
            raise LabError(f"the lab's shuttle did not start: {error}") from error
        if "error" in told:
            raise LabError(f"the lab cannot be made: {told['error']}")
        self._ends = fds
        for fd in fds:
            os.set_inheritable(fd, False)
        ends = [
            End(address=told[name], namespace=fd, entry=f"/proc/{os.getpid()}/fd/{fd}")
            for name, fd in zip(("near", "far"), fds, strict=True)
        ]
        self.near, self.far = ends
        self._apply()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._control.close()
        try:
            self._shuttle.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._shuttle.kill()
            self._shuttle.wait()
        namespaces.kill_inside(self._ends)  # nobody is, unless the shuttle was killed
        for end in self._ends:
            os.close(end)

    def set(self, **values: Any) -> None:
        """Change some of the line's values, by the names of LabLine; the mtu stays.

        What is on the line keeps the arrival it was given. Raises ValueError, TypeError.
        """
        line = replace(self.line, **values)
        if line.mtu != self.line.mtu:
            raise ValueError("mtu: stays as the lab was made")
        _check(line)
        self.line = line
        self._apply()

    def _apply(self) -> None:
        write_line(self._board.values, self.line)
        for end in (self.near, self.far):
            command = partial(
                namespaces.ethtool, namespaces.ETHTOOL_STSO, int(self.line.takes_large)
            )
            namespaces.inside(end.namespace, command)

    def cut(self) -> None:
        """From now on everything is lost, what is on the line too."""
        self._board.values[IS_CUT] = 1.0

    def restore(self) -> None:
        self._board.values[IS_CUT] = 0.0

    def stats(self) -> LabStats:
        """What has been counted so far. Raises LabError when the shuttle is gone."""
        if self._shuttle.poll() is not None:
            raise LabError(f"the lab's shuttle is gone, exit code {self._shuttle.returncode}")
        return LabStats(
            near_to_far=self._board.stats(0),
            far_to_near=self._board.stats(1),
            cpu_s=_cpu_s(self._shuttle.pid),
        )


def _check(line: LabLine) -> None:
    if memory_bytes(line) > RING_BYTES:
        raise ValueError(
            f"{line.under_way_bytes} bytes under way each way are more than the lab can hold: "
            "lower the rate, the delay or the buffer"
        )


def _cpu_s(pid: int) -> float:
    """User and system time of a process: fields 14 and 15 of proc(5)'s stat."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
