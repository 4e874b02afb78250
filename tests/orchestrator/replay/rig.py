"""A modelled worker alone, with what it says; and small deployments to replay."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.replay.driver import Replay
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.replay.memory import BLOCK
from orchestrator.replay.setup import LineSpec, ModelSpec, ReplaySetup
from orchestrator.replay.worker import ModelWorker
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import DownMessage, Feed, Role, SendKV, Start, TokenRun, UpMessage
from workers.costs import MeasuredCosts

COSTS = MeasuredCosts(
    prefill_tokens_per_s=10_000, decode_step_s=0.02, context_s=2e-6, sequence_s=0.0005
)


def spec(name: str = "a/main/0", *roles: Role, costs: MeasuredCosts = COSTS) -> ModelSpec:
    return ModelSpec(
        name=name,
        site=name.split("/")[0],
        roles=frozenset(roles or Role),
        costs=costs,
        slots=32,
        kv_tokens=100_000,
        kv_bytes_per_token=100_000,
        chunk_tokens=512,
    )


@dataclass
class Bench:
    """One worker; `said` is all it says, with the time."""

    spec: ModelSpec = field(default_factory=spec)
    report_s: float = 5.0
    every_step: bool = False
    said: list[tuple[float, UpMessage]] = field(default_factory=list)
    moved: list[tuple[float, SendKV]] = field(default_factory=list)
    closed: list[LegKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = Schedule()
        self.worker = ModelWorker(
            self.spec,
            self.schedule,
            say=self._say,
            move=self._move,
            closed=self.closed.append,
            prefilled=lambda worker, leg: None,
            report_s=self.report_s,
            every_step=self.every_step,
        )

    def _say(self, worker: ModelWorker, messages: list[UpMessage]) -> None:
        self.said += [(self.schedule.now, message) for message in messages]

    def _move(self, worker: ModelWorker, leg: ModelLeg, send: SendKV, at: float) -> None:
        self.moved.append((self.schedule.now, send))

    def at(self, when: float, *messages: DownMessage) -> None:
        self.schedule.at(when, self.worker.take, messages)

    def decode(self, when: float, start: Start, law: int = 1) -> None:
        """A leg that starts at `when`, its KV and `law` tokens of law with it."""
        self.at(when, start)
        self.schedule.at(when, self.worker.land, (start.request, start.epoch))
        ids = tuple(range(3, 3 + law))
        self.at(when, Feed(request=start.request, epoch=start.epoch, law=law, start=0, ids=ids))

    def run(self, until: float = 1000.0) -> None:
        self.schedule.run(until)

    def heard(self, kind: type) -> list[tuple[float, UpMessage]]:
        return [(at, message) for at, message in self.said if isinstance(message, kind)]

    def runs(self, request: str = "r") -> list[tuple[float, int, int]]:
        """When a request's runs were said, with their indices."""
        return [
            (at, message.index, message.index + len(message.ids))
            for at, message in self.said
            if isinstance(message, TokenRun) and message.request == request
        ]


def start(role: Role = Role.MAIN, request: str = "r", **changes: object) -> Start:
    leg = Start(
        request=request,
        epoch=1,
        gateway="g",
        role=role,
        prompt_ids=tuple(range(100)),
        limit=50,
        reserve=150,
    )
    return replace(leg, **changes)


def deployment(**changes: object) -> ReplaySetup:
    """Two sites, two workers per role, a line that takes about a quarter of a second."""
    pools = [
        ("near/prefill", Role.PREFILL, COSTS),
        ("near/relay", Role.RELAY, replace(COSTS, decode_step_s=0.03)),
        ("near/main", Role.MAIN, replace(COSTS, decode_step_s=0.03)),
        ("far/main", Role.MAIN, COSTS),
    ]
    setup = ReplaySetup(
        core=CoreConfig(gateway="g", gateway_site="far", queue_limit=1000),
        workers=tuple(
            spec(f"{pool}/{number}", role, costs=costs)
            for pool, role, costs in pools
            for number in range(2)
        ),
        lines=(LineSpec(between=("near", "far"), bytes_per_s=4e8, delay_s=0.025),),
    )
    return replace(setup, **changes)


def workload(
    requests: int,
    seed: int,
    *,
    route: Route | None = None,
    handoff: HandoffMode | None = None,
    per_s: float = 5.0,
) -> list[tuple[float, Arrived]]:
    draw = random.Random(seed)
    at, found = 0.0, []
    for number in range(requests):
        at += draw.expovariate(per_s)
        prompt = draw.randrange(20, 1500)
        arrived = Arrived(
            request=f"r{number}",
            prompt_ids=tuple(range(1000 * number, 1000 * number + prompt)),
            limit=draw.randrange(1, 300),
            route=route,
            handoff=handoff,
        )
        found.append((at, arrived))
    return found


def replayed(setup: ReplaySetup, asks: Sequence[tuple[float, Arrived]]) -> Replay:
    """Run it to its end, where nothing may be left of any request."""
    replay = Replay(setup)
    replay.run(asks)
    world = replay.machine.ctx.world
    assert not replay.machine.requests
    assert [view.bookings for view in world.workers.values() if view.bookings] == []
    assert [link.queued for link in world.links.values() if link.queued] == []
    for worker in replay.workers.values():
        assert not worker.legs
        if worker.dead:
            continue
        assert worker.slots_used == 0
        assert worker.memory.free_tokens == worker.spec.kv_tokens // BLOCK * BLOCK
    return replay
