"""How much memory a process takes while something goes on."""

import os
import threading
from pathlib import Path

_LOOK_EVERY_S = 0.01
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Looks at this process's resident memory again and again, in a thread of its own."""

    def __init__(self) -> None:
        self._began = self._most = _resident_bytes()
        self._pause = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self) -> None:
        """Count from now on."""
        self._began = self._most = _resident_bytes()

    @property
    def grown_bytes(self) -> int:
        """The most above what there was at the beginning."""
        return self._most - self._began

    def _look(self) -> None:
        while not self._pause.wait(_LOOK_EVERY_S):
            self._most = max(self._most, _resident_bytes())


def _resident_bytes() -> int:
    return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE
