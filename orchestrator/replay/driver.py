"""The virtual driver for replay: one machine, modelled workers, one heap of events.

Only the machine decides. What is modelled here is what lies between it and its workers: delays,
lines, and how finely legs speak (see `handing`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from orchestrator.lifecycle.machine import Machine
from orchestrator.replay.handing import Handing
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.replay.lines.model import LineModel, Sharing
from orchestrator.replay.lines.ramp import Ramp
from orchestrator.replay.outcome import Outcome, Use
from orchestrator.replay.prompt import PromptNames
from orchestrator.replay.replanning import Replanner
from orchestrator.replay.setup import ModelSpec, ReplaySetup
from orchestrator.replay.stores.deployed import Stores
from orchestrator.replay.timelines import write_end, write_prefill, write_transfer
from orchestrator.replay.troubles import Troubles
from orchestrator.replay.worker import ModelWorker
from orchestrator.state.actions import Action, Emit, Fail, Finish, Send
from orchestrator.state.events import (
    Arrived,
    Event,
    Heard,
    LinkTold,
    RolesTold,
    Ticked,
    WorkerLost,
    WorkerUp,
)
from orchestrator.state.views import SAME_SITE_RTT_S
from orchestrator.virtual.gateway import IdWatch
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import (
    RELAY,
    DownMessage,
    Load,
    Role,
    SendKV,
    Start,
    TokenRun,
    UpMessage,
    token_count,
)

LOAD_S = 1.0  # a worker tells its load so often,
CHANGED = 0.05  # if its step takes longer or shorter by such a part than it last said
ONLY_PREFILL = frozenset({Role.PREFILL})  # decodes nothing, so its speed is what it first said
ROUND_S = 60.0


class Replay:
    """A deployment in virtual time. Same inputs, same outcomes, to the last bit.

    `ended` is told of every request that has ended, and its outcome is then forgotten; None: all
    stay in `outcomes`.
    """

    def __init__(self, setup: ReplaySetup, ended: Callable[[Outcome], None] | None = None) -> None:
        core = setup.core
        # No message is lost here, and who dies is told at once: silence means nothing.
        patient = replace(core.deadlines, resync=inf, silence=inf)
        core = replace(core, deadlines=patient)
        self.schedule = Schedule()
        self._at = self.schedule.at
        most_kv = max(spec.kv_tokens for spec in setup.workers)
        self.machine = Machine(core, IdWatch, PromptNames(setup.block_tokens, most_kv))
        self.outcomes: dict[str, Outcome] = {}
        self.asked = 0  # requests so far
        self._ended = ended
        self.events = 0  # told to the machine
        self._setup = setup
        self._asks: Iterator[tuple[float, Arrived]] = iter(())  # to come
        self._asking = False  # one of them waits in the schedule
        self._open = 0  # requests that have asked and not ended
        self._steps_told: dict[str, float] = {}  # each worker's speed, as last told
        self._tick_at = inf
        self._moving: dict[str, list[Transfer]] = {}
        self._delays = {(w.site, w.site): SAME_SITE_RTT_S / 2 for w in setup.workers}
        for line in setup.lines:
            a, b = line.between
            self._delays[a, b] = self._delays[b, a] = line.delay_s
        self.workers: dict[str, ModelWorker] = {}
        self._handing = Handing(self.schedule, self.machine, self.workers)
        self._relayed = self._handing.relayed
        self._lines = self._lay_lines()
        self._pool_uses: dict[str, Use] = {}
        self.ended_at = 0.0  # when the last request had ended
        self._roles = {spec.name: spec.roles for spec in setup.workers}
        self.replanner = (
            None
            if setup.replanning is None
            else Replanner(
                setup.replanning,
                self.schedule,
                self.machine.ctx.world,
                give_roles=self._give_roles,
                going=lambda: self._going,
            )
        )
        self._stores = Stores(setup)
        self.workers.update({spec.name: self._new_worker(spec) for spec in setup.workers})
        self._worker_delay = {
            spec.name: self._delays[core.gateway_site, spec.site] for spec in setup.workers
        }
        self._bring_up()
        self._troubles = Troubles(
            self.schedule,
            self._lines,
            self.workers,
            lose=self._lose,
            restore=self._restore,
            say=self._say,
        )
        self._troubles.plan(setup.faults)

    def run(self, asks: Iterable[tuple[float, Arrived]]) -> None:
        """Live through what clients ask, in the order of time, until nothing moves any more.

        Raises ValueError for a request that needs what is not modelled, or comes too early.
        """
        self._asks = iter(asks)
        self._plan_ask()
        self._beat()
        if self._setup.use_every_s:
            self._sample()
        if self.replanner is not None:
            self.replanner.look()
        while self._going:
            self.schedule.run(self.schedule.now + ROUND_S)
        self.ended_at = self.schedule.now
        self.schedule.run(self.schedule.now + ROUND_S)

    @property
    def _going(self) -> bool:
        """Somebody asks, or waits for an answer."""
        return bool(self._open or self._asking)

    def _plan_ask(self) -> None:
        """One request at a time waits in the schedule, and the next is not made before."""
        ask = next(self._asks, None)
        self._asking = ask is not None
        if ask is not None:
            at, arrived = ask
            if at < self.schedule.now:
                raise ValueError(f"request {arrived.request} asks at {at:g} s, before the last one")
            if arrived.stop_strings:
                raise ValueError(f"request {arrived.request}: modelled tokens have no stop strings")
            self.schedule.at(at, self._ask, arrived)

    def _ask(self, arrived: Arrived) -> None:
        outcome = Outcome(
            name=arrived.request, asked_at=self.schedule.now, prompt=token_count(arrived.prompt_ids)
        )
        every = self._setup.timelines
        if every and self.asked % every == 0:
            outcome.spans = []
        self.asked += 1
        self.outcomes[arrived.request] = outcome
        self._open += 1
        self._plan_ask()
        self._tell(arrived)

    def _sample(self) -> None:
        """How much of each pool works now."""
        if not self._going:
            return
        busy: dict[str, list[float]] = {}
        for worker in self.workers.values():
            spec = worker.spec
            busy.setdefault(f"pool:{spec.site}/{spec.pool}", []).append(worker.busy())
        for pool, parts in busy.items():
            use = self._pool_uses.setdefault(pool, Use(self._setup.use_every_s))
            use.samples.append(sum(parts) / len(parts))
        self.schedule.after(self._setup.use_every_s, self._sample)

    @property
    def uses(self) -> dict[str, Use]:
        """How busy "line:from>to" and "pool:site/pool" were."""
        lines = {f"line:{a}>{b}": line.use() for (a, b), line in self._lines.items() if a != b}
        return lines | self._pool_uses

    @property
    def sent_bytes(self) -> dict[tuple[str, str], float]:
        """What went over each line from one site to another."""
        return {(a, b): line.sent_bytes for (a, b), line in self._lines.items() if a != b}

    # ------------------------------------------------------------ before the first request

    def _lay_lines(self) -> dict[tuple[str, str], Line]:
        models = {
            pair: line.model()
            for line in self._setup.lines
            for pair in (line.between, line.between[::-1])
        }
        for site in {worker.site for worker in self._setup.workers}:
            told = self.machine.ctx.world.inside_bytes_per_s(site)
            models[site, site] = LineModel(
                bytes_per_s=self._setup.site_bytes_per_s or told,
                delay_s=SAME_SITE_RTT_S / 2,
                share=Sharing.FIFO,
            )
        return {
            pair: Line(
                self.schedule,
                models[pair],
                leaving=self._handing.leaving,
                landed=self._landed,
                use_every_s=self._setup.use_every_s,
            )
            for pair in self._delays
        }

    def _bring_up(self) -> None:
        for line in self._setup.lines:
            a, b = line.between
            self._tell(
                LinkTold(
                    site_a=a,
                    site_b=b,
                    rtt_s=2 * line.delay_s,
                    bytes_per_s=line.bytes_per_s,
                )
            )
        for worker in self.workers.values():
            self._bring_up_worker(worker)

    def _bring_up_worker(self, worker: ModelWorker) -> None:
        spec = worker.spec
        self._tell(
            WorkerUp(
                worker=spec.name,
                site=spec.site,
                pool=spec.pool,
                roles=self._roles[spec.name],
                slots=spec.slots,
                max_context=spec.max_context,
                kv_total_tokens=worker.memory.free_tokens,
                kv_bytes_per_token=spec.kv_bytes_per_token,
                keeps=spec.keeps,
            )
        )
        load = worker.load()
        self._steps_told[spec.name] = worker.step_s()
        self._tell(Heard(worker=spec.name, message=load))

    def _new_worker(self, spec: ModelSpec) -> ModelWorker:
        setup = self._setup
        return ModelWorker(
            spec,
            self.schedule,
            say=self._say,
            move=self._move,
            closed=self._closed,
            prefilled=self._prefilled,
            report_s=setup.report_s,
            every_step=setup.every_step,
            block_tokens=setup.block_tokens,
            stores=self._stores.of(spec),
        )

    # ------------------------------------------------------------ workers that change

    def _lose(self, name: str) -> None:
        """A worker dies; its gateway hears of it when their connection breaks."""
        worker = self.workers[name]
        if not worker.dead:
            worker.die()  # what it said before arrives before the news
            self.schedule.after(
                self._worker_delay[name],
                self._tell,
                WorkerLost(worker=name, reason="lost in the scenario"),
            )

    def _restore(self, name: str) -> None:
        if self.workers[name].dead:
            worker = self.workers[name] = self._new_worker(self.workers[name].spec)
            self._bring_up_worker(worker)

    def _give_roles(self, name: str, roles: frozenset[Role]) -> None:
        """One that is gone has them when it returns."""
        self._roles[name] = roles
        self._tell(RolesTold(worker=name, roles=roles))

    # ------------------------------------------------------------ the machine

    def _tell(self, event: Event) -> None:
        now = self.schedule.now
        self.events += 1
        machine = self.machine
        actions = machine.handle(event, now)
        if actions:
            self._act(actions, now)
        due = machine.next_deadline()
        if due is not None and due < self._tick_at:
            self._tick_at = due
            self._at(due, self._tick, due)

    def _tick(self, planned: float) -> None:
        """A deadline may have moved since this was planned."""
        if planned != self._tick_at:
            return
        self._tick_at = inf
        due = self.machine.next_deadline()
        if due is None:
            return
        if due <= self.schedule.now:
            self._tell(Ticked())
        else:
            self._tick_at = due
            self.schedule.at(due, self._tick, due)

    def _act(self, actions: Sequence[Action], now: float) -> None:
        lines: dict[str, list[DownMessage]] = {}
        for action in actions:
            if isinstance(action, Send):
                message, worker = action.message, action.worker
                if worker in lines:
                    lines[worker].append(message)
                else:
                    lines[worker] = [message]
                if isinstance(message, Start) and message.role is RELAY:
                    self._relayed.add(message.request)
            elif isinstance(action, Emit):
                outcome = self.outcomes[action.request]
                outcome.tokens = tokens = action.start + len(action.ids)
                outcome.last_at = now
                if outcome.second_at is None:
                    if outcome.first_at is None:
                        outcome.first_at = now
                    if tokens > 1:
                        outcome.second_at = now
            else:
                self._over(action)
        posts: dict[float, list[tuple[ModelWorker, list[DownMessage]]]] = {}
        for name, messages in lines.items():
            post = self.workers[name], messages
            posts.setdefault(self._worker_delay[name], []).append(post)
        for delay_s, together in posts.items():
            self._at(now + delay_s, _deliver, together)

    def _over(self, end: Finish | Fail) -> None:
        name = end.request
        outcome = self.outcomes[name]
        outcome.end = end
        if isinstance(end, Finish):
            write_end(outcome, end)
            if self.replanner is not None:
                self.replanner.ended(end.summary)
        if self._ended is not None:
            del self.outcomes[name]
            self._ended(outcome)
        self._open -= 1
        self._handing.over(name)

    # ------------------------------------------------------------ to and from workers

    def _say(self, worker: ModelWorker, messages: list[UpMessage]) -> None:
        name = worker.spec.name
        self._at(self.schedule.now + self._worker_delay[name], self._heard, name, messages)

    def _heard(self, worker: str, messages: Sequence[UpMessage]) -> None:
        relayed = self._relayed
        for message in messages:
            self._tell(Heard(worker=worker, message=message))
            if relayed and isinstance(message, TokenRun) and message.request in relayed:
                self._handing.heard(message)
            elif self._relayed and isinstance(message, Load):
                self._handing.speeds_told()

    def _beat(self) -> None:
        """Every worker whose speed has changed tells its load; nothing else of it is looked at.

        Lines that were not as told are reported on as well.
        """
        if not self._going:
            return
        self._troubles.report(self.machine.ctx.world, self._moving.values())
        for name, worker in self.workers.items():
            if worker.dead or self._roles[name] == ONLY_PREFILL:
                continue
            step_s, told_s = worker.step_s(), self._steps_told[name]
            if abs(step_s - told_s) > CHANGED * told_s:
                self._steps_told[name] = step_s
                self._say(worker, [worker.load()])
        for news in self._stores.news():  # with the lease of its site
            delay_s = self._delays[self._setup.core.gateway_site, news.site]
            self.schedule.after(delay_s, self._tell, news)
        self.schedule.after(LOAD_S, self._beat)

    def _move(self, worker: ModelWorker, leg: ModelLeg, send: SendKV, at: float) -> None:
        """A leg has all the KV that another wants, who was offered it at `at`."""
        target = send.request, send.to_epoch
        to = self.workers[send.to_worker]
        left = send.stop - leg.gone
        if to is worker:
            self.schedule.after(0.0, to.land, target, leg.gone)
            return
        sites = worker.spec.site, to.spec.site
        per_token = worker.spec.kv_bytes_per_token
        answered_at = at + 2 * self._delays[sites]
        there, loaded_at = to.found(target)
        first = max(send.start, there)
        lacking = max(0, send.stop - first)
        sent = lacking * left // send.stop
        since = max(answered_at, leg.began_at or 0.0, loaded_at)
        ramp: Ramp = ()
        if leg.gone:  # what is kept was known at the end only
            since = max(since, self.schedule.now)
        else:
            ramp = leg.ramp(first, send.stop, layers=worker.spec.layers, token_bytes=per_token)
        transfer = Transfer(
            source=leg.key,
            target=target,
            to_worker=send.to_worker,
            line=self._lines[sites],
            nbytes=sent * per_token,
            since=since,
            ramp=ramp,
            weight=send.weight,
            gone=lacking - sent,
        )
        self._moving.setdefault(send.request, []).append(transfer)
        transfer.line.send(transfer)
        outcome = self.outcomes.get(send.request)
        if outcome is not None and sites[0] != sites[1]:
            outcome.wire_bytes += transfer.wire_bytes
            outcome.main_hit = there

    def _landed(self, transfer: Transfer) -> None:
        if transfer.dropped:
            return
        self._forget(transfer)
        self.workers[transfer.to_worker].land(transfer.target, transfer.gone)
        outcome = self.outcomes.get(transfer.target[0])
        if outcome is not None:
            write_transfer(outcome, transfer, self.schedule.now)
        self._handing.landed(transfer)

    def _closed(self, key: LegKey) -> None:
        if key[0] not in self._moving:
            return
        for transfer in tuple(self._moving[key[0]]):
            if key in (transfer.source, transfer.target):
                self._forget(transfer)
                transfer.line.drop(transfer)

    def _forget(self, transfer: Transfer) -> None:
        moving = self._moving[transfer.target[0]]
        moving.remove(transfer)
        if not moving:
            del self._moving[transfer.target[0]]
        self._handing.forget(transfer)

    def _prefilled(self, worker: ModelWorker, leg: ModelLeg) -> None:
        outcome = self.outcomes.get(leg.key[0])
        if outcome is not None:
            write_prefill(outcome, leg, worker.spec.name, self.schedule.now)


def _deliver(posts: Sequence[tuple[ModelWorker, Sequence[DownMessage]]]) -> None:
    """Hand workers what was sent to them at one time, and takes as long to each of them."""
    for worker, messages in posts:
        worker.take(messages)
