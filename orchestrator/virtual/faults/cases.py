"""From a scenario and a seed to one case: a deployment, its requests, its faults."""

from dataclasses import dataclass, replace
from random import Random

from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.virtual.faults.fault import MILD, OF_STORES, Fault, Kind, inject
from orchestrator.virtual.faults.scenario import Load, Scenario
from orchestrator.virtual.process import ClockError
from orchestrator.virtual.setup import Ask, Setup, WorkerSpec
from orchestrator.virtual.stores.store import StoreSpec
from orchestrator.virtual.world import World
from workers.api.messages import Role, Sampling
from workers.tiers.eviction import POLICIES

READY_S = 1.5  # by then every worker has been heard, without faults
# Short, so that a case lives through its deadlines within a minute of its time.
DEADLINES = Deadlines(
    queue=10.0, prefill=10.0, kv=10.0, first_token=4.0, silence=4.0, cut=2.0, request=60.0
)
# Of a reset: all connections of a worker break, or each of them with this chance stays.
SPARED = (0.0, 0.5)
P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
# What a site can be; of the first sites one prefills and one decodes, the third does either.
SITES = {
    "hami": (
        (frozenset({P, M}), frozenset({R})),
        (frozenset({P}), frozenset({P}), frozenset({R}), frozenset({R})),
        (frozenset({P, R}), frozenset({P, R, M})),
    ),
    "shenzhen": (
        (frozenset({M}),),
        (frozenset({M}), frozenset({M})),
        (frozenset({M, P}), frozenset({M})),
    ),
    "urumqi": ((frozenset(Role),), (frozenset({M}), frozenset({P, R}))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One deployment's life: the same case always goes the same way."""

    seed: int
    setup: Setup
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]
    mild: bool = False  # its faults must cost no deadline

    @property
    def over_at(self) -> float:
        """When the last request has come and the last fault has ended."""
        return max(
            [READY_S, *(ask.at for ask in self.asks), *(f.at + f.seconds for f in self.faults)]
        )


def generate(scenario: Scenario, seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    mild = rng.random() < scenario.faults.mild
    if mild:
        scenario = _mild(scenario)
    setup = _setup(scenario, rng)
    asks = tuple(_asks(scenario.load, setup, rng))
    faults = tuple(_faults(scenario, setup, rng))
    return Case(seed=seed, setup=setup, asks=asks, faults=faults, mild=mild)


def _mild(scenario: Scenario) -> Scenario:
    """Only small accidents, each as small as the scenario has them, on its fastest line."""
    faults, line = scenario.faults, scenario.line
    update = {
        "weights": {kind: weight for kind, weight in faults.weights.items() if kind in MILD},
        "chances": (min(faults.chances),),
        "delays": (min(faults.delays),),
    }
    return scenario.model_copy(
        update={
            "faults": faults.model_copy(update=update),
            "line": line.model_copy(update={"bandwidth": (max(line.bandwidth),)}),
        }
    )


def play(case: Case) -> World:
    """Live through a case, to one deadline of every kind after its last fault."""
    world = begin(case)
    live(world, case)
    return world


def begin(case: Case) -> World:
    """A case's world at its beginning, with all that will happen to it."""
    clocks = {
        fault.target: ClockError(offset_s=1000.0 * fault.amount, rate=fault.amount)
        for fault in case.faults
        if fault.kind is Kind.CLOCK
    }
    world = World(replace(case.setup, clocks=clocks), seed=case.seed, mild=case.mild)
    for fault in case.faults:
        world.schedule.at(fault.at, inject, world, fault)
    for ask in case.asks:
        world.schedule.at(ask.at, world.ask, ask)
    return world


def live(world: World, case: Case) -> None:
    """Live through it."""
    world.run(case.over_at)
    deadlines = case.setup.core.deadlines
    world.settle(deadlines.request + case.setup.lease_s + 2 * max(world.frozen_s, default=0.0))


# ------------------------------------------------------------------ the deployment


def _setup(scenario: Scenario, rng: Random) -> Setup:
    divergence = rng.choice([None, None, 10, 3])
    workers: list[WorkerSpec] = []
    for site in list(SITES)[: rng.choice(scenario.sites)]:
        for number, roles in enumerate(rng.choice(SITES[site])):
            workers.append(
                WorkerSpec(
                    name=f"{site}/{'-'.join(sorted(roles))}/{number}",
                    site=site,
                    roles=roles,
                    step_s=rng.choice([0.02, 0.03, 0.05, 0.08]),
                    prefill_tokens_per_s=rng.choice([300.0, 1000.0]),
                    slots=rng.choice([3, 8]),
                    kv_tokens=rng.choice([1024, 4096]),
                    salt=len(workers) if divergence is not None else 0,
                    warm=rng.choice([True, False]),
                )
            )
    core = CoreConfig(
        gateway="",
        gateway_site=rng.choice(sorted({worker.site for worker in workers})),
        handoff=rng.choice(list(HandoffMode)),
        codec="raw",
        queue_limit=rng.choice([2, 256]),
        deadlines=DEADLINES,
    )
    pools = {(worker.site, worker.pool): None for worker in workers}
    with_stores = scenario.stores > 0.0 and rng.random() < scenario.stores
    return Setup(
        core=core,
        workers=tuple(workers),
        stores=tuple(_store(*pool, rng) for pool in pools) if with_stores else (),
        gateways=rng.choice(scenario.gateways),
        one_way_s=rng.choice(scenario.line.one_way),
        jitter_s=rng.choice(scenario.line.jitter),
        bytes_per_s=rng.choice(scenario.line.bandwidth),
        end_rate=rng.choice([0.0, 0.03]),
        divergence=divergence,
        # With few words stop strings are met, and other histories have equal tokens by chance.
        vocab_size=rng.choice([40, 32_000]),
    )


def _store(site: str, pool: str, rng: Random) -> StoreSpec:
    """From a handful of blocks to more than a case fills; the model has 256 bytes of KV a block."""
    return StoreSpec(
        site=site,
        pool=pool,
        memory_bytes=rng.choice([4096, 1 << 14, 1 << 16]),
        policy=rng.choice(list(POLICIES)),
        files=rng.choice([True, False]),
        bytes_per_s=rng.choice([2e3, 1e5, 1e7]),
    )


# ------------------------------------------------------------------ the requests


def _asks(load: Load, setup: Setup, rng: Random) -> list[Ask]:
    # Few more often than many: what goes wrong mostly needs no crowd.
    count = load.least + int((load.most - load.least + 1) * rng.random() ** 5)
    burst_at = READY_S + rng.random() * load.over if rng.random() < load.bursts else None
    prefix = tuple(rng.randrange(3, setup.vocab_size) for _ in range(max(load.prompts)))
    asks = []
    for number in range(count):
        at = READY_S + rng.random() * load.over
        if burst_at is not None and number % 2:
            at = burst_at
        asks.append(
            Ask(
                at=at,
                arrived=_arrived(f"r{number}", load, setup, rng, prefix),
                gateway=rng.randrange(setup.gateways),
                leaves_after=4 * rng.random() if rng.random() < load.leaving else None,
            )
        )
    return asks


def _arrived(name: str, load: Load, setup: Setup, rng: Random, prefix: tuple[int, ...]) -> Arrived:
    length = rng.choice(load.prompts)
    shared = rng.choice([0, 0, length // 2, length])  # of a prompt that others begin with too
    own = tuple(rng.randrange(3, setup.vocab_size) for _ in range(length - shared))
    salt = rng.choice(["", "", "tenant"])  # a tenant of its own, too: they take turns
    return Arrived(
        request=name,
        prompt_ids=prefix[:shared] + own,
        limit=rng.choice(load.outputs),
        min_tokens=rng.choice([0, 0, 5]),
        stop_ids=rng.choice([(), (2,)]),
        stop_strings=rng.choice([(), (), ("5",), ("7,8", "9,10", "11,12,13")]),
        route=rng.choice([None, None, *Route]),
        handoff=rng.choice([None, *HandoffMode]),
        sampling=Sampling(temperature=rng.choice([0.0, 0.8]), seed=rng.randrange(100)),
        cache_salt=salt,
        tenant=salt or "default",
        weight=rng.choice([1.0, 1.0, 4.0]),
    )


# ------------------------------------------------------------------ the faults


def _faults(scenario: Scenario, setup: Setup, rng: Random) -> list[Fault]:
    faults = scenario.faults
    # Swarm testing (Groce and others, 2012): few kinds at a time bring about what all would hide.
    kinds = [kind for kind, weight in faults.weights.items() if weight and rng.random() < 0.5]
    kinds = kinds or [kind for kind, weight in faults.weights.items() if weight]
    weights = [faults.weights[kind] for kind in kinds]
    count = rng.randint(faults.least, faults.most)
    drawn = [rng.choices(kinds, weights)[0] for _ in range(count)]
    made = [_fault(kind, scenario, setup, rng) for kind in drawn]
    # A clock has one rate for all its life.
    clocks = {f.target: f for f in made if f.kind is Kind.CLOCK}
    made = [f for f in made if f.kind is not Kind.CLOCK or clocks[f.target] is f]
    return sorted(made, key=lambda fault: fault.at)


def _fault(kind: Kind, scenario: Scenario, setup: Setup, rng: Random) -> Fault:
    faults = scenario.faults
    at = rng.random() * (READY_S + faults.over)
    lasting, back_after = rng.choice(faults.lasting), rng.choice(faults.back_after)
    worker = rng.choice(setup.workers).name
    site = rng.choice(setup.sites)
    gateway = str(rng.randrange(setup.gateways))
    chance = rng.choice(faults.chances)
    process = rng.choice([worker, f"agent-{site}", f"g{gateway}"])
    if kind in (Kind.KILL_WORKER, Kind.FREEZE_WORKER, Kind.RESET, Kind.MEMORY):
        seconds = {Kind.KILL_WORKER: back_after, Kind.RESET: 0.0}.get(kind, lasting)
        amounts = {Kind.MEMORY: faults.memory, Kind.RESET: SPARED}
        amount = rng.choice(amounts[kind]) if kind in amounts else 0.0
        return Fault(kind=kind, at=at, target=worker, seconds=seconds, amount=amount)
    if kind in (Kind.KILL_GATEWAY, Kind.FREEZE_GATEWAY):
        seconds = back_after if kind is Kind.KILL_GATEWAY else lasting
        return Fault(kind=kind, at=at, target=gateway, seconds=seconds)
    if kind in (Kind.KILL_AGENT, Kind.FREEZE_AGENT):
        seconds = back_after if kind is Kind.KILL_AGENT else lasting
        return Fault(kind=kind, at=at, target=site, seconds=seconds)
    if kind in (Kind.PARTITION, Kind.ONE_WAY):
        ends = _ends(setup, rng)
        return Fault(kind=kind, at=at, target=ends[0], other=ends[1], seconds=lasting)
    if kind in OF_STORES:
        store = rng.choice(setup.stores).name
        seconds = {Kind.KILL_STORE: back_after, Kind.DAMAGE_STORE: 0.0}.get(kind, lasting)
        amount = rng.choice(faults.delays) if kind is Kind.DELAY_STORE else chance
        return Fault(kind=kind, at=at, target=store, seconds=seconds, amount=amount)
    if kind is Kind.CLOCK:
        rate = rng.choice(faults.clock_rates)
        return Fault(kind=kind, at=0.0, target=process, amount=rate)
    amount = rng.choice(faults.delays) if kind is Kind.DELAY else chance
    return Fault(kind=kind, at=at, seconds=lasting, amount=amount)


def _ends(setup: Setup, rng: Random) -> tuple[str, str]:
    """Two sites; or, as often, a worker and another worker or a gateway's machine."""
    if len(setup.sites) > 1 and rng.random() < 0.5:
        a, b = rng.sample(setup.sites, 2)
        return a, b
    names = [worker.name for worker in setup.workers]
    others = names + [f"g{place}" for place in range(setup.gateways)]
    a = rng.choice(names)
    b = rng.choice([name for name in others if name != a])
    return (a, b) if rng.random() < 0.5 else (b, a)
