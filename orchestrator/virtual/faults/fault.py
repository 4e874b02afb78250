"""Faults: what can go wrong in a virtual deployment, and how it is done to one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.virtual.network import Accidents
from orchestrator.virtual.worker import VirtualWorker
from orchestrator.virtual.world import World
from workers.engines.base import SeqId


class Kind(StrEnum):
    """Every kind of fault. The value is its key in a scenario file."""

    KILL_WORKER = "kill_worker"
    FREEZE_WORKER = "freeze_worker"
    KILL_GATEWAY = "kill_gateway"
    FREEZE_GATEWAY = "freeze_gateway"
    KILL_AGENT = "kill_agent"
    FREEZE_AGENT = "freeze_agent"
    PARTITION = "partition"
    ONE_WAY = "one_way_partition"
    RESET = "reset"
    LOSS = "loss"
    REPEAT = "repeat"
    DELAY = "delay"
    CORRUPT = "corrupt"
    MEMORY = "memory"
    CLOCK = "clock"
    KILL_STORE = "kill_store"
    FREEZE_STORE = "freeze_store"
    DELAY_STORE = "delay_store"
    DAMAGE_STORE = "damage_store"


OF_STORES = frozenset({Kind.KILL_STORE, Kind.FREEZE_STORE, Kind.DELAY_STORE, Kind.DAMAGE_STORE})
# Accidents that must not cost any deadline, if they are rare and the line is fast.
MILD = frozenset(
    {
        Kind.RESET,
        Kind.REPEAT,
        Kind.DELAY,
        Kind.CORRUPT,
        Kind.CLOCK,
        Kind.KILL_AGENT,
        Kind.FREEZE_AGENT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    `target`: a worker, a store, a site, a process, or a gateway's place as text; for a partition
    `other` is the end that hears no more. `seconds`: how long it lasts; of a kill, until it is
    started again. `amount`: a probability (of a reset, that a connection is spared; of a store's
    blocks, that one is damaged), the share of a pool's memory, the most seconds of delay, or the
    rate of a clock (see `ClockError`).
    """

    kind: Kind
    at: float
    target: str = ""
    other: str = ""
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        what = " ".join(filter(None, [self.kind, self.target, self.other and f"to {self.other}"]))
        amount = f", {self.amount:g}" if self.amount else ""
        return f"{self.at:.3f} {what} for {self.seconds:g} s{amount}"


def inject(world: World, fault: Fault) -> None:
    """Do it to a world, now."""
    world.trouble(fault.seconds)
    INJECT[fault.kind](world, fault)


def _kill_worker(world: World, fault: Fault) -> None:
    world.kill_worker(fault.target, back_after=fault.seconds)


def _freeze_worker(world: World, fault: Fault) -> None:
    world.freeze(world.workers[fault.target].process, fault.seconds)


def _kill_gateway(world: World, fault: Fault) -> None:
    world.kill_gateway(int(fault.target), back_after=fault.seconds)


def _freeze_gateway(world: World, fault: Fault) -> None:
    world.freeze_gateway(int(fault.target), fault.seconds)


def _kill_agent(world: World, fault: Fault) -> None:
    world.kill_agent(fault.target, back_after=fault.seconds)


def _freeze_agent(world: World, fault: Fault) -> None:
    world.freeze(world.agents[fault.target].process, fault.seconds)


def _partition(world: World, fault: Fault) -> None:
    world.cut(fault.target, fault.other, fault.seconds)
    world.cut(fault.other, fault.target, fault.seconds)


def _one_way(world: World, fault: Fault) -> None:
    world.cut(fault.target, fault.other, fault.seconds)


def _reset(world: World, fault: Fault) -> None:
    for process in world.processes():
        if process.name == fault.target:
            for connection in list(process.connections):
                if not world.network.hits(fault.amount):
                    connection.reset("an accident on the way")


def _accident(name: str) -> Callable[[World, Fault], None]:
    """While it lasts, the worst of all accidents of its kind that are under way counts."""

    def act(world: World, fault: Fault) -> None:
        under_way = world.accidents.setdefault(name, [])
        under_way.append(fault.amount)
        _set_accident(world.network.accidents, name, under_way)
        world.schedule.after(fault.seconds, over, world, fault)

    def over(world: World, fault: Fault) -> None:
        under_way = world.accidents[name]
        under_way.remove(fault.amount)
        _set_accident(world.network.accidents, name, under_way)

    return act


def _set_accident(accidents: Accidents, name: str, under_way: list[float]) -> None:
    setattr(accidents, name, max(under_way, default=0.0))


def _memory(world: World, fault: Fault) -> None:
    worker = world.workers[fault.target]
    taken = worker.fill(fault.amount) if worker.process.alive else None
    if taken is not None:
        life = worker.process.life
        world.schedule.after(fault.seconds, _give_back, worker, life, taken)


def _give_back(worker: VirtualWorker, life: int, taken: SeqId) -> None:
    if worker.process.life == life:
        worker.give_back(taken)


def _clock(world: World, fault: Fault) -> None:
    """Set before the world begins (`cases.play`): a monotonic clock never changes its rate."""


def _kill_store(world: World, fault: Fault) -> None:
    world.kill_store(fault.target, back_after=fault.seconds)


def _freeze_store(world: World, fault: Fault) -> None:
    world.freeze(world.stores[fault.target].process, fault.seconds)


def _delay_store(world: World, fault: Fault) -> None:
    world.delay_store(fault.target, fault.amount, fault.seconds)


def _damage_store(world: World, fault: Fault) -> None:
    world.stores[fault.target].damage(world.network.random, fault.amount)


INJECT: dict[Kind, Callable[[World, Fault], None]] = {
    Kind.KILL_WORKER: _kill_worker,
    Kind.FREEZE_WORKER: _freeze_worker,
    Kind.KILL_GATEWAY: _kill_gateway,
    Kind.FREEZE_GATEWAY: _freeze_gateway,
    Kind.KILL_AGENT: _kill_agent,
    Kind.FREEZE_AGENT: _freeze_agent,
    Kind.PARTITION: _partition,
    Kind.ONE_WAY: _one_way,
    Kind.RESET: _reset,
    Kind.LOSS: _accident("lost"),
    Kind.REPEAT: _accident("repeated"),
    Kind.DELAY: _accident("delay_s"),
    Kind.CORRUPT: _accident("corrupt"),
    Kind.MEMORY: _memory,
    Kind.CLOCK: _clock,
    Kind.KILL_STORE: _kill_store,
    Kind.FREEZE_STORE: _freeze_store,
    Kind.DELAY_STORE: _delay_store,
    Kind.DAMAGE_STORE: _damage_store,
}
