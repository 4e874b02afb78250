"""What each codec does to real KV: how small, how fast, and what the model then says."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from benchmarks.link.kv import slices
from benchmarks.machine import machine
from benchmarks.texts import texts
from transport.base import Slice, StreamId
from transport.codecs.table import CODECS, decode_slice, encode_slice
from transport.memory import keep_freed_memory
from transport.stream.frames import Data
from workers.engines.models import DEFAULT_MODEL, resolve_model

PROMPT, CONTINUATION = 1024, 512  # tokens
SENT = 256  # tokens of a piece, as a worker sends them
LARGER = 1024
ROUNDS = 5
TIMED = 3  # of the pieces every third is timed: 24 MB of them, more than caches hold
_STREAM = StreamId("bench", 0, 1)
_COPIED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """A text in the model: `kv` [layers, 2, tokens, heads, size] uint16 bits of bfloat16.

    `rest`: the tokens that follow the prompt. `logits`: what the model says over exact KV, at
    each of `rest`, [tokens, vocabulary] as log-probabilities.
    """

    name: str
    kv: np.ndarray
    rest: torch.Tensor
    logits: torch.Tensor


def run(*, rounds: int = ROUNDS, tell: Callable[[str], None]) -> dict[str, Any]:
    """Every codec over prose, Chinese and code; speeds are of one core, in MB of raw KV."""
    before = machine()
    keep_freed_memory()  # as a worker does
    tell(f"{DEFAULT_MODEL} reads {PROMPT + CONTINUATION} tokens each of three texts")
    model, readings = load()
    pieces = [piece for reading in readings for piece in slices(reading.kv, SENT)][::TIMED]
    larger = [piece for reading in readings for piece in slices(reading.kv, LARGER)][::TIMED]
    memcpy = _memcpy_mb_per_s(rounds)
    rows, larger_rows = [], []
    for codec in CODECS:
        speed = speed_of(codec, pieces, rounds)
        tell(f"{codec}: {speed['ratio']:.2f}, {speed['encode_MBps']:.0f} MB/s")
        quality = [quality_of(model, codec, reading) for reading in readings]
        rows.append(
            {
                "codec": codec,
                **speed,
                "kl": fmean(q["kl"] for q in quality),
                "top1": fmean(q["top1"] for q in quality),
                "two_threads_encode_MBps": two_threads_mb_per_s(codec, pieces),
                "texts": {r.name: q for r, q in zip(readings, quality, strict=True)},
            }
        )
        larger_rows.append({"codec": codec, **speed_of(codec, larger, rounds)})
    return {
        "memcpy_MBps": memcpy,
        "codecs": rows,
        "piece_tokens": SENT,
        "larger_piece_tokens": LARGER,
        "larger_pieces": larger_rows,
        "machine": before,
    }


def speed_of(codec: str, pieces: list[Slice], rounds: int) -> dict[str, Any]:
    """Ratio, and medians of `rounds` times over all pieces, frames and their checks included."""
    frames = [encode_slice(_STREAM, piece, codec) for piece in pieces]  # compiled by now
    raw = sum(frame.raw_bytes for frame in frames)
    wire = sum(len(frame.body) for frame in frames)
    for frame in frames[: len(frames) // 8]:
        decode_slice(frame)
    encode = [_cpu_s(lambda p: encode_slice(_STREAM, p, codec), pieces) for _ in range(rounds)]
    decode = [_cpu_s(decode_slice, frames) for _ in range(rounds)]
    return {
        "ratio": raw / wire,
        "encode_MBps": raw / median(encode) / 1e6,
        "decode_MBps": raw / median(decode) / 1e6,
    }


def two_threads_mb_per_s(codec: str, pieces: list[Slice]) -> float:
    """By the clock on the wall: twice one core's speed if no lock is held and two are free."""

    def half(mine: list[Slice]) -> None:
        for piece in mine:
            encode_slice(_STREAM, piece, codec)

    with ThreadPoolExecutor(2) as pool:
        started = time.perf_counter()
        list(pool.map(half, (pieces[::2], pieces[1::2])))
        took = time.perf_counter() - started
    return sum(piece.data.nbytes for piece in pieces) / took / 1e6


@torch.inference_mode()
def quality_of(model: PreTrainedModel, codec: str, reading: Reading) -> dict[str, float]:
    """The continuation over KV that went through `codec`, against exact KV.

    `kl`: mean of KL(exact || coded) in nats. `top1`: how often the likeliest token is the same.
    """
    came = np.empty_like(reading.kv)
    for piece in slices(reading.kv, SENT):
        back = decode_slice(encode_slice(_STREAM, piece, codec))
        layer, part, start, stop = piece.key
        came[layer, "kv".index(part), start:stop] = back.data
    if CODECS[codec].lossless:
        if not np.array_equal(came, reading.kv):
            raise RuntimeError(f"codec {codec} is called lossless and is not")
        return {"kl": 0.0, "top1": 1.0}
    said = continuation(model, came, reading.rest)
    exact = reading.logits
    kl = (exact.exp() * (exact - said)).sum(-1).mean()
    return {"kl": float(kl), "top1": float((exact.argmax(-1) == said.argmax(-1)).float().mean())}


def _cpu_s(work: Callable[[Any], object], items: Iterable[Slice | Data]) -> float:
    """Seconds of this thread's own: another process's load does not count."""
    started = time.thread_time()
    for item in items:
        work(item)
    return time.thread_time() - started


def _memcpy_mb_per_s(rounds: int) -> float:
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros(_COPIED_BYTES, np.uint8)
    took = [_cpu_s(lambda s: np.copyto(target, s), [source]) for _ in range(rounds)]
    return _COPIED_BYTES / median(took) / 1e6


def load() -> tuple[PreTrainedModel, list[Reading]]:
    """The default model and what it makes of each text. Raises ModelNotFound."""
    path = resolve_model(DEFAULT_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    model.eval()
    readings = []
    for name, text in texts().items():
        ids = tokenizer(text, return_tensors="pt").input_ids[:, : PROMPT + CONTINUATION]
        if ids.shape[1] < PROMPT + CONTINUATION:
            raise ValueError(f"text {name} has only {ids.shape[1]} tokens")
        readings.append(read(model, name, ids, PROMPT))
    return model, readings


@torch.inference_mode()
def read(model: PreTrainedModel, name: str, ids: torch.Tensor, prompt: int) -> Reading:
    """`ids` [1, tokens]: the first `prompt` of them become KV, the rest are the continuation."""
    cache = DynamicCache()
    model(ids[:, :prompt], cache=cache, logits_to_keep=1)
    kv = np.stack([np.stack([_bits(x.keys), _bits(x.values)]) for x in cache.layers])
    rest = ids[:, prompt:]
    return Reading(name, kv, rest, continuation(model, kv, rest))


def continuation(model: PreTrainedModel, kv: np.ndarray, rest: torch.Tensor) -> torch.Tensor:
    """Log-probabilities after each of `rest`, given these bits of the prompt."""
    cache = DynamicCache()
    for layer, (k, v) in enumerate(kv):
        cache.update(_tensor(k), _tensor(v), layer)
    logits = model(rest, cache=cache).logits[0]
    return logits.log_softmax(-1)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """[1, heads, tokens, size] as [tokens, heads, size] bits of bfloat16."""
    rows = tensor[0].transpose(0, 1).to(torch.bfloat16).contiguous()
    return rows.view(torch.uint16).numpy()


def _tensor(bits: np.ndarray) -> torch.Tensor:
    """The inverse of `_bits`, as float32."""
    rows = torch.from_numpy(bits).view(torch.bfloat16)
    return rows.to(torch.float32).transpose(0, 1).unsqueeze(0).contiguous()
