"""Coding outside the event loop: threads, the choice of a codec per piece, and free cores."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, thread_time

import psutil
from zlib_ng import zlib_ng

from transport.base import Slice, StreamId
from transport.codecs.choose import choose
from transport.codecs.table import encode_slice
from transport.codecs.warm import warm
from transport.stream.frames import Data, Frame, FrameError
from transport.stream.framing import encode

THREADS = max(2, min(4, os.cpu_count() or 1))
_LOOK_EVERY_S = 1.0


class FreeCores:
    """How many cores coding may use: those that idle, and those that coding keeps busy itself.

    `busy_share`: how much of all `cores` was used since it was asked last; it is first asked here.
    """

    def __init__(self, cores: int, busy_share: Callable[[], float], now: float) -> None:
        self._cores = cores
        self._busy_share = busy_share
        self._looked_at = now
        self._coding_s = 0.0
        self._lock = threading.Lock()
        self._free = float(cores)
        busy_share()

    def coded(self, seconds: float) -> None:
        """A thread has coded for so long."""
        with self._lock:
            self._coding_s += seconds

    def look(self, now: float) -> float:
        """The cores, as of the last second or so."""
        passed_s = now - self._looked_at
        if passed_s >= _LOOK_EVERY_S:
            with self._lock:
                ours, self._coding_s = self._coding_s / passed_s, 0.0
            idle = self._cores * (1.0 - self._busy_share())
            self._free = min(self._cores, idle + ours)
            self._looked_at = now
        return self._free


class Coder:
    """Codes pieces in `THREADS` threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kv-encode")
        self._cores = FreeCores(
            os.cpu_count() or 1, lambda: psutil.cpu_percent(None) / 100.0, monotonic()
        )
        self._pool.submit(warm)  # now, rather than while a first request waits

    async def code(
        self, stream: StreamId, piece: Slice, policy: str, goodput_bytes_per_s: float | None
    ) -> Data:
        """A frame of `piece`, by the codec that is fastest now. Raises ValueError."""
        free_cores = self._cores.look(monotonic())
        codec = choose(policy, goodput_bytes_per_s=goodput_bytes_per_s, free_cores=free_cores)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._coded, stream, piece, codec)

    def close(self) -> None:
        """Take no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _coded(self, stream: StreamId, piece: Slice, codec: str) -> Data:
        began = thread_time()
        data = encode_slice(stream, piece, codec)
        # Here, in a thread: the loop would take it otherwise.
        data = replace(data, body_crc=zlib_ng.crc32(data.body))
        check(data)
        self._cores.coded(thread_time() - began)
        return data


def check(frame: Frame) -> None:
    """A frame that cannot be written is its caller's mistake, and no connection should break.

    Raises ValueError.
    """
    try:
        encode(frame)
    except FrameError as error:
        raise ValueError(str(error)) from error
