"""All cells: each line with each loss, and on it three sizes by three codecs and two rivals."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.link import accidents, rivals
from benchmarks.link.kv import TOKEN_BYTES
from benchmarks.link.line import CONNECTIONS, opened
from benchmarks.link.processes import ROOT, Talker
from benchmarks.machine import machine
from transport.lab.lab import Lab, need_lab

LINES_GBPS = (1.0, 3.0)
LOSSES = (0.0, 1e-4, 1e-3)
SIZES_MIB = (8, 64, 256)
CODECS = ("raw", "lossless", "int8")
REPEATS = 3


def run(
    *,
    lines_gbps: tuple[float, ...] = LINES_GBPS,
    losses: tuple[float, ...] = LOSSES,
    sizes_mib: tuple[int, ...] = SIZES_MIB,
    codecs: tuple[str, ...] = CODECS,
    repeats: int = REPEATS,
    with_rivals: bool = True,
    with_accidents: bool = True,
    large_buffers: bool = True,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Medians of `repeats` in each cell. Raises LabError and BenchFailed."""
    need_lab()
    before = machine()
    lacking = rivals.missing() if with_rivals else []
    for line in lacking:
        tell(line)
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kv.npy")
        tell("reading three texts for their KV")
        subprocess.run(
            [sys.executable, "-m", "benchmarks.link.kv_file", path], cwd=ROOT, check=True
        )
        for gbps in lines_gbps:
            for loss in losses:
                tell(f"{gbps:g} Gbps, loss {loss:g}")
                with opened(gbps, loss, large_buffers=large_buffers) as lab:
                    ours = _ours(lab, path, sizes_mib, codecs, repeats, tell)
                    theirs = _theirs(lab, sizes_mib, repeats, with_rivals and not lacking, tell)
                cells += [
                    {"line_gbps": gbps, "loss": loss, **cell, **theirs[cell["size_mib"]]}
                    for cell in ours
                ]
        happened = accidents.run(path, tell) if with_accidents else []
    return {
        "cells": cells,
        "accidents": happened,
        "lacking": lacking,
        "connections": CONNECTIONS,
        "large_buffers": large_buffers,
        "machine": before,
    }


def _ours(
    lab: Lab,
    path: Path,
    sizes_mib: tuple[int, ...],
    codecs: tuple[str, ...],
    repeats: int,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    most = (max(sizes_mib) << 20) // TOKEN_BYTES + 1
    cells = []
    with Talker(lab.far, "benchmarks.link.receiving", lab.far.address, most) as far:
        address = f"{lab.far.address}:{far.hear('port')['port']}"
        module = "benchmarks.link.sending"
        with Talker(lab.near, module, address, path, most, CONNECTIONS) as near:
            near.hear("ready")
            for codec in codecs:
                _transfer(near, far, max(sizes_mib), codec, f"warm {codec}")
                for size in sizes_mib:
                    runs = [
                        _transfer(near, far, size, codec, f"{codec} {size} {n}")
                        for n in range(repeats)
                    ]
                    cell = {"size_mib": size, "codec": codec, **_medians(runs)}
                    cells.append(cell)
                    tell(
                        f"{codec}, {size} MiB: {cell['wire_gbps']:.3f} Gbps on the wire, "
                        f"{cell['effective_gbps']:.3f} of KV"
                    )
    return cells


def _transfer(near: Talker, far: Talker, size: int, codec: str, request: str) -> dict[str, Any]:
    tokens = (size << 20) // TOKEN_BYTES
    near.say(request=request, tokens=tokens, codec=codec, slice_tokens=tokens)
    sent, done = near.hear("began"), far.hear("done_at")
    far.say(asked=request)
    read = far.hear("read_at")
    return {
        "wire_gbps": done["wire_bytes"] * 8e-9 / (read["read_at"] - sent["began"]),
        "effective_gbps": tokens * TOKEN_BYTES * 8e-9 / (done["done_at"] - sent["began"]),
        "resent_share": sent["resent_bytes"] / sent["sent_bytes"],
    }


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    effective = [run["effective_gbps"] for run in runs]
    return {
        **{name: median(run[name] for run in runs) for name in runs[0]},
        "effective_spread_gbps": [min(effective), max(effective)],
    }


def _theirs(
    lab: Lab,
    sizes_mib: tuple[int, ...],
    repeats: int,
    wanted: bool,
    tell: Callable[[str], None],
) -> dict[int, dict[str, Any]]:
    """By size: the best of iperf3, and Mooncake; null where they were left out."""
    if not wanted:
        return {size: {"iperf3_gbps": None, "mooncake_gbps": None} for size in sizes_mib}
    streams = rivals.iperf3(lab, tell)
    took = rivals.mooncake(lab, tuple(size << 20 for size in sizes_mib), repeats, tell)
    return {
        size: {
            "iperf3_gbps": max(streams.values()),
            "iperf3": streams,
            "mooncake_gbps": (size << 20) * 8e-9 / median(took[size << 20]),
        }
        for size in sizes_mib
    }
