"""A running service that changes under 64 streams: a pool added, a site drained, a worker renewed.

Simulated engines, on the real launcher: Ray, agents, worker processes, the command line.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.service import Served, serving
from tests.orchestrator.live.live_service import SECRET, prompts, until
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(900)

STREAMS, OUTPUT = 64, 60
POOL = "{chip: cpu, engine: simulated, roles: [prefill, main], slots: 64, kv_tokens: 32768"
SPEED = "simulate: {prefill_tokens_per_s: 20000, step: 50ms}}"
FILE = f"""
model: smollm2-135m
sites:
  hami:
    pools:
      p: {POOL}, {SPEED}
  shenzhen:
    pools:
      m: {POOL}, count: 2, instances: 2, {SPEED}
links:
  - {{between: [hami, shenzhen], delay: 5ms, bandwidth: 1Gbps, emulate: true}}
gateway: {{site: shenzhen}}
"""
ADDED = f"      extra: {POOL}, {SPEED}\n"


class Streams:
    """64 clients, each of which asks for its own prompt again and again and reads the stream."""

    def __init__(self, served: Served) -> None:
        self.failures: list[str] = []
        self.open = 0
        self._served = served
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._told: dict[int, set[tuple[int, ...]]] = {i: set() for i in range(STREAMS)}
        self._asked = list(prompts(STREAMS, 60))
        self.answers = 0
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(STREAMS)]
        for thread in self._threads:
            thread.start()

    def more(self, answers: int) -> None:
        """Wait for so many more."""
        goal = self.answers + answers
        until(lambda: self.answers >= goal or bool(self.failures), f"{answers} answers")

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def different(self) -> list[int]:
        """Clients who were not told the same each time."""
        return [i for i, told in self._told.items() if len(told) != 1]

    def _ask(self, number: int) -> None:
        body = {
            "model": self._served.model,
            "prompt": self._asked[number],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "pdd_timings": True,
            "pdd_token_ids": True,
        }
        with httpx.Client(base_url=self._served.url, timeout=60.0, trust_env=False) as http:
            while not self._stop.is_set():
                try:
                    with http.stream("POST", "/completions", json=body) as answer:
                        with self._lock:
                            self.open += 1
                        text = answer.read().decode()
                    told = _ids(text) if answer.status_code == 200 else ()
                except httpx.TransportError as error:
                    text, told = repr(error), ()
                with self._lock:
                    self.open -= 1
                    self.answers += 1
                    self._told[number].add(told)
                    if len(told) != OUTPUT or not text.endswith("data: [DONE]\n\n"):
                        self.failures.append(text[-300:])


def _ids(text: str) -> tuple[int, ...]:
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: {")]
    return tuple(json.loads(lines[-1]).get("pdd", {}).get("token_ids", ()))


class Watching:
    """`pdd status --watch -o json` beside the service: what it says."""

    def __init__(self, served: Served) -> None:
        self.changes: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [*COMMAND, "status", "--watch", "-o", "json", "--url", served.base],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.changes.append(json.loads(line))

    def states(self, name: str) -> list[str | None]:
        """The states through which something went, None: it was gone."""
        found = []
        for change in self.changes:
            after = change["after"]
            if change["name"] == name and (after is None or "state" in after):
                found.append(None if after is None else after["state"])
        return found

    def pids(self, name: str) -> list[str]:
        told = [c["after"] or {} for c in self.changes if c["name"] == name]
        return [after["pid"] for after in told if "pid" in after]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


COMMAND = [sys.executable, "-m", "orchestrator.cli.main"]


def pdd(served: Served, *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments, "--url", served.base], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def served(file: Path, told: list[str], tmp_path: Path) -> Iterator[Served]:
    with serving(
        file, "--logs", str(tmp_path / "logs"), environment={SECRET_ENV: SECRET}, tell=told.append
    ) as service:
        yield service


def hang_up(served: Served) -> None:
    served.process.send_signal(signal.SIGHUP)


def test_it_changes_under_64_streams_and_not_one_fails(
    served: Served, file: Path, told: list[str]
) -> None:
    began = time.monotonic()
    watching, streams = Watching(served), Streams(served)

    def tell(what: str) -> None:
        now = time.monotonic() - began
        print(f"{now:.1f} s: {what}; {streams.answers} answers, {streams.open} open", flush=True)

    def state(kind: str, name: str) -> str | None:
        there = {of["name"]: of["state"] for of in served.status()[kind]}
        return there.get(name)

    try:
        streams.more(STREAMS)
        tell("all were answered once")
        file.write_text(FILE.replace("  shenzhen:\n    pools", ADDED + "  shenzhen:\n    pools"))
        hang_up(served)
        until(lambda: state("workers", "hami/extra/0") == "up", "the pool is there", 180.0)
        tell("a pool was added")
        assert streams.open > STREAMS / 2
        assert pdd(served, "drain", "hami") == "hami drains: hami/extra/0, hami/p/0"
        until(lambda: state("sites", "hami") == "drained", "hami is drained", 180.0)
        tell("a site was drained")
        assert streams.open > STREAMS / 2
        before = served.worker("shenzhen/m/0")["pid"]
        assert pdd(served, "drain", "shenzhen/m/0").startswith("shenzhen/m/0 drains; another")
        until(
            lambda: (
                state("workers", "shenzhen/m/0") == "up"
                and served.worker("shenzhen/m/0")["pid"] != before
            ),
            "another process has its place",
            180.0,
        )
        tell("a worker was replaced")
        streams.more(STREAMS)
        tell("all were answered again")
        pdd(served, "drain", "hami", "--undo")
        until(lambda: state("workers", "hami/extra/0") == "up", "hami is back", 180.0)
        tell("the site is back")
        file.write_text(FILE.replace("site: shenzhen}", "site: hami}"))
        hang_up(served)
        refused = f"{file} is not taken on: gateway: cannot change while it runs"
        until(lambda: refused in told, "it is refused", 180.0)
        until(lambda: watching.states("site hami")[-1] == "up", "the watch has told it all", 180.0)
    finally:
        streams.end()
        watching.end()
    assert streams.failures == []
    assert streams.different() == [], "tokens are what they were before"
    assert f"{file}: sites.hami.pools.extra: added, 1 worker, main and prefill" in told
    assert watching.states("site hami") == ["up", "draining", "drained", "lost", "up"] or (
        watching.states("site hami") == ["up", "draining", "drained", "up"]
    )
    assert watching.states("worker hami/extra/0")[:1] == ["up"]
    assert "draining" in watching.states("worker shenzhen/m/0")
    assert len(set(watching.pids("worker shenzhen/m/0")) - {"none"}) == 2
    assert watching.states("gateway") == ["ready"]
