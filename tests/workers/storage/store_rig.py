"""A store's process, and clients of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.workers.server_rig import ROOT, SECRET, free_port, wait_until
from transport.tls import TlsFiles, load_contexts
from workers.service.config import SECRET_ENV
from workers.tiers.client import StoreAway, StoreClient


class Store:
    """A process; `files` under `folder`. May be ended and started again on the same port.

    With `tls` it and its client speak TLS, with the site's certificate at both ends.
    """

    def __init__(self, folder: Path, tls: TlsFiles | None = None, **tiers: Any) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.errors = folder / "store.log"
        self._config = folder / "store.json"
        sizes = {"memory_bytes": 64 << 20, "files": str(folder / "files"), "files_bytes": 256 << 20}
        place = {"name": "store", "site": "here", "pool": "test", "port": self.port}
        content = {**place, "tiers": sizes | tiers}
        dialled = None
        if tls is not None:
            content["tls"] = {"ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key)}
            dialled = load_contexts(tls, "here", ["here"]).client
        self._config.write_text(json.dumps(content))
        self.client = StoreClient(self.address, SECRET, site="here", tls=dialled)
        self.start()

    def start(self) -> None:
        with self.errors.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.storage.process", str(self._config)],
                cwd=ROOT,
                env=os.environ | {SECRET_ENV: SECRET},
                stderr=log,
            )

    def up(self) -> "Store":
        wait_until(self._answers)
        return self

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.client.account(time.monotonic() + 10)["counts"]
        return counts

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(20)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()
        try:
            self.client.account(time.monotonic() + 1)
        except StoreAway:
            return False
        return True
