"""A running service whose roles follow the world: planned at first, then a lost site, a weak line.

Two sites with simulated engines and an emulated line, and clients that ask all the time.
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

pytestmark = pytest.mark.timeout(300)

# Near prefills three times as fast, far decodes three times as fast; a prompt's KV is 4.6 MB.
TOPOLOGY = """\
model: smollm2-135m
sites:
  near:
    pools:
      compute: {chip: cpu, count: 2, instances: 2, engine: simulated,
                simulate: {prefill_tokens_per_s: 400, step: 60ms}}
  far:
    pools:
      memory: {chip: cpu, count: 2, instances: 2, engine: simulated,
               simulate: {prefill_tokens_per_s: 130, step: 20ms}}
links: [{between: [near, far], delay: 10ms, bandwidth: 200Mbps, emulate: true}]
gateway: {site: far}
slo: {ttft: 4s, tpot: 80ms}
plan: {prompt: 200, output: 40}
replan: {every: 1s, dwell: 4s}
"""
PROMPT, OUTPUT = 200, 40
WORKERS = ("far/memory/0", "far/memory/1", "near/compute/0", "near/compute/1")
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
def served(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[Served]:
    topology = tmp_path_factory.mktemp("topology") / "two-sites.yaml"
    topology.write_text(TOPOLOGY, encoding="utf-8")
    told: list[str] = []
    options = ("--logs", str(logs))
    with serving(topology, *options, environment={SECRET_ENV: SECRET}, tell=told.append) as service:
        assert "planned: near/compute: 2 prefill" in told
        assert "planned: far/memory: 2 main" in told
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
        until(lambda: kill(served, "near") or ["prefill"] in roles(served)[:2], "roles", 90.0)
        tell("a far worker prefills")
        until(clients.more(3), "answers while the near site is away")
        until(lambda: all_up(served), "the near site is back", 90.0)
        until(clients.more(5), "answers of both sites")
        tell("the near site is back, the line drops to a tenth")
        asyncio.run(weaken(served, 2.5e6))
        until(lambda: ["main"] in roles(served)[2:], "a near worker decodes", 90.0)
        assert ["prefill"] in roles(served)[2:]
        tell("a near worker decodes")
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
    assert any("site near is lost" in reason for reason in reasons)
    assert any("line near-far gives" in reason for reason in reasons)
