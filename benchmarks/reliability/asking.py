"""A client of the running service that checks every token it is told."""

import asyncio
import json
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from benchmarks.service import Served
from workers.engines.simulated.model import SimulatedModel, Wish, choose, grow_history

HANGS_S = 150.0  # longer than any deadline of a request: beyond it nobody answers any more
WHOLE = "whole"
HANGS = "hangs"
WRONG = "wrong"
CUT_OFF = "cut off"
LEFT = "left"
REFUSED = (429, 503)


@dataclass(kw_only=True)
class Answer:
    """What came of one request. `outcome`: WHOLE, HANGS, WRONG, CUT_OFF, LEFT or an error's code.

    Cut off is what ends without a word of an end, or never begins.

    Times are of the client's clock, in seconds; `token_times` since it asked, one for each message
    with text. `status` is None where none came.
    """

    outcome: str = CUT_OFF
    status: int | None = None
    asked_at: float = 0.0
    ended_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    retry_after: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended_at - self.asked_at

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a token, that before the first one included."""
        times = [0.0, *self.token_times]
        return max((b - a for a, b in pairwise(times)), default=0.0)


class Asker:
    """Asks a service whose engines are simulated: what they must answer is known beforehand."""

    def __init__(self, served: Served, model: SimulatedModel) -> None:
        self._url, self._name, self._model = served.url, served.model, model
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=HANGS_S, trust_env=False, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        prompt: Sequence[int],
        tokens: int,
        *,
        key: str | None = None,
        leave_s: float | None = None,
        heard: Callable[[int], None] = lambda count: None,
        **fields: Any,
    ) -> Answer:
        """Stream one answer to its end, or leave after `leave_s`. Never raises for what comes.

        `key`: a client's; `heard` is told how many messages with text have come.
        """
        loop = asyncio.get_running_loop()
        answer = Answer(asked_at=loop.time())
        patience = HANGS_S if leave_s is None else leave_s
        try:
            async with asyncio.timeout(patience):
                headers = {} if key is None else {"authorization": f"Bearer {key}"}
                await self._stream(answer, prompt, tokens, heard, headers, fields)
        except TimeoutError:
            answer.outcome = HANGS if leave_s is None else LEFT
        except httpx.TransportError:
            answer.outcome = CUT_OFF
        answer.ended_at = loop.time()
        return answer

    async def _stream(
        self,
        answer: Answer,
        prompt: Sequence[int],
        tokens: int,
        heard: Callable[[int], None],
        headers: dict[str, str],
        fields: dict[str, Any],
    ) -> None:
        body = {
            "model": self._name,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "pdd_timings": True,
            "pdd_token_ids": True,
            **fields,
        }
        loop = asyncio.get_running_loop()
        done, error = False, None
        url = f"{self._url}/completions"
        async with self._http.stream("POST", url, json=body, headers=headers) as came:
            answer.status = came.status_code
            answer.retry_after = came.headers.get("retry-after")
            if came.status_code != 200:
                answer.outcome = str(json.loads(await came.aread())["error"]["code"])
                return
            async for line in came.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                error = chunk.get("error", error)
                answer.told = chunk.get("pdd", answer.told)
                if any(choice["text"] for choice in chunk.get("choices", ())):
                    answer.token_times.append(loop.time() - answer.asked_at)
                    heard(len(answer.token_times))
        if not done:
            answer.outcome = CUT_OFF
        elif error is not None:
            answer.outcome = str(error["code"])
        else:
            right = answer.told.get("token_ids") == expected(self._model, prompt, tokens)
            answer.outcome = WHOLE if right else WRONG


def expected(model: SimulatedModel, prompt: Sequence[int], tokens: int) -> list[int]:
    """The only right answer to a greedy request without stop ids."""
    hashes: array[int] = array("Q")
    grow_history(hashes, list(prompt))
    ids: list[int] = []
    for place in range(tokens):
        ids.append(choose(model, Wish(hashes[-1], place, 0, (), 0)).token)
        grow_history(hashes, ids[-1:])
    return ids


def make_prompt(rng: random.Random, length: int) -> list[int]:
    """Of ordinary token ids; no two begin alike."""
    return [rng.randrange(1000, 20_000) for _ in range(length)]
