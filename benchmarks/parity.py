"""Whether the core is a function of what it was told (`pdd bench parity`).

A live service with simulated engines records what its core is told and answers, while mixed
traffic meets the loss of a worker. Fed to a fresh machine, in another process, the record must give
identical answers.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.handoff import ROUTES
from benchmarks.service import Served, serving
from orchestrator.errors import UserError
from orchestrator.lifecycle.parity import Difference, Parity, feed
from orchestrator.live.gateway import load_tokenizer, read_card
from orchestrator.live.journal import read_journal
from orchestrator.live.openai.text import StopWatch
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.state.wire import encode_action, encode_event
from orchestrator.topology.packaged import packaged_topology
from workers.engines.models import ModelError, resolve_model

AT_ONCE = 8
ANSWER_S = 60.0  # without a byte for so long, a request hangs
RESTART_S = 60.0
PATIENCE_S = 0.2  # of the clients that leave early: about a prefill
PROMPT_TOKENS = (4, 24)  # a token is 23 kB of KV, on a line of 10 Mbps
OUTPUT_TOKENS = (16, 120)

KINDS: dict[str, dict[str, Any]] = {
    "streamed": {"stream": True},
    "at once": {},
    "sampled": {"stream": True, "temperature": 0.9, "top_p": 0.9, "seed": -1, "logprobs": 2},
    "two choices": {"n": 2, "temperature": 1.0, "seed": 5},
    "stop strings": {"stream": True, "stop": ["th", "qu", "\n"]},
    "one token": {"max_tokens": 1},
    "leaves": {"stream": True, "max_tokens": 200},
    "leaves early": {"stream": True, "max_tokens": 200},
}
LEAVES_AFTER = 4  # events of the stream


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one client asks; `kind` is a key of KINDS."""

    kind: str
    route: str
    body: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.route}"


def run(journal: Path | None, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """Feed `journal`, or one that is recorded now; `tell` gets a line for each failed request.

    `failed_requests` of a given journal are those that were told of a failure; of a recorded one,
    those whose clients saw no complete answer. A record that differs is kept and its place told.
    """
    if journal is not None:
        parity = feed_journal(journal)
        return _result(parity, parity.failed)
    folder = Path(tempfile.mkdtemp(prefix="pdd-parity-"))
    keep = False
    try:
        recorded = folder / "journal"
        failures = record(recorded, tell=tell)
        for failure in failures:
            tell(failure)
        parity = feed_journal(recorded)
        keep = parity.first_difference is not None
        if keep:
            tell(f"the journal is kept: {recorded}")
        return _result(parity, len(failures))
    finally:
        if not keep:
            shutil.rmtree(folder)


# ------------------------------------------------------------ feeding


def feed_journal(path: Path) -> Parity:
    """Feed a journal to a fresh machine with its own model's stop watch. Raises UserError."""
    header, entries = read_journal(path)
    try:
        directory = resolve_model(header.model)
    except ModelError as error:
        raise UserError(f"{path}: {error}") from error
    card = read_card(header.model, directory)
    vocabulary = Vocabulary(load_tokenizer(header.model, directory), card.stop_ids)
    return feed(header.config, lambda stops: StopWatch(vocabulary, stops), entries)


def _result(parity: Parity, failed: int) -> dict[str, Any]:
    difference = parity.first_difference
    return {
        "events": parity.events,
        "actions": parity.actions,
        "requests": parity.requests,
        "identical": difference is None,
        "first_difference": None if difference is None else _described(difference),
        "failed_requests": failed,
    }


def _described(difference: Difference) -> dict[str, Any]:
    entry = difference.entry
    return {
        "number": difference.number,
        "at": entry.at,
        "event": encode_event(entry.event),
        "recorded": [encode_action(action) for action in entry.actions],
        "answered": [encode_action(action) for action in difference.answered],
        "defect": difference.defect,
    }


# ------------------------------------------------------------ recording


def record(journal: Path, *, tell: Callable[[str], None]) -> list[str]:
    """Serve the simulated laptop under mixed traffic and record it; what failed, a line each."""
    topology = packaged_topology("laptop-simulated")
    with serving(topology, "--record", str(journal), tell=tell) as served:
        return asyncio.run(_traffic(served, asks(served.model), tell))


def asks(model: str) -> list[Ask]:
    """Every kind of request on every route, in an order that mixes them; always the same."""
    draw = random.Random(3)
    routes = {"auto": {"pdd_route": "auto"}, **ROUTES}
    found = []
    for kind, fields in KINDS.items():
        for route, way in routes.items():
            prompt = [draw.randrange(1000, 20_000) for _ in range(draw.randint(*PROMPT_TOKENS))]
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": draw.randint(*OUTPUT_TOKENS),
                "temperature": 0,
                "pdd_timings": "n" not in fields,
                **way,
                **fields,
            }
            found.append(Ask(kind=kind, route=route, body=body))
    draw.shuffle(found)
    return found


async def _traffic(served: Served, asked: Sequence[Ask], tell: Callable[[str], None]) -> list[str]:
    """Two thirds of the requests, with a loss among them; the rest when all workers are back."""
    losing, after = asked[: 2 * len(asked) // 3], asked[2 * len(asked) // 3 :]
    async with httpx.AsyncClient(base_url=served.base, timeout=ANSWER_S, trust_env=False) as http:
        status = (await http.get("/status")).json()
        main = next(w for w in status["workers"] if w["roles"] == ["main"])

        def lose_main() -> None:
            tell(f"killing {main['name']}")
            os.kill(main["pid"], signal.SIGKILL)

        failures = await _clients(http, losing, halfway=lose_main)
        tell(f"waiting for {main['name']}")
        if not await _restarted(http, main):
            return [*failures, f"{main['name']} did not come back"]
        return failures + await _clients(http, after, halfway=lambda: None)


async def _clients(
    http: httpx.AsyncClient, asked: Sequence[Ask], *, halfway: Callable[[], None]
) -> list[str]:
    """Ask all, AT_ONCE at a time; what failed. `halfway` is called while the others ask."""
    waiting = iter(asked)
    failures: list[str] = []
    finished = 0

    async def client() -> None:
        nonlocal finished
        for ask in waiting:
            problem = await _ask(http, ask)
            if problem is not None:
                failures.append(f"{ask.name}: {problem}")
            finished += 1
            if finished == len(asked) // 2:
                halfway()

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return failures


async def _restarted(http: httpx.AsyncClient, killed: dict[str, Any]) -> bool:
    """Wait until the worker is up as another process; False: it took too long."""
    deadline = time.monotonic() + RESTART_S
    while time.monotonic() < deadline:
        status = (await http.get("/status")).json()
        worker = next(w for w in status["workers"] if w["name"] == killed["name"])
        if worker["state"] == "up" and worker["pid"] != killed["pid"]:
            return True
        await asyncio.sleep(0.1)
    return False


async def _ask(http: httpx.AsyncClient, ask: Ask) -> str | None:
    """Ask as the kind of client does; what was wrong with the answer."""
    if ask.kind == "leaves early":
        try:
            await asyncio.wait_for(_read(http, ask), PATIENCE_S)
        except TimeoutError:
            return None
        return "answered before the client could leave"
    try:
        return await _read(http, ask)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__


async def _read(http: httpx.AsyncClient, ask: Ask) -> str | None:
    """Read an answer to its end; what was wrong with it."""
    if not ask.body.get("stream"):
        answer = await http.post("/v1/completions", json=ask.body)
        told = answer.json()
        if answer.status_code != 200:
            return str(told["error"]["message"])
        return _unfinished(told["choices"], ask)
    finished, events = [], 0
    async with http.stream("POST", "/v1/completions", json=ask.body) as answer:
        if answer.status_code != 200:
            return str(json.loads(await answer.aread())["error"]["message"])
        async with aclosing(answer.aiter_lines()) as lines:
            async for line in lines:
                if line == "data: [DONE]":
                    return _unfinished(finished, ask)
                if not line.startswith("data: "):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return str(chunk["error"]["message"])
                finished += [c for c in chunk["choices"] if c["finish_reason"] is not None]
                events += 1
                if ask.kind == "leaves" and events == LEAVES_AFTER:
                    return None
    return "the stream was cut"


def _unfinished(choices: Sequence[dict[str, Any]], ask: Ask) -> str | None:
    """What is missing in the finished `choices`."""
    wanted = ask.body.get("n", 1)
    ended = [c for c in choices if c["finish_reason"] in ("stop", "length")]
    return None if len(ended) == wanted else f"{len(ended)} of {wanted} choices finished"
