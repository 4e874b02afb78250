"""Worlds that have lived through the faults of a seed, and what their gateways' cores were told."""

from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.faults import scenario_file
from orchestrator.lifecycle.parity import Entry
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import Arrived, HandoffMode
from orchestrator.virtual.faults.cases import DEADLINES, READY_S, Case, generate
from orchestrator.virtual.faults.fault import Fault, Kind
from orchestrator.virtual.faults.scenario import Scenario, load_scenario
from orchestrator.virtual.gateway import VirtualGateway
from orchestrator.virtual.setup import Ask, Setup
from orchestrator.virtual.world import World
from tests.orchestrator.virtual.stories.story_world import (
    ANYWHERE,
    HAMI,
    M0,
    M1,
    P0,
    P1,
    R0,
    SHENZHEN,
    SPARES,
    line,
)
from workers.api.messages import Sampling


@cache
def shipped() -> Scenario:
    """The scenario that comes with the package."""
    return load_scenario(scenario_file(None))


def case_of(seed: int) -> Case:
    return generate(shipped(), seed)


def gateways(world: World) -> list[VirtualGateway]:
    """All that lived, those that were killed too."""
    return [*world.ended, *world.gateways]


def config_of(world: World, gateway: VirtualGateway) -> CoreConfig:
    return replace(world.setup.core, gateway=gateway.name)


def recorded(gateway: VirtualGateway) -> list[Entry]:
    """A gateway's log, as the journal of a live one keeps it: on its own clock."""
    return [Entry(at=e.now, event=e.event, actions=tuple(e.actions)) for e in gateway.log]


def everything() -> Case:
    """Two dozen requests, and a fault of every kind, written down: no scenario changes it."""
    setup = Setup(
        core=CoreConfig(gateway="", gateway_site=HAMI, codec="raw", deadlines=DEADLINES),
        workers=tuple(replace(w, salt=i) for i, w in enumerate((*SPARES, ANYWHERE))),
        gateways=2,
        jitter_s=0.01,
        bytes_per_s=line(0.3),
        end_rate=0.03,
        divergence=10,
        vocab_size=40,
    )
    asks = tuple(
        Ask(
            at=READY_S + i / 4,
            arrived=Arrived(
                request=f"r{i}",
                prompt_ids=tuple(3 + (i * 11 + at * 7) % 37 for at in range(20 + i)),
                limit=60,
                stop_ids=(2,) if i % 2 else (),
                stop_strings=("7,8", "9,10") if i % 3 == 0 else (),
                handoff=list(HandoffMode)[i % 3],
                sampling=Sampling(temperature=0.8, seed=i),
            ),
            gateway=int(i % 4 == 3),
            leaves_after=1.0 if i % 8 == 0 else None,
        )
        for i in range(24)
    )
    return Case(seed=1, setup=setup, asks=asks, faults=FAULTS)


def _fault(at: float, kind: Kind, target: str = "", seconds: float = 0.5, **more: Any) -> Fault:
    return Fault(kind=kind, at=at, target=target, seconds=seconds, **more)


FAULTS = (
    _fault(0.0, Kind.CLOCK, M1, 0.0, amount=1.001),
    _fault(2.0, Kind.CORRUPT, amount=0.5),
    _fault(2.2, Kind.REPEAT, seconds=4.0, amount=0.2),
    _fault(2.5, Kind.LOSS, amount=0.2),
    _fault(3.0, Kind.KILL_WORKER, M0, 1.0),
    _fault(3.5, Kind.DELAY, amount=0.3),
    _fault(4.0, Kind.FREEZE_WORKER, R0, 6.0),
    _fault(4.5, Kind.RESET, P0, 0.0),
    _fault(5.0, Kind.PARTITION, HAMI, other=SHENZHEN),
    _fault(5.5, Kind.ONE_WAY, M1, 5.0, other="g0"),
    _fault(5.5, Kind.MEMORY, P1, 3.0, amount=1.0),
    _fault(6.0, Kind.KILL_GATEWAY, "1", 1.0),
    _fault(6.5, Kind.FREEZE_GATEWAY, "0"),
    _fault(7.0, Kind.KILL_AGENT, SHENZHEN, 1.0),
    _fault(7.0, Kind.FREEZE_AGENT, HAMI, 9.0),
    _fault(7.5, Kind.KILL_WORKER, P0, 1.0),
)
