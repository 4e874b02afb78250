"""Mooncake's transfer engine at one end of the line; each line on standard input is an order.

near: {"bytes", "target", "remote", "value"} writes so much of its buffer there.
far: {"bytes", "value"} says when that has all arrived.
"""

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np
from mooncake.engine import TransferEngine

BLOCK = 64 << 10  # Mooncake's slices: the last byte of each is looked at
LOOK_EVERY_S = 0.0005
WAIT_S = 60.0


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(host: str, nbytes: int) -> None:
    engine = TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("the transfer engine did not start")
    buffer = (ctypes.c_uint8 * nbytes)()
    address = ctypes.addressof(buffer)
    if engine.register_memory(address, nbytes) != 0:
        raise SystemExit("the transfer engine did not take the buffer")
    memory = np.frombuffer(buffer, np.uint8)
    memory[:] = 0
    tell(session=f"{host}:{engine.get_rpc_port()}", address=address)
    for line in sys.stdin:
        order = json.loads(line)
        if "target" in order:
            memory[: order["bytes"]] = order["value"]
            began = time.monotonic()
            failed = engine.transfer_sync_write(
                order["target"], address, order["remote"], order["bytes"]
            )
            tell(began=began, failed=failed)
        else:
            tell(arrived=_arrived(memory[: order["bytes"]], order["value"]))


def _arrived(memory: np.ndarray, value: int) -> float | None:
    """When the last byte of every block has the value; None: not in time."""
    last = memory[BLOCK - 1 :: BLOCK]
    until = time.monotonic() + WAIT_S
    while (now := time.monotonic()) < until:
        if (last == value).all():
            return now
        time.sleep(LOOK_EVERY_S)
    return None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
