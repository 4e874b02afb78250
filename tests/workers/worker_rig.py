"""A worker core over a simulated engine, with its own clock: what the worker tests drive."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from transport.base import Offer, StreamId
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.info import Part
from workers.api.messages import (
    DownMessage,
    Feed,
    Pause,
    Resume,
    Resync,
    Role,
    Sampling,
    SendKV,
    Start,
    Stop,
    TokenRun,
)
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.kv.prefix import block_names
from workers.outputs import Output, Up
from workers.worker import Worker

MODEL = SimulatedModel()
COSTS = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02)
PROMPT = tuple(range(100, 140))
LIMIT = 12
END = MODEL.stop_ids[0]

T = TypeVar("T")


def engine(
    model: SimulatedModel = MODEL, *, kv_total_tokens: int = 4096, tokenizer: Path | None = None
) -> SimulatedEngine:
    return SimulatedEngine(
        model, COSTS, kv_total_tokens=kv_total_tokens, chunk_tokens=64, tokenizer=tokenizer
    )


def continuation(
    count: int,
    after: tuple[int, ...] = (),
    *,
    prompt: tuple[int, ...] = PROMPT,
    model: SimulatedModel = MODEL,
    sampling: Sampling | None = None,
    stop_ids: tuple[int, ...] = (),
    tokenizer: Path | None = None,
) -> tuple[int, ...]:
    """The next `count` tokens that a model says after `prompt` and the output tokens `after`."""
    alone = engine(model, tokenizer=tokenizer)
    seq = SeqId("alone", 0)
    known = len(prompt) + len(after)
    spec = SequenceSpec(
        tokens=(*prompt, *after),
        prompt_len=len(prompt),
        reserve=known + count,
        sampling=sampling or Sampling(),
        stop_ids=stop_ids,
    )
    alone.open(seq, spec, reuse=False)
    alone.set_goal(seq, known + count)
    said: list[int] = []
    while len(said) < count:
        step = alone.begin()
        assert step is not None
        said += [sample.token for sample in alone.finish(step).samples]
    return tuple(said)


def history(ids: tuple[int, ...]) -> int:
    return extend_history(EMPTY_HISTORY, ids)


class Rig:
    """One worker and the time it lives in. Verbs return the messages that go up."""

    def __init__(
        self,
        name: str = "w",
        model: SimulatedModel = MODEL,
        *,
        kv_total_tokens: int = 4096,
        slots: int = 8,
        hold_s: float = 30.0,
        lease_s: float = 1e6,
        tokenizer: Path | None = None,
        stores: bool = False,
    ) -> None:
        self.model = model
        self.engine = engine(model, kv_total_tokens=kv_total_tokens, tokenizer=tokenizer)
        self.worker = Worker(
            name, self.engine, slots=slots, hold_s=hold_s, lease_s=lease_s, stores=stores
        )
        self.now = 0.0
        self.outputs: list[Output] = []

    def send(self, message: DownMessage) -> list[object]:
        return self.note(self.worker.handle(message, self.now))

    def note(self, outputs: list[Output]) -> list[object]:
        self.outputs += outputs
        return [out.message for out in outputs if isinstance(out, Up)]

    def made(self, kind: type[T]) -> list[T]:
        """All outputs so far of one kind."""
        return [out for out in self.outputs if isinstance(out, kind)]

    def step(self) -> list[object] | None:
        """One step; None: there was nothing to do."""
        step = self.worker.begin(self.now)
        if step is None:
            return None
        self.now += step.duration_s or 0.0
        return self.note(self.worker.finish(step, self.now))

    def run(self, steps: int = 1000) -> list[object]:
        """Steps until nothing is left to do, at most `steps`."""
        ups: list[object] = []
        for _ in range(steps):
            more = self.step()
            if more is None:
                break
            ups += more
        return ups

    def tokens(self, steps: int = 1000, epoch: int = 2) -> tuple[int, ...]:
        """Like `run`: the ids of the runs of one leg, which must follow one another."""
        ids: list[int] = []
        runs = [m for m in self.run(steps) if isinstance(m, TokenRun) and m.epoch == epoch]
        for run in runs:
            assert run.index == runs[0].index + len(ids)
            ids += run.ids
        return tuple(ids)

    def wait(self, seconds: float) -> list[object]:
        self.now += seconds
        return self.note(self.worker.expire(self.now))

    def landed_main(self, law: tuple[int, ...] = (), cover: int = 0, **more: object) -> None:
        """A started main leg, epoch 2, whose KV has landed."""
        self.send(start(Role.MAIN, law_ids=law, cover=cover, **more))
        self.land(law=law[:cover])

    def land(self, *, epoch: int = 2, law: tuple[int, ...] = (), source: int = 1) -> list[object]:
        """KV of the prompt and `law` arrives for a leg, from an engine that computed it."""
        other = engine(self.model)
        seq = SeqId("other", 0)
        tokens = (*PROMPT, *law)
        spec = SequenceSpec(
            tokens=tokens, prompt_len=len(PROMPT), reserve=len(tokens), sampling=Sampling()
        )
        other.open(seq, spec, reuse=False)
        other.set_goal(seq, len(tokens))
        while (step := other.begin()) is not None:
            other.finish(step)
        return self.carry(
            other, seq, epoch=epoch, source=source, stop=len(tokens), model=self.model
        )

    def carry(
        self,
        other: SimulatedEngine,
        seq: SeqId,
        *,
        stop: int,
        epoch: int = 2,
        source: int = 1,
        model: SimulatedModel = MODEL,
    ) -> list[object]:
        """KV of `seq` crosses from another engine to this worker's leg."""
        stream = StreamId("r", source, epoch)
        have = self.worker.offered(offer(stream, stop, model=model), self.now)
        self.put_all(other, seq, have, stop, epoch=epoch)
        return self.note(self.worker.import_completed(stream, self.now))

    def put_all(
        self, other: SimulatedEngine, seq: SeqId, start: int, stop: int, *, epoch: int = 2
    ) -> None:
        """Every slice of tokens [start, stop) of `seq` arrives; nobody says that all have."""
        if start < stop:
            for layer in range(MODEL.layers):
                for part in Part:
                    piece = other.read(seq, layer, part, start, stop)
                    self.engine.put(SeqId("r", epoch), piece)


def offer(
    stream: StreamId, stop: int = len(PROMPT), *, model: SimulatedModel = MODEL, **changes: object
) -> Offer:
    whole = Offer(
        stream=stream,
        start=0,
        stop=stop,
        slices_per_token=2 * MODEL.layers,
        cache_salt="",
        blocks=block_names(model.fingerprint.canonical, "", PROMPT[:stop]),
    )
    return replace(whole, **changes)


def start(role: Role = Role.MAIN, **changes: object) -> Start:
    epoch = {Role.PREFILL: 1, Role.MAIN: 2, Role.RELAY: 3}[role]
    whole = Start(
        request="r",
        epoch=epoch,
        gateway="g",
        role=role,
        prompt_ids=PROMPT,
        limit=LIMIT,
        stop_ids=(END,),
        reserve=len(PROMPT) + LIMIT,
    )
    return replace(whole, **changes)


def send_kv(epoch: int = 1, to_epoch: int = 2, **changes: object) -> SendKV:
    whole = SendKV(
        request="r",
        epoch=epoch,
        to_worker="far",
        to_epoch=to_epoch,
        start=0,
        stop=len(PROMPT),
        address="far:1",
    )
    return replace(whole, **changes)


def feed(ids: tuple[int, ...], at: int = 0, epoch: int = 2) -> Feed:
    return Feed(request="r", epoch=epoch, law=at + len(ids), start=at, ids=ids)


def pause(seq: int, at: int | None = None, epoch: int = 2) -> Pause:
    return Pause(request="r", epoch=epoch, seq=seq, at=at)


def resume(seq: int, epoch: int = 2) -> Resume:
    return Resume(request="r", epoch=epoch, seq=seq)


def resync(start: int = 0, epoch: int = 2) -> Resync:
    return Resync(request="r", epoch=epoch, start=start)


def stop(epoch: int = 2) -> Stop:
    return Stop(request="r", epoch=epoch)
