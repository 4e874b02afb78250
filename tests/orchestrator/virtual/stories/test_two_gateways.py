"""Two gateways at the same full workers: nobody starves, and little is lost."""

from itertools import count

from orchestrator.state.actions import Finish
from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import Arrived
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.cases import READY_S
from orchestrator.virtual.setup import Ask, Setup
from orchestrator.virtual.world import World
from tests.orchestrator.virtual.stories.story_world import ANYWHERE, TWO_SITES, spec

QUEUE_S = 60.0


def world(gateways: int, *, slots: int, one_worker: bool) -> World:
    workers = (ANYWHERE,) if one_worker else TWO_SITES
    core = CoreConfig(
        gateway="", gateway_site=workers[-1].site, codec="raw", deadlines=Deadlines(queue=QUEUE_S)
    )
    made = World(
        Setup(
            core=core,
            workers=tuple(spec(w.name, *w.roles, slots=slots) for w in workers),
            gateways=gateways,
            bytes_per_s=1e6,
        )
    )
    made.run(READY_S + 0.5)
    return made


NUMBERS = count()


def ask(there: World, gateway: int, requests: int) -> list[Client]:
    made = []
    for _ in range(requests):
        number = next(NUMBERS)
        ids = tuple(range(10 + number * 50, 42 + number * 50))
        arrived = Arrived(request=f"r{number}", prompt_ids=ids, limit=40)
        made.append(there.ask(Ask(at=there.now, arrived=arrived, gateway=gateway)))
    return made


def took_s(there: World, clients: list[Client]) -> float:
    """Until the last of them was served, and all were."""
    began = there.now
    assert there.settle(10 * QUEUE_S)
    assert all(isinstance(client.end, Finish) for client in clients)
    assert not there.breaches
    return max(client.ended_at or 0.0 for client in clients) - began


def test_two_serve_almost_as_much_as_one() -> None:
    for one_worker in (True, False):
        alone = world(1, slots=8, one_worker=one_worker)
        alone_s = took_s(alone, ask(alone, 0, 40))
        both = world(2, slots=8, one_worker=one_worker)
        both_s = took_s(both, ask(both, 0, 20) + ask(both, 1, 20))
        assert both_s < 1.15 * alone_s


def test_who_comes_later_is_served_before_the_others_queue_is_empty() -> None:
    there = world(2, slots=6, one_worker=True)
    many = ask(there, 0, 40)
    there.run(there.now + 1.0)
    few = ask(there, 1, 4)
    few_s = took_s(there, few)
    many_s = max(client.ended_at or 0.0 for client in many) - few[0].asked_at
    assert few_s < many_s / 2


def test_what_was_refused_is_not_asked_again_and_again() -> None:
    there = world(2, slots=8, one_worker=True)
    clients = ask(there, 0, 30) + ask(there, 1, 30)
    took_s(there, clients)
    refused = sum(gateway.machine.ctx.counts["refused"] for gateway in there.gateways)
    assert refused < len(clients)
