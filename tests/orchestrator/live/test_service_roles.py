"""A running service whose roles follow the world: planned at first, then a lost site, a weak line.

The topology is the shipped one of two sites with simulated engines; clients ask all the time.
"""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.service import Served, serving
from tests.orchestrator.live.live_service import SECRET, all_up, prompts, until
from transport.emulator.control import LineControl
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(400)

PROMPT, OUTPUT = 200, 40  # the topology's usual request
WORKERS = ("shenzhen/memory/0", "shenzhen/memory/1", "hami/compute/0", "hami/compute/1")
CLIENTS = 3


class Clients:
    """They ask one request after the other. `done`: how many had a whole answer."""

    def __init__(self, served: Served) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._served = served
        self._stop = threading.Event()
        self._prompts = prompts(100_000, PROMPT)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> Callable[[], bool]:
        """Whether so many more than now have had their answer."""
        goal = self.done + count
        return lambda: self.done >= goal or bool(self.failures)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._served.url, timeout=60.0, trust_env=False) as http:
            while not self._stop.is_set():
                with self._lock:
                    prompt = next(self._prompts)
                body = {"model": self._served.model, "prompt": prompt, "max_tokens": OUTPUT}
                answered = http.post("/completions", json=body | {"ignore_eos": True})
                told = answered.json()
                tokens = told.get("usage", {}).get("completion_tokens")
                with self._lock:
                    if answered.status_code == 200 and tokens == OUTPUT:
                        self.done += 1
                    else:
                        self.failures.append(f"{answered.status_code} {answered.text[:200]}")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def served(root: Path, logs: Path) -> Iterator[Served]:
    topology = root / "configs" / "topologies" / "laptop-planned.yaml"
    told: list[str] = []
    options = ("--logs", str(logs))
    with serving(topology, *options, environment={SECRET_ENV: SECRET}, tell=told.append) as service:
        assert "planned: hami/compute: 2 prefill" in told
        assert "planned: shenzhen/memory: 2 main" in told
        yield service


def roles(served: Served) -> list[list[str]]:
    """Of each of WORKERS."""
    return [served.worker(name)["roles"] for name in WORKERS]


def decisions(logs: Path) -> list[str]:
    lines = (logs / "gateway.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "planned anew" in line]


def kill(served: Served, site: str) -> None:
    """Those of its workers that are up."""
    for worker in served.status()["workers"]:
        if worker["site"] == site and worker["state"] == "up":
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker["pid"], signal.SIGKILL)


async def weaken(served: Served, rate_bytes_per_s: float) -> None:
    port = int(served.status()["links"][0]["emulator"].rpartition(":")[2])
    control = await LineControl.connect(port)
    try:
        (name,) = await control.stats()
        await control.set(name, rate_bytes_per_s=rate_bytes_per_s)
    finally:
        await control.close()


def test_roles_follow_a_lost_site_and_a_weak_line_and_no_request_fails(
    served: Served, logs: Path
) -> None:
    assert roles(served) == [["main"], ["main"], ["prefill"], ["prefill"]]
    clients = Clients(served)
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:.1f} s: {what}; {clients.done} answers", flush=True)

    try:
        until(clients.more(5), "the first answers")
        # They are started again as often.
        until(lambda: kill(served, "hami") or ["prefill"] in roles(served)[:2], "roles", 120.0)
        tell("a worker of Shenzhen prefills")
        until(clients.more(3), "answers while Hami is away")
        until(lambda: all_up(served), "Hami is back", 120.0)
        until(clients.more(5), "answers of both sites")
        tell("Hami is back, the line drops to a tenth")
        asyncio.run(weaken(served, 2.5e6))
        until(lambda: ["main"] in roles(served)[2:], "a worker of Hami decodes", 120.0)
        assert ["prefill"] in roles(served)[2:]
        tell("a worker of Hami decodes")
        until(clients.more(5), "answers of each site")
    finally:
        clients.stop()
        print(*decisions(logs), sep="\n")
    assert clients.failures == []
    changed = served.status()["counts"]["roles_changed"]
    assert changed >= 2
    metrics = httpx.get(f"{served.base}/metrics", timeout=10.0, trust_env=False).text
    assert f'pdd_core_events_total{{event="roles_changed"}} {changed:.1f}' in metrics
    reasons = [json.loads(line)["decision"] for line in decisions(logs)]
    assert any("site hami is lost" in reason for reason in reasons)
    assert any("line hami-shenzhen gives" in reason for reason in reasons)
