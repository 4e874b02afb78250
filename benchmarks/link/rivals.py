"""The same line used by iperf3 and by Mooncake's transfer engine."""

import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.link.line import payload_gbps
from benchmarks.link.processes import BenchFailed, Talker, run_at
from transport.lab.lab import End, Lab

STREAMS = (1, 4, 8)
CONGESTION = ("cubic", "bbr")
_WARM_S, _TIMED_S = 2, 4
_START_S, _LOOK_EVERY_S = 10.0, 0.01


def missing() -> list[str]:
    """What is not installed, each with the way to get it."""
    lacking = []
    if shutil.which("iperf3") is None:
        lacking.append("iperf3 is not installed: apt-get install iperf3")
    if importlib.util.find_spec("mooncake") is None:
        lacking.append(
            "Mooncake's transfer engine is not installed: apt-get install libibverbs1, "
            "pip install mooncake-transfer-engine-non-cuda"
        )
    return lacking


def iperf3(lab: Lab, tell: Callable[[str], None]) -> dict[str, float]:
    """Gbps at the receiver of each way to run it, after two seconds to get going.

    What waits in the line when the clock starts is counted as received in the time after, so more
    than the line can carry is taken for what it can.
    """
    gbps = {}
    most = payload_gbps(lab.line.rate_bytes_per_s * 8e-9)
    for congestion in CONGESTION:
        for streams in STREAMS:
            name = f"{congestion}, {streams} streams"
            server = lab.far.exec(
                ["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                _until_it_listens(lab.far, server)
                options = ["-O", _WARM_S, "-t", _TIMED_S, "-P", streams, "-C", congestion, "-J"]
                argv = ["iperf3", "-c", lab.far.address, *map(str, options)]
                out = json.loads(run_at(lab.near, argv, 30.0))
            finally:
                server.kill()
                server.wait()
            gbps[name] = min(most, out["end"]["sum_received"]["bits_per_second"] / 1e9)
            tell(f"iperf3, {name}: {gbps[name]:.3f} Gbps")
    return gbps


def _until_it_listens(end: End, server: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S
    while not end.listens():
        if server.poll() is not None or time.monotonic() > give_up:
            raise BenchFailed("iperf3 -s does not listen")
        time.sleep(_LOOK_EVERY_S)


def mooncake(
    lab: Lab, sizes: tuple[int, ...], repeats: int, tell: Callable[[str], None]
) -> dict[int, list[float]]:
    """Seconds from the write to the last byte at the receiver, by size in bytes."""
    largest, module = max(sizes), "benchmarks.link.mooncake_end"
    took: dict[int, list[float]] = {}
    with (
        Talker(lab.far, module, lab.far.address, largest) as far,
        Talker(lab.near, module, lab.near.address, largest) as near,
    ):
        there: dict[str, Any] = far.hear("session")
        near.hear("session")
        value = 0
        for size in (largest, *sizes):  # the first one only warms the connections
            took[size] = []
            for _ in range(repeats if size in took else 1):
                value = value % 250 + 1
                order = {"bytes": size, "value": value}
                far.say(**order)
                near.say(**order, target=there["session"], remote=there["address"])
                told, arrived = near.hear("began"), far.hear("arrived")["arrived"]
                if told["failed"] or arrived is None:
                    raise BenchFailed(f"Mooncake's transfer of {size} bytes failed")
                took[size].append(arrived - told["began"])
            tell(f"Mooncake, {size >> 20} MiB: {median(took[size]):.3f} s")
    return took
