"""A vLLM of a few lines behind the pool's rules: tokens and KV are a function of the ids before.

It checks what a run is given: KV that is not what it would have computed fails the test.
"""

from collections import deque
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from workers.api.info import EngineInfo, Fingerprint
from workers.engines.vllm.client import Over, Told
from workers.engines.vllm.engine import VllmEngine
from workers.engines.vllm.inside.plan import Run, slots
from workers.engines.vllm.inside.wanted import Wanted
from workers.engines.vllm.pool import PoolShape, SharedPool

LAYERS, VOCAB, BLOCK = 3, 1000, 4


def crc(ids: list[int]) -> int:
    return crc32(np.array(ids, dtype=np.uint32).tobytes())


def next_token(ids: list[int], seed: int = 0) -> int:
    return crc([*ids, seed]) % VOCAB


def say(ids: list[int], count: int, seed: int = 0) -> list[int]:
    """What the model says after `ids`."""
    said = list(ids)
    for _ in range(count):
        said.append(next_token(said, seed))
    return said[len(ids) :]


def kv(ids: list[int], position: int) -> np.ndarray:
    """[layers, 2, 1, 1] uint16: K and V of a position."""
    word = crc(ids[: position + 1])
    values = [[(word >> (layer + 3 * part)) & 0xFFFF for part in range(2)] for layer in range(3)]
    return np.array(values, dtype=np.uint16)[:, :, None, None]


class _Request:
    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.ids = list(body["prompt"])
        self.left = body["max_tokens"]
        self.run = Run.of(body["kv_transfer_params"]["pdd"])
        self.computed = self.run.loadable(len(self.ids), 0)
        text = (body.get("vllm_xargs") or {}).get("pdd")
        self.seed = 0 if text is None else Wanted.of(text).sampling.seed


class FakeVllm:
    """`step` is one of vLLM's; with `steps` off none runs by itself."""

    model = "fake"

    def __init__(self, pool: SharedPool, chunk: int = 8) -> None:
        self._pool = pool
        self._chunk = chunk
        self.lost: str | None = None
        self.steps = True
        self.asked: list[dict[str, Any]] = []
        self.refuse: str | None = None
        self.requests: dict[int, _Request] = {}
        self.news: deque[Told | Over] = deque()
        self.closed = False

    def submit(self, run: int, body: dict[str, Any]) -> None:
        self.asked.append(body)
        if self.refuse is not None:
            self.news.append(Over(run, self.refuse))
        else:
            self.requests[run] = _Request(body)

    def abort(self, run: int) -> None:
        self.requests.pop(run, None)

    def events(self, timeout_s: float) -> list[Told | Over]:
        if self.steps:
            self.step()
        news = list(self.news)
        self.news.clear()
        return news

    def close(self) -> None:
        self.closed = True

    def step(self) -> None:
        self.end_step(self.begin_step())

    def begin_step(self) -> list[_Request]:
        """The requests that the step works on: their claims are looked at now, and not again."""
        self._pool.epochs[0] |= np.uint64(1)
        claims = self._pool.claims
        return [r for run, r in self.requests.items() if int(claims[r.run.row]) == run]

    def end_step(self, work: list[_Request]) -> None:
        for request in work:
            self._compute(request)
        self._pool.epochs[0] += np.uint64(1)

    def _compute(self, request: _Request) -> None:
        run, ids = request.run, request.ids
        self._check(request)
        stop = min(len(ids), request.computed + self._chunk)
        request.computed = stop
        copy = run.save(stop, [range(1000)], [BLOCK])
        if copy is not None:
            at = slots(copy.ours, BLOCK, copy.start, copy.stop)
            bits = [kv(ids, position) for position in range(copy.start, copy.stop)]
            self._pool.bits[:, :, at] = np.stack(bits, axis=2)
            self._pool.saved[run.row, :, 0] = copy.stop
        if stop < len(ids):
            return
        token = next_token(ids, request.seed)
        at_index = len(ids) - len(request.body["prompt"])
        self._pool.margins[run.row, at_index % 64] = 1.0
        ids.append(token)
        request.left -= 1
        self.news.append(Told(run.run, [(token, None)]))
        stops = token in request.body["stop_token_ids"]
        if request.left == 0 or (stops and at_index >= request.body["min_tokens"]):
            self.requests.pop(run.run, None)
            self.news.append(Over(run.run))

    def _check(self, request: _Request) -> None:
        """What the pool says it has must be what this model would have computed."""
        run = request.run
        for position, slot in enumerate(self._slots(run, run.have)):
            here = self._pool.bits[:, :, slot]
            assert (here == kv(request.ids, position)).all(), f"foreign KV at {position}"

    def _slots(self, run: Run, count: int) -> np.ndarray:
        return slots(run.blocks[: -(-count // BLOCK)], BLOCK, 0, count) if count else np.array([])


def info(tokens: int) -> EngineInfo:
    return EngineInfo(
        engine="vllm",
        model="fake",
        fingerprint=Fingerprint(
            tensors="t",
            tokenizer="t",
            kv_dtype="bfloat16",
            layers=LAYERS,
            kv_heads=1,
            head_size=1,
            rope="",
            windows=(None,) * LAYERS,
        ),
        block_size=BLOCK,
        kv_total_tokens=tokens,
        max_context=512,
        vocab_size=VOCAB,
        stop_ids=(),
    )


def engine(folder: Path, tokens: int = 256, name: str = "a", **how: Any) -> VllmEngine:
    """An engine over a fake; the fake is its `_server`."""
    shape = PoolShape(
        layers=LAYERS,
        slots=tokens,
        kv_heads=1,
        head_size=1,
        kv_dtype="bfloat16",
        block_size=BLOCK,
        rows=how.pop("rows", 8),
        ranks=1,
    )
    pool = SharedPool.create(folder / name, shape)
    return VllmEngine(info(tokens), pool, FakeVllm(pool, **how))
