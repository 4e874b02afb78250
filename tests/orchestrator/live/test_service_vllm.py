"""The real service with a vLLM in every role: three of them, two sites, an emulated line.

Minutes, and 6 GB: run by `make test-vllm`, and skipped where there is no vLLM.
"""

import functools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from ruamel.yaml import YAML

from benchmarks.equality import Verdict, compare
from benchmarks.service import Served, serving, stop
from orchestrator.topology.packaged import packaged_topology
from tests.orchestrator.live.live_service import (
    SECRET,
    WAIT_S,
    Race,
    Streamed,
    all_free,
    all_up,
    body_of,
    legs,
    prompts,
    stream,
    until,
)
from tests.workers.engines.vllm.live_rig import metric, vllm_python
from workers.engines.vllm.load import own_pools
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(1500)

COMPUTE, RELAY, MAIN = WORKERS = ("hami/compute/0", "hami/relay/0", "shenzhen/memory/0")
EARLY, TAKEN_OVER = 3, 24  # as in test_service
START_S = 900.0
SERVER = "vllm.entrypoints.openai.api_server"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The shipped topology on a line wide enough for a busy machine; prefill keeps a store."""
    python, folder = vllm_python(), tmp_path_factory.mktemp("vllm")
    yaml = YAML()
    content = yaml.load(packaged_topology("laptop-vllm"))
    for site in content["sites"].values():
        for pool in site["pools"].values():
            pool["vllm"]["python"] = python
    compute = content["sites"]["hami"]["pools"]["compute"]
    compute["kv_tokens"] = 2048  # what was computed before 2048 tokens is the store's
    compute["kv_store"] = {"dram": "256MiB"}
    content["links"][0]["bandwidth"] = "100Mbps"
    yaml.dump(content, folder / "topology.yaml")
    logs = ("--logs", str(folder))
    environment = {SECRET_ENV: SECRET}
    with serving(
        folder / "topology.yaml", *logs, timeout_s=START_S, environment=environment
    ) as service:
        yield service


@pytest.fixture
def race(served: Served) -> Iterator[Race]:
    """All are up before the test; line and relay are as usual again after it."""
    until(lambda: all_up(served), "all workers are up", START_S)
    race = Race(served, RELAY)
    yield race
    race.end()


def vllm_of(served: Served, worker: str) -> psutil.Process:
    """The server that a worker has started."""
    children = psutil.Process(served.worker(worker)["pid"]).children()
    (vllm,) = [child for child in children if SERVER in child.cmdline()]
    return vllm


def held_by(vllm: psutil.Process) -> float:
    """The share of its KV blocks that a vLLM says are in use, and its requests."""
    (uds,) = [part[6:] for part in vllm.cmdline() if part.startswith("--uds=")]
    transport = httpx.HTTPTransport(uds=uds)
    with httpx.Client(base_url="http://vllm", transport=transport, timeout=60.0) as http:
        return metric(http, "vllm:kv_cache_usage_perc") + metric(http, "vllm:num_requests_running")


def settled(served: Served, when: str) -> None:
    """Nothing is held by a worker, nor by its vLLM."""
    vllms = [vllm_of(served, worker) for worker in WORKERS]
    free = until(lambda: all_free(served), f"all workers' KV free {when}", 30.0)
    inside = until(lambda: not any(map(held_by, vllms)), f"every vLLM's KV free {when}", 30.0)
    print(f"{when}: free after {free:.2f} s, in every vLLM after {inside:.2f} s more")


def relayed(served: Served, race: Race, prompt: list[int], **fields: object) -> Streamed:
    """As in test_service: the relay tells the first tokens, main takes over, both go on."""

    def steer(count: int) -> None:
        if count == EARLY:
            race.hold_relay()
            race.usual_line()
        elif count == TAKEN_OVER:
            race.end()

    race.begin()
    return stream(served, prompt, on_token=steer, pdd_route="relay", **fields)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"]
)
def test_every_route_gives_the_same_tokens(
    served: Served, race: Race, sampling: dict[str, object]
) -> None:
    prompt, fields = next(prompts(1, 140)), {**sampling, "max_tokens": 96}
    local = stream(served, prompt, pdd_route="local", cache_salt=f"local{sampling}", **fields)
    assert local.error is None
    assert local.told["route"] == "local"
    for handoff in ("auto", "one-shot", "catch-up"):
        salt = f"{handoff}{sampling}"
        relay = relayed(served, race, prompt, pdd_handoff=handoff, cache_salt=salt, **fields)
        race.end()
        assert relay.error is None
        assert relay.told["relay_tokens"] > 0
        assert relay.told["handoff_index"] is not None, "main never took over"
        assert compare(relay.ids, local.ids, local.told["margins"]) is not Verdict.DIFFERENT
    settled(served, "after all routes")


def test_what_vllm_computed_comes_back_from_the_store(served: Served, race: Race) -> None:
    """Offload, hit, reload; the worker's own pool has forgotten it by then."""
    first, *others = prompts(4, 900)

    def ask(prompt: list[int]) -> tuple[list[int], int]:
        body = body_of(served, prompt, max_tokens=8, stream=False, pdd_route="direct")
        answered = httpx.post(f"{served.url}/completions", json=body, timeout=WAIT_S)
        told = answered.raise_for_status().json()
        details = told["usage"].get("prompt_tokens_details") or {}
        return told["pdd"]["token_ids"], details.get("cached_tokens", 0)

    ids, found = ask(first)
    assert found == 0
    for other in others:
        ask(other)
    again, found = ask(first)
    assert (again, found) == (ids, 896)
    told = httpx.get(f"{served.base}/metrics", timeout=30.0).text
    hits = [line for line in told.splitlines() if line.startswith("pdd_store_hits_total{")]
    assert any(float(line.rsplit(" ", 1)[1]) > 0 for line in hits), "it was not from the store"
    settled(served, "after the store")


@pytest.mark.parametrize("phase", ["prefill", "transfer", "after the handoff"])
def test_a_client_that_leaves_frees_the_blocks_of_every_vllm(
    served: Served, race: Race, phase: str
) -> None:
    length = 1800 if phase == "prefill" else 140
    body = body_of(
        served, next(prompts(1, length)), max_tokens=200, cache_salt=phase, pdd_route="relay"
    )
    race.begin()
    if phase == "prefill":
        host, port = served.base.removeprefix("http://").split(":")
        request = httpx.Request("POST", f"{served.url}/completions", json=body)
        head = "".join(f"{k}: {v}\r\n" for k, v in request.headers.items())
        vllm = vllm_of(served, COMPUTE)
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
            until(lambda: held_by(vllm) > 0, "the prefill has begun", 30.0)
    else:
        with httpx.stream("POST", f"{served.url}/completions", json=body, timeout=WAIT_S) as answer:
            lines, chunks = answer.iter_lines(), 0
            while chunks < EARLY:
                chunks += next(lines).startswith("data: {")
            if phase == "after the handoff":
                race.hold_relay()
                race.usual_line()
                while chunks < TAKEN_OVER:
                    chunks += next(lines).startswith("data: {")
            race.end()  # a relay that is held still does not say what it holds
            assert not all_free(served), "nothing was held: the test tests nothing"
    race.end()
    settled(served, f"left in {phase}")


def kill(served: Served, race: Race, worker: str) -> None:
    """SIGKILL the worker's vLLM, all of it; wait until the gateway knows."""
    vllm, pid = vllm_of(served, worker), served.worker(worker)["pid"]
    os.killpg(vllm.pid, signal.SIGKILL)

    def noticed() -> bool:
        told = served.worker(worker)
        return bool(told["state"] != "up" or told["pid"] != pid)

    until(noticed, f"the gateway knows that the vLLM of {worker} is lost", 30.0)
    race.end()


def at_once(served: Served, race: Race, victim: str, count: int) -> None:
    if count == EARLY:
        kill(served, race, victim)


def after_the_handoff(served: Served, race: Race, victim: str, count: int) -> None:
    if count == EARLY:
        race.hold_relay()
        race.usual_line()
    elif count == TAKEN_OVER:
        kill(served, race, victim)


def all_there(served: Served, result: Streamed, reference: Streamed) -> None:
    assert result.error is None
    assert result.done
    margins = reference.told["margins"]
    assert compare(result.ids, reference.ids, margins) is not Verdict.DIFFERENT
    assert result.told["recoveries"] >= 1, "the kill came too late to matter"
    back = until(lambda: all_up(served), "the killed vLLM is back", START_S)
    print(f"its worker is back after {back:.0f} s")
    settled(served, "after the kill")


@pytest.mark.parametrize(
    ("victim", "strike"),
    [(RELAY, at_once), (MAIN, after_the_handoff)],
    ids=["relay", "main"],
)
def test_a_killed_vllm_costs_no_token(
    served: Served, race: Race, victim: str, strike: Callable[..., None]
) -> None:
    prompt, tokens = next(prompts(1, 200)), 100
    reference = stream(
        served, prompt, pdd_route="local", max_tokens=tokens, cache_salt=f"ref {victim}"
    )
    race.begin()
    result = stream(
        served,
        prompt,
        on_token=functools.partial(strike, served, race, victim),
        pdd_route="relay",
        max_tokens=tokens,
        cache_salt=victim,
    )
    all_there(served, result, reference)


def test_a_vllm_killed_during_prefill_costs_no_token(served: Served, race: Race) -> None:
    prompt, tokens = next(prompts(1, 1800)), 40
    reference = stream(served, prompt, pdd_route="local", max_tokens=tokens, cache_salt="ref dies")
    race.begin()

    def strike() -> None:
        until(lambda: legs(served, COMPUTE) > 0, "the prefill has begun", 30.0)
        kill(served, race, COMPUTE)

    striking = threading.Thread(target=strike)
    striking.start()
    result = stream(served, prompt, pdd_route="relay", max_tokens=tokens, cache_salt="dies")
    striking.join(WAIT_S)
    all_there(served, result, reference)


def test_nothing_of_it_is_left_when_the_service_ends(served: Served) -> None:
    """The last: the guards end every vLLM and remove the pools, whatever became of the workers."""
    until(lambda: all_up(served), "all workers are up", START_S)
    vllms = [vllm_of(served, worker) for worker in WORKERS]
    sockets = [
        Path(part[6:]) for vllm in vllms for part in vllm.cmdline() if part.startswith("--uds=")
    ]
    assert all(place.parent == own_pools() and place.exists() for place in sockets)
    assert stop(served.process) == 0
    until(lambda: not any(vllm.is_running() for vllm in vllms), "every vLLM has ended", 60.0)
    left = [path for place in sockets for path in (place, place.with_suffix("")) if path.exists()]
    until(lambda: not any(path.exists() for path in left), "pools and sockets are gone", 30.0)
