"""The ports of a site's workers: declared ones shared out, others chosen among free ones."""

import dataclasses
import random
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence

from workers.service.config import WorkerConfig

# Ports outside the range that the kernel gives to outgoing connections, so that nobody takes one
# between its choice and the worker's start, or while a worker restarts.
PORTS = range(20000, 32000)


class CannotFollow(Exception):
    """The site cannot have the workers that somebody wants it to have; one line."""


class Ports:
    """Which ports each worker has, by its name.

    A worker that is placed again gets the ports that it had, as far as nobody listens on them:
    whoever reaches it through a forward needs no other one.
    """

    def __init__(self) -> None:
        self._given: dict[str, tuple[int, int]] = {}

    def give(self, config: WorkerConfig) -> tuple[int, int]:
        """A worker's ports, HTTP and KV. Raises OSError when all are taken."""
        others = {p for name in self._given if name != config.name for p in self._given[name]}
        had = self._given.get(config.name, (0, 0))
        http = config.http_port or self._choose(config.host, others, had[0])
        kv = config.kv_port or self._choose(config.host, others | {http}, had[1])
        self._given[config.name] = http, kv
        return http, kv

    def take_back(self, name: str) -> None:
        """There is no such worker any more."""
        self._given.pop(name, None)

    def _choose(self, host: str, used: Collection[int], had: int) -> int:
        if had and had not in used and _is_free(host, had):
            return had
        return free_port(host, used)


def on_free_ports(
    workers: Sequence[WorkerConfig], before: Mapping[str, WorkerConfig]
) -> Iterator[WorkerConfig]:
    """Those that were there keep their ports; the others get the declared ports that are left.

    Raises CannotFollow where too few are.
    """
    ports = [port for worker in workers for port in (worker.http_port, worker.kv_port)]
    taken = {port for worker in before.values() for port in (worker.http_port, worker.kv_port)}
    left = iter([port for port in ports if port not in taken or not port])
    for worker in workers:
        old = before.get(worker.name)
        http, kv = (
            (next(left, None), next(left, None)) if old is None else (old.http_port, old.kv_port)
        )
        if http is None or kv is None:
            raise CannotFollow(
                f"no port of the site is left for {worker.name} while those that it replaces "
                "still have theirs: first leave the old ones out, then add the new"
            )
        yield dataclasses.replace(worker, http_port=http, kv_port=kv)


def free_port(host: str, used: Collection[int]) -> int:
    """A port nobody listens on now, chosen at random. Raises OSError when all are taken."""
    candidates = list(PORTS)
    random.shuffle(candidates)
    for port in candidates:
        if port not in used and _is_free(host, port):
            return port
    raise OSError(f"no free port in {PORTS.start}-{PORTS.stop - 1} on {host}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
