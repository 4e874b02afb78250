"""Stories on the virtual deployment: who is there, how to get to a phase, what must be true."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from orchestrator.lifecycle.phases import Phase
from orchestrator.state.actions import Finish
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import HandoffMode, Route
from tests.orchestrator.lifecycle.virtual import Client, Deployment, Spec
from workers.api.messages import Role

P, R, M = Role.PREFILL, Role.RELAY, Role.MAIN
SPARES = (
    Spec("p0", "hami", frozenset({P})),
    Spec("p1", "hami", frozenset({P})),
    Spec("r0", "hami", frozenset({R})),
    Spec("r1", "hami", frozenset({R})),
    Spec("m0", "shenzhen", frozenset({M})),
    Spec("m1", "shenzhen", frozenset({M})),
)
SLOW_MAIN = tuple(replace(s, step_s=0.07) if s.site == "shenzhen" else s for s in SPARES)
MakeWorld = Callable[..., Deployment]


def new_world(
    specs: tuple[Spec, ...] = SPARES,
    *,
    handoff: HandoffMode = HandoffMode.AUTO,
    gateway_site: str = "shenzhen",
    deadlines: Deadlines = Deadlines(queue=10.0, request=120.0),  # noqa: B008 - frozen
    **fields: object,
) -> Deployment:
    config = CoreConfig(
        gateway="g", gateway_site=gateway_site, handoff=handoff, deadlines=deadlines
    )
    return Deployment(specs, config=config, **fields)  # type: ignore[arg-type]


def ask(world: Deployment, **fields: object) -> Client:
    return world.ask("a", **{"route": Route.RELAY, **fields})  # type: ignore[arg-type]


def reach(world: Deployment, phase: Phase, *, tokens: int = 0) -> None:
    """Run until the request is in a phase and has so many tokens."""

    def there() -> bool:
        req = world.machine.requests.get("a")
        return req is not None and req.phase is phase and len(req.law) >= tokens

    world.run(until=60.0, stop=there)
    assert there(), f"{phase} was never reached"


def worker_of(world: Deployment, role: Role) -> str:
    leg = world.machine.requests["a"].leg(role)
    assert leg is not None
    return leg.worker


def served(world: Deployment, client: Client, *, limit: int = 40) -> None:
    """It ends well, complete; the tokens themselves are checked at the end of the test."""
    world.run()
    assert isinstance(client.end, Finish), client.end
    assert len(client.ids) == limit


def waits(client: Client) -> float:
    """The longest wait between two tokens."""
    return max(b - a for a, b in pairwise(client.times))


def drop_once(world: Deployment, kind: type, worker: str, *, nth: int = 0) -> None:
    seen = {"left": nth}

    def drop(where: str, message: object) -> bool:
        if where != worker or not isinstance(message, kind):
            return False
        seen["left"] -= 1
        return seen["left"] == -1

    world.drop = drop
