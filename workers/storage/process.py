"""A site's store as a process. `python -m workers.storage.process FILE`."""

import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from transport.memory import keep_freed_memory
from transport.tls import TlsError, TlsFiles, load_contexts
from workers.service.config import SECRET_ENV, StartFailed, read_config
from workers.service.front import listen
from workers.service.logs import log_to
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig

PARENT_CHECK_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProcessConfig:
    """A store: whose it is, its port, its tiers. With `tls` it takes its site's connections only.

    The deployment's secret comes through the environment (SECRET_ENV).
    """

    name: str
    site: str
    pool: str  # whose workers save to it
    host: str = "127.0.0.1"
    port: int
    tiers: StoreConfig
    tls: TlsFiles | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class StoreProcess:
    """One store's life in this process. `run` blocks; `stop` is for other threads."""

    def __init__(self, config: StoreProcessConfig) -> None:
        self._config = config
        self._stopping = threading.Event()

    def run(self) -> int:
        """Serve until it is stopped, or its parent is gone; the exit code. Raises StartFailed."""
        config, parent = self._config, os.getppid()
        secret = os.environ.get(SECRET_ENV)
        if not secret:
            raise StartFailed(f"{SECRET_ENV} is not set: a store needs the deployment's secret")
        try:
            tls = (
                None
                if config.tls is None
                else load_contexts(config.tls, config.site, [config.site]).server
            )
            listening = listen(config.host, config.port)
        except TlsError as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(f"port {config.port} on {config.host}: {error.strerror}") from error
        try:
            store = BlockStore(config.tiers)
        except OSError as error:
            raise StartFailed(f"kv_store: {error}") from error
        server = StoreServer(store, listening, secret, site=config.site, tls=tls)
        server.start()
        log.info("serving", extra={"port": config.port, **store.account()["counts"]})
        while not self._stopping.wait(PARENT_CHECK_S) and os.getppid() == parent:
            pass
        server.close()
        store.close()
        log.info("stopped")
        return 0

    def stop(self) -> None:
        """Write what waits, and end."""
        self._stopping.set()


def main() -> int:
    """Run the store that the file named on the command line describes."""
    try:
        config = read_config(Path(sys.argv[1]), StoreProcessConfig)
        log_to(config.name, None)
        keep_freed_memory()
        process = StoreProcess(config)
        signal.signal(signal.SIGTERM, lambda *_: process.stop())
        return process.run()
    except StartFailed as error:
        print(f"store cannot start: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
