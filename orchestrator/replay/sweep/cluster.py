"""A sweep's cells on Ray: a cluster of this machine's cores that lives as long as the sweep."""

import importlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psutil

OBJECT_STORE_BYTES = 100 * 2**20  # cells and figures are small; Ray wants at least 75 MiB
AHEAD = 2  # cells that wait for each core, so that none is idle
HOST = "127.0.0.1"
STARTS = 3  # of Ray, until it is given up
KILLED_S = 10.0  # for what a start has left behind to be gone

Work = TypeVar("Work")
Found = TypeVar("Found")


class ClusterFailed(Exception):
    """Ray did not start."""


class CellFailed(Exception):
    """A cell could not be computed; the text says why."""

    def __init__(self, cell: Any, why: str) -> None:
        super().__init__(why)
        self.cell = cell


class Cluster:
    """Ray, as it stands for a sweep."""

    def __init__(self, ray: Any, jobs: int) -> None:
        self._ray, self._jobs = ray, jobs

    def compute(
        self,
        works: Sequence[Work],
        run: Callable[[Work], Found],
        done: Callable[[Work, Found], None],
    ) -> None:
        """Call `run` with each on a core, and `done` here as each is ready.

        `run` can be pickled, and depends on what it is given alone: if its process dies it is
        called again. Raises CellFailed at the first that fails; the others are dropped.
        """
        ray = self._ray
        task = ray.remote(num_cpus=1)(_call)
        waiting = list(reversed(works))
        under_way: dict[Any, Work] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AHEAD * self._jobs:
                    work = waiting.pop()
                    under_way[task.remote(run, work)] = work
                ready, _ = ray.wait(list(under_way), num_returns=1)
                for ref in ready:
                    work = under_way.pop(ref)
                    done(work, self._answer(work, ref))
        finally:
            for ref in under_way:
                ray.cancel(ref, force=True)

    def _answer(self, work: object, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            raise CellFailed(work, f"{type(error.cause).__name__}: {error.cause}") from error
        except errors.RayError as error:
            raise CellFailed(work, str(error).strip().splitlines()[0]) from error


def _call(run: Callable[[Work], Found], work: Work) -> Found:
    return run(work)


@contextmanager
def local_cluster(jobs: int) -> Iterator[Cluster]:
    """Ray with so many cores of this machine, stopped at the end.

    A process that has Ray already keeps it as it is.
    """
    if "ray" not in sys.modules:
        # Ray reads these once, when it is imported. Nobody else may use the cluster.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    # Only here: it takes a second, and most commands do not need it.
    ray = importlib.import_module("ray")
    # There is no second node. Else Ray takes 127.0.0.1 for "find out my own address", and with any
    # other of the loopback's it listens on all of the machine's.
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False
    if ray.is_initialized():
        yield Cluster(ray, jobs)
        return
    _start(ray, jobs)
    try:
        yield Cluster(ray, jobs)
    finally:
        ray.shutdown()


def _start(ray: Any, jobs: int) -> None:
    """Ray gives itself half a minute to start, which a busy machine may exceed."""
    before = set(_children())
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=jobs,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=HOST,
            )
        except Exception as error:  # Ray raises just that
            ray.shutdown()
            half_started = [child for child in _children() if child not in before]
            for child in half_started:
                child.kill()
            psutil.wait_procs(half_started, KILLED_S)
            if attempt == STARTS:
                raise ClusterFailed(f"Ray did not start: {error}") from error
        else:
            return


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
