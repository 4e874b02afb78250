"""The process that is a lab's line: it makes the ends, carries packets, and cleans up.

    python -m transport.lab.shuttle CONTROL BOARD PARENT SEED MTU

started by `transport.lab.lab` only. CONTROL: a Unix socket's descriptor; on it comes one line of
JSON, `{"near": address, "far": address}` with the two namespaces' descriptors, or
`{"error": why}`. It ends when the socket is closed or the process PARENT is gone, however that
went; whoever is still in one of the namespaces is killed then. It is in a session of its own, so
that a signal to the parent's group does not take both.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial

from transport.lab import namespaces
from transport.lab.board import DIRECTIONS, RING_BYTES, STOP, Board
from transport.lab.loop import carry, new_direction

# The namespaces know nobody else, so every lab can use the same two addresses.
NEAR, FAR = "10.99.0.1", "10.99.0.2"

_PRIORITY = 1


def main() -> int:
    control_fd, board_fd, parent, seed, mtu = map(int, sys.argv[1:])
    control = socket.socket(fileno=control_fd)
    watch = os.pidfd_open(parent)
    if os.getppid() != parent:  # gone before it could be watched
        return 1
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    try:
        ends = [namespaces.create() for _ in (NEAR, FAR)]
        devices = [
            namespaces.inside(end, partial(namespaces.open_device, address, mtu))
            for end, address in zip(ends, (NEAR, FAR), strict=True)
        ]
    except OSError as error:
        control.sendall(json.dumps({"error": f"{error}"}).encode() + b"\n")
        return 1
    board = Board(board_fd)
    there, back = (
        new_direction(board.counters[which], seed, which, ring_bytes=RING_BYTES)
        for which in range(DIRECTIONS)
    )
    work = partial(carry, board.values, there, back, *devices)
    board.values[STOP] = 1.0
    work()  # compiled, or loaded, before the first packet comes
    board.values[STOP] = 0.0
    line = threading.Thread(target=work)
    line.start()
    with suppress(PermissionError):  # a real line does not wait for a core
        scheduler = os.SCHED_RR, os.sched_param(_PRIORITY)
        os.sched_setscheduler(line.native_id or 0, *scheduler)
    ready = json.dumps({"near": NEAR, "far": FAR}).encode() + b"\n"
    with suppress(OSError):  # the parent has gone: seen below
        socket.send_fds(control, [ready], ends)
    select.select([control.fileno(), watch], [], [])
    board.values[STOP] = 1.0
    line.join()
    namespaces.kill_inside(ends)
    return 0


if __name__ == "__main__":
    os._exit(main())  # nothing to write or to tidy: taking the compiler apart takes a second
