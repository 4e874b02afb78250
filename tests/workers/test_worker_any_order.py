"""Any order, repetition and loss of messages: a worker never raises and never forgets the rules."""

from array import array
from collections.abc import Callable
from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.workers.worker_rig import END, history, offer
from transport.base import OfferRefused, StreamId
from workers.api.info import Part
from workers.api.messages import (
    DownMessage,
    Feed,
    Pause,
    Paused,
    Resume,
    Resync,
    Role,
    SendKV,
    Start,
    Stop,
    TokenRun,
)
from workers.costs import MeasuredCosts
from workers.engines.base import KVSlice, SeqId, Step
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel, Wish, choose, grow_history, kv_bits
from workers.outputs import OpenStream, Output, Up
from workers.worker import NotYet, Worker

MODEL = SimulatedModel(vocab_size=50, max_context=64, end_rate=0.1)
REQUESTS = ("a", "b")
PROMPTS = {"a": tuple(range(3, 13)), "b": (*range(3, 11), 40, 41, 42, 43, 44)}
LIMIT = 14
MEMORY = 64  # tokens; three legs of one request and not much more
EPOCHS = range(8)
NONSENSE = [(2, 3, ()), (3, 1, (5,)), (1, 0, (50,)), (1, 0, (-1,)), (0, -1, (5,))]

requests = st.sampled_from(REQUESTS)
anything = st.builds(SeqId, requests, st.sampled_from(EPOCHS))
Draw = Callable[[st.SearchStrategy[Any]], Any]

ACTS = (
    *("accept", "accept_own", "begin", "complete", "contradict", "export_ends", "feed", "feed_all"),
    *("feed_nonsense", "kv_arrives", "kv_arrives", "pause", "repeat", "resume", "resync"),
    *("send_kv", "start", "start", "steps", "steps", "stop", "time_passes"),
)


def next_token(prompt: tuple[int, ...], own: tuple[int, ...]) -> int:
    hashes = array("Q")
    grow_history(hashes, (*prompt, *own))
    return choose(MODEL, Wish(hashes[-1], len(own), 0, (END,), 0)).token


class AnyOrder(RuleBasedStateMachine):
    """A gateway that says anything at any time, but holds one law per request."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = SimulatedEngine(
            MODEL,
            MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02),
            kv_total_tokens=MEMORY,
            block_size=4,
            chunk_tokens=6,
        )
        self.worker = Worker("w", self.engine, slots=4, hold_s=20.0, lease_s=30.0)
        self.now = 0.0
        self.step: Step | None = None
        self.law: dict[str, tuple[int, ...]] = dict.fromkeys(REQUESTS, ())
        self.sent: list[DownMessage] = []
        self.streams: set[StreamId] = set()

    # ---------------------------------------------------------------- what happens

    @initialize(lively=st.booleans())
    def begin_lively(self, lively: bool) -> None:
        """Often a prefill, a relay and a main leg of one request are at work already."""
        if not lively:
            return
        for epoch, role in enumerate(Role, start=1):
            self.say(self.start("a", epoch, role, (), 0, 3))
        for epoch in (2, 3):
            self.say(self.send_kv(SeqId("a", 1), epoch, 0, "w"))
        self.steps(4)
        self.law["a"] = (next_token(PROMPTS["a"], ()),)
        for epoch in (2, 3):
            self.say(self.feed(SeqId("a", epoch), 0, 1))
        self.steps(3)

    @rule(data=st.data(), act=st.sampled_from(ACTS))
    def act(self, data: st.DataObject, act: str) -> None:
        """One rule for all, since hypothesis leaves whole rules out of most runs."""
        getattr(self, f"do_{act}")(data.draw)

    def pick(self, draw: Draw) -> SeqId:
        """Mostly a leg that lives, now and then one that does not."""
        live = sorted(self.worker._legs)
        return draw(st.sampled_from(live) | anything if live else anything)

    def say(self, message: DownMessage) -> None:
        self.sent.append(message)
        self.note(self.worker.handle(message, self.now))

    def note(self, outputs: list[Output]) -> None:
        for out in outputs:
            if isinstance(out, OpenStream):
                self.streams.add(out.stream)
            if isinstance(out, Up) and isinstance(out.message, Paused):
                assert 0 <= out.message.at <= LIMIT

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.begin()
            if self.step is None:
                return
            self.complete()

    def begin(self) -> None:
        if self.step is None:
            self.step = self.worker.begin(self.now)

    def complete(self) -> None:
        step, self.step = self.step, None
        if step is None:
            return
        self.now += step.duration_s or 0.0
        before = {seq: tuple(leg.own) for seq, leg in self.worker._legs.items()}
        result = self.engine.finish(step)
        for sample in result.samples:
            own = before[sample.seq]
            assert sample.token == next_token(PROMPTS[sample.seq.request], own)
        self.note(self.worker.complete(step, result, self.now))

    # ---------------------------------------------------------------- messages

    def start(
        self, request: str, epoch: int, role: Role, law: tuple[int, ...], cover: int, spare: int
    ) -> Start:
        return Start(
            request=request,
            epoch=epoch,
            gateway="g",
            role=role,
            prompt_ids=PROMPTS[request],
            law_ids=law,
            cover=cover,
            limit=LIMIT,
            stop_ids=(END,),
            reserve=len(PROMPTS[request]) + spare,
        )

    def feed(self, seq: SeqId, start: int, more: int) -> Feed:
        ids = self.law[seq.request][start:][:more]
        law = start + len(ids)
        return Feed(request=seq.request, epoch=seq.epoch, law=law, start=start, ids=ids)

    def send_kv(self, seq: SeqId, to_epoch: int, law: int, to_worker: str) -> SendKV:
        return SendKV(
            request=seq.request,
            epoch=seq.epoch,
            to_worker=to_worker,
            to_epoch=to_epoch,
            start=0,
            stop=len(PROMPTS[seq.request]) + law,
            address="far:1",
        )

    # ---------------------------------------------------------------- acts

    def do_steps(self, draw: Draw) -> None:
        self.complete()
        self.steps(draw(st.integers(1, 5)))

    def do_begin(self, draw: Draw) -> None:
        self.begin()

    def do_complete(self, draw: Draw) -> None:
        self.complete()

    def do_start(self, draw: Draw) -> None:
        seq = draw(anything)
        law = self.law[seq.request][: draw(st.integers(0, LIMIT))]
        cover = min(len(law), draw(st.sampled_from([0, 0, 0, 1, 3, LIMIT, -1])))
        role, spare = draw(st.sampled_from(Role)), draw(st.integers(0, LIMIT))
        self.say(self.start(*seq, role, law, cover, spare))

    def do_stop(self, draw: Draw) -> None:
        seq = self.pick(draw)
        self.worker.abandoned(*seq)
        self.say(Stop(request=seq.request, epoch=seq.epoch))

    def do_accept(self, draw: Draw) -> None:
        """The law grows by what the model says, now and then by something else."""
        request, odd = draw(requests), draw(st.sampled_from([None, 7]))
        law = self.law[request]
        if len(law) < LIMIT:
            said = next_token(PROMPTS[request], law) if odd is None else odd
            self.law[request] = (*law, said)

    def do_accept_own(self, draw: Draw) -> None:
        """The gateway accepts what a leg said, and leaves the ids out."""
        seq = self.pick(draw)
        law = self.law[seq.request]
        leg = self.worker._legs.get(seq)
        if leg is None or self.step is not None or tuple(leg.own[: len(law)]) != law:
            return
        fed, self.law[seq.request] = len(leg.law), tuple(leg.own)
        self.say(Feed(request=seq.request, epoch=seq.epoch, law=len(leg.own), start=fed))
        assert tuple(leg.law) == tuple(leg.own)

    def do_contradict(self, draw: Draw) -> None:
        """The law takes another turn than a leg that ran ahead of it."""
        seq = self.pick(draw)
        law = self.law[seq.request]
        leg = self.worker._legs.get(seq)
        if leg is not None and len(law) < len(leg.own):
            self.law[seq.request] = (*law, (leg.own[len(law)] + 1) % MODEL.vocab_size)
            self.say(self.feed(seq, draw(st.integers(0, len(leg.law))), LIMIT))

    def do_feed(self, draw: Draw) -> None:
        self.say(self.feed(self.pick(draw), draw(st.integers(0, LIMIT)), draw(st.integers(0, 4))))

    def do_feed_all(self, draw: Draw) -> None:
        self.say(self.feed(self.pick(draw), 0, LIMIT))

    def do_feed_nonsense(self, draw: Draw) -> None:
        request, epoch = self.pick(draw)
        law, start, ids = draw(st.sampled_from(NONSENSE))
        self.say(Feed(request=request, epoch=epoch, law=law, start=start, ids=ids))

    def do_pause(self, draw: Draw) -> None:
        request, epoch = self.pick(draw)
        seq, at = draw(st.integers(1, 6)), draw(st.none() | st.integers(-1, LIMIT + 2))
        self.say(Pause(request=request, epoch=epoch, seq=seq, at=at))

    def do_resume(self, draw: Draw) -> None:
        request, epoch = self.pick(draw)
        self.say(Resume(request=request, epoch=epoch, seq=draw(st.integers(1, 7))))

    def do_resync(self, draw: Draw) -> None:
        seq = self.pick(draw)
        start = draw(st.integers(-1, LIMIT + 2))
        message = Resync(request=seq.request, epoch=seq.epoch, start=start)
        out = self.worker.handle(message, self.now)
        if seq in self.worker._legs and self.step is None:
            assert out
            assert all(isinstance(o, Up) and isinstance(o.message, TokenRun) for o in out)

    def do_send_kv(self, draw: Draw) -> None:
        seq, to_epoch = self.pick(draw), draw(st.sampled_from(EPOCHS))
        leg = self.worker._legs.get(seq)
        own = 0 if leg is None else len(leg.own)
        law = draw(st.sampled_from([0, 0, 0, own, own, 2, -1, 20]))
        self.say(self.send_kv(seq, to_epoch, law, draw(st.sampled_from(["w", "far"]))))

    def do_repeat(self, draw: Draw) -> None:
        if self.sent:
            self.say(draw(st.sampled_from(self.sent)))

    def do_kv_arrives(self, draw: Draw) -> None:
        seq = self.pick(draw)
        stream = StreamId(seq.request, draw(st.sampled_from(EPOCHS)), seq.epoch)
        leg = self.worker._legs.get(seq)
        cover = 0 if leg is None else leg.start.cover
        stop = len(PROMPTS[seq.request]) + cover + draw(st.sampled_from([0, 0, 0, 0, 1]))
        try:
            have = self.worker.offered(offer(stream, stop, model=MODEL), self.now)
        except (NotYet, OfferRefused):
            return
        assert leg is not None
        parts = draw(st.sampled_from([tuple(Part), tuple(Part), tuple(Part), (Part.KEY,)]))
        hashes = array("Q")
        grow_history(hashes, (*PROMPTS[seq.request], *leg.own[:cover]))
        for layer, part in product(range(MODEL.layers), parts if have < stop else ()):
            piece = KVSlice(
                layer=layer,
                part=part,
                start=have,
                stop=stop,
                positions=np.arange(have, stop, dtype=np.int32),
                data=kv_bits(MODEL, hashes[have:], layer, part),
            )
            self.engine.put(seq, piece)
        if draw(st.integers(0, 3)):
            self.note(self.worker.import_completed(stream, self.now))
        else:
            self.note(self.worker.import_broken(stream, "cut", self.now))

    def do_export_ends(self, draw: Draw) -> None:
        if self.streams:
            stream = self.streams.pop()
            if draw(st.booleans()):
                self.note(self.worker.export_failed(stream, "cut", self.now))
            else:
                self.note(self.worker.export_completed(stream, self.now))

    def do_time_passes(self, draw: Draw) -> None:
        self.now += draw(st.sampled_from([0.0, 1.0, 9.0, 15.0, 31.0, 61.0]))
        if draw(st.integers(0, 5)):
            self.worker.gateway_seen("g", self.now)
        self.note(self.worker.expire(self.now))
        deadline = self.worker.next_deadline()
        assert deadline is None or deadline > self.now

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def histories_are_true(self) -> None:
        for seq, leg in self.worker._legs.items():
            own = tuple(leg.own)
            assert leg.hist == [history(own[:i]) for i in range(len(own) + 1)]
            assert tuple(leg.law) == self.law[seq.request][: len(leg.law)]
            assert len(own) <= LIMIT
            if leg.start.role is not Role.PREFILL:
                assert own[: len(leg.law)] == tuple(leg.law)

    @invariant()
    def the_engine_follows(self) -> None:
        assert self.engine._sequences.keys() == self.worker._legs.keys()
        if self.step is None:
            for seq, leg in self.worker._legs.items():
                tokens = self.engine._sequences[seq].tokens
                if leg.cut is None:
                    assert tokens == [*leg.start.prompt_ids, *leg.own[: leg.applied]]

    @invariant()
    def the_account_adds_up(self) -> None:
        load = self.worker.load()
        assert 0 <= load.kv_held_tokens + load.kv_free_tokens <= load.kv_total_tokens
        assert self.worker.idle == (not self.worker._legs and self.step is None)

    def teardown(self) -> None:
        """Left alone it comes to rest with every pause answered; stopped, it holds nothing."""
        self.complete()
        self.steps(200)
        assert self.worker.begin(self.now) is None
        for seq, leg in self.worker._legs.items():
            starved = seq in self.worker._runner._starved
            assert leg.pause is None or leg.paused_at is not None or starved
        for seq in list(self.worker._legs):
            self.say(Stop(request=seq.request, epoch=seq.epoch))
        assert self.worker.idle
        assert self.engine.kv_held_tokens() == 0
        assert self.engine.kv_free_tokens() == MEMORY
        self.now += 1000.0
        self.note(self.worker.expire(self.now))
        assert self.worker.next_deadline() is None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
