"""Random trouble for a virtual deployment, from a seed."""

import random

from orchestrator.state.actions import Finish
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import HandoffMode, Route
from tests.orchestrator.lifecycle.virtual import TWO_SITES, Deployment, Spec
from workers.api.messages import Role, Sampling

THREE_SITES = (
    Spec("p0", "hami", frozenset({Role.PREFILL})),
    Spec("p1", "hami", frozenset({Role.PREFILL}), step_s=0.03),
    Spec("r0", "hami", frozenset({Role.RELAY}), slots=3),
    Spec("r1", "hami", frozenset({Role.RELAY}), step_s=0.02),
    Spec("m0", "shenzhen", frozenset({Role.MAIN}), kv_tokens=1024),
    Spec("m1", "shenzhen", frozenset({Role.MAIN}), step_s=0.03, slots=4),
    Spec("x0", "urumqi", frozenset(Role), step_s=0.08),
)
DEADLINES = Deadlines(
    queue=10.0, prefill=10.0, kv=10.0, first_token=4.0, silence=4.0, cut=2.0, request=90.0
)


def troubled(seed: int, *, requests: int = 12) -> Deployment:
    """A deployment that has lived through the faults of this seed and is quiet again."""
    rng = random.Random(seed)
    config = CoreConfig(
        gateway="g",
        gateway_site=rng.choice(["hami", "shenzhen"]),
        handoff=rng.choice(list(HandoffMode)),
        queue_limit=rng.choice([2, 256]),
        deadlines=DEADLINES,
    )
    specs = rng.choice([TWO_SITES, THREE_SITES])
    divergence = rng.choice([None, None, 10, 3])
    if divergence is not None:
        specs = tuple(Spec(**{**vars(s), "salt": i}) for i, s in enumerate(specs))
    calm = rng.random() < 0.2
    world = Deployment(
        specs,
        seed=seed,
        config=config,
        jitter_s=0.0 if calm else rng.choice([0.0, 0.01, 0.1]),
        loss=0.0 if calm else rng.choice([0.0, 0.02, 0.2]),
        repeat=0.0 if calm else rng.choice([0.0, 0.1]),
        kv_s=rng.choice([0.0, 0.3, 1.0, 3.0]),
        end_rate=rng.choice([0.0, 0.03]),
        divergence=divergence,
        prefill_tokens_per_s=rng.choice([100.0, 1000.0]),
        # With few words stop strings are met, and other histories have equal tokens by chance.
        vocabulary=rng.choice([40, 32_000]),
    )
    names = [spec.name for spec in specs]
    for i in range(requests):
        at = rng.random() * 6
        world.at(at, lambda i=i: _ask(world, rng, f"r{i}"))
        if rng.random() < 0.15:
            world.at(at + rng.random() * 4, lambda i=i: world.leave(f"r{i}"))
    for _ in range(0 if calm else rng.choice([0, 1, 2, 5])):
        name, at, length = rng.choice(names), rng.random() * 8, rng.choice([0.2, 1.0, 6.0, 12.0])
        fault = rng.choice(["kill", "kill", "freeze", "cut"])
        if fault == "kill":
            back = rng.choice([1.0, 5.0])
            world.at(at, lambda n=name, b=back: world.kill(n, back_after=b))
        elif fault == "freeze":
            world.at(at, lambda n=name, s=length: world.freeze(n, s))
        else:
            world.at(at, lambda n=name, s=length: world.cut(n, s))
    world.run(until=10.0)
    world.run()
    return world


def _ask(world: Deployment, rng: random.Random, name: str) -> None:
    world.ask(
        name,
        prompt=rng.choice([1, 5, 16, 17, 64, 100, 200]),
        limit=rng.choice([1, 2, 3, 20, 60]),
        min_tokens=rng.choice([0, 0, 5]),
        stop_ids=rng.choice([(), (2,)]),
        stop_strings=rng.choice([(), (), ("5",), ("7,8", "9,10", "11,12,13")]),
        route=rng.choice([None, None, *Route]),
        handoff=rng.choice([None, *HandoffMode]),
        sampling=Sampling(temperature=rng.choice([0.0, 0.8]), seed=rng.randrange(100)),
    )


def outcome(world: Deployment) -> dict[str, int]:
    """How many requests ended how, and what was counted on the way."""
    ended: dict[str, int] = {}
    for client in world.clients.values():
        key = (
            "gone"
            if client.gone
            else "finished"
            if isinstance(client.end, Finish)
            else f"failed_{client.end.failure}"
            if client.end
            else "open"
        )
        ended[key] = ended.get(key, 0) + 1
    return {**ended, **world.machine.ctx.counts}
