"""This machine: cores, memory, files, TLS, clock."""

import ctypes
import os
import platform
import resource
import ssl
import struct

import psutil

from orchestrator.doctor.finding import Finding, State, good_if, ok, size

CORES = 2
MEMORY_BYTES = 6 << 30  # what the default model's three workers and their surroundings need
FILES = 4096  # a client is a file, and so is each connection between workers
CLOCK_ERROR_S = 0.5

# struct timex of <linux/timex.h> on 64-bit machines: maxerror (µs) and status.
_TIMEX = struct.Struct("@24xq8xi")
_TIMEX_BYTES = 256  # the structure is 208 bytes long
_STA_UNSYNC = 0x40


def machine_findings() -> list[Finding]:
    """What the machine itself is like."""
    return [
        ok("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ok("python", platform.python_version()),
        _cores(),
        _memory(psutil.virtual_memory().total, psutil.virtual_memory().available),
        _files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        good_if(
            ssl.HAS_TLSv1_3,
            "tls",
            ssl.OPENSSL_VERSION,
            "it has no TLS 1.3: use a Python with OpenSSL 1.1.1 or later",
            otherwise=State.FAIL,
        ),
        clock_finding(kernel_clock()),
    ]


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return good_if(
        cores >= CORES,
        "cores",
        f"{cores} of {os.cpu_count()} for this process",
        f"give it {CORES} or more: workers, gateway and coding of KV share them",
    )


def _memory(total: int, available: int) -> Finding:
    return good_if(
        total >= MEMORY_BYTES,
        "memory",
        f"{size(total)}, {size(available)} available",
        f"the default topology needs {size(MEMORY_BYTES)}",
    )


def _files(soft: int, hard: int) -> Finding:
    infinite = resource.RLIM_INFINITY
    told = ["unlimited" if limit == infinite else str(limit) for limit in (soft, hard)]
    return good_if(
        soft == infinite or soft >= FILES,
        "open files",
        f"{told[0]}, at most {told[1]}",
        f"ulimit -n {FILES} or more, before pdd serve: each client is a file",
    )


def kernel_clock() -> tuple[bool, float] | None:
    """Whether the kernel's clock is kept in step, and how far off it may be at most, in seconds.

    None: the kernel does not tell.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: only ask
    if libc.adjtimex(buffer) < 0:
        return None
    error_us, status = _TIMEX.unpack_from(buffer.raw)
    return not status & _STA_UNSYNC, error_us / 1e6


def clock_finding(told: tuple[bool, float] | None) -> Finding:
    """How the wall clock is kept."""
    if told is None:
        return ok("clock", "the kernel does not tell whether it is synchronised")
    synchronised, error_s = told
    state = "synchronised" if synchronised else "not synchronised"
    return good_if(
        synchronised and error_s <= CLOCK_ERROR_S,
        "clock",
        f"{state}, at most {error_s:.3g} s off",
        "run chrony or systemd-timesyncd: certificates are checked, and logs of sites compared, "
        "by it",
    )
