"""What happened to a request, for people: events, actions and faults in the order of time."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from orchestrator.state.actions import Action, Emit, Send
from orchestrator.state.events import Arrived, Event, Heard
from orchestrator.virtual.faults.cases import Case
from orchestrator.virtual.promises import Breach
from orchestrator.virtual.world import World
from workers.streams.packed import unpacked

LONGEST_IDS = 6


def tell(
    case: Case, world: World, breaches: Sequence[Breach], requests: Sequence[str]
) -> Iterator[str]:
    """The lines of a story: the deployment, its faults, then each request's own events."""
    yield f"seed {case.seed}: {len(case.asks)} requests, {len(case.faults)} faults"
    yield from (
        f"  {worker.name}: {_words(worker, ('name', 'site'))}" for worker in case.setup.workers
    )
    yield "faults"
    yield from (f"  {fault}" for fault in case.faults)
    if breaches:
        yield "broken"
        yield from (f"  {breach}" for breach in breaches)
    for request in requests:
        yield ""
        yield from _request(world, request)


def _request(world: World, request: str) -> Iterator[str]:
    client = world.clients[request]
    yield f"{request}: {_words(client.ask.arrived, ('request',))}"
    touched: set[str] = set()  # workers that had a leg of it
    for gateway in [*world.ended, *world.gateways]:
        if gateway.name != client.gateway:
            continue
        for entry in gateway.log:
            event = entry.event
            told = _own(event, request)
            actions = [a for a in entry.actions if _request_of(a) == request]
            about = getattr(event, "worker", None) in touched and not isinstance(event, Heard)
            if not (told or about or actions):
                continue
            touched |= {a.worker for a in actions if isinstance(a, Send)}
            yield from (f"  {entry.now:9.4f}  {_event(one)}" for one in told or [event])
            yield from (f"             -> {_action(action)}" for action in actions)
    end = "left" if client.left else "its gateway died" if client.cut_off else client.end
    yield f"  the client saw {len(client.ids)} tokens: {_ids(client.ids)}; {end}"


def _own(event: Event, request: str) -> list[Event]:
    """An event as far as it is about a request; of what a worker said, its own part."""
    if not isinstance(event, Heard):
        return [event] if getattr(event, "request", None) == request else []
    messages = unpacked(event.message)
    return [replace(event, message=m) for m in messages if getattr(m, "request", None) == request]


def _request_of(action: Action) -> str:
    return action.message.request if isinstance(action, Send) else action.request


def _event(event: Event) -> str:
    if isinstance(event, Heard):
        message = event.message
        return f"{event.worker}: {type(message).__name__} {_words(message, ('request', 'worker'))}"
    without = ("request", "prompt_ids") if isinstance(event, Arrived) else ("request",)
    return f"{type(event).__name__} {_words(event, without)}"


def _action(action: Action) -> str:
    if isinstance(action, Send):
        message = action.message
        without = ("request", "gateway", "prompt_ids", "sampling", "to_worker", "address")
        to = f" for {message.to_worker}" if hasattr(message, "to_worker") else ""
        return f"{action.worker}: {type(message).__name__}{to} {_words(message, without)}"
    if isinstance(action, Emit):
        return f"client: tokens {action.start}-{action.start + len(action.ids) - 1}"
    return f"client: {type(action).__name__} {_words(action, ('request', 'summary'))}"


def _words(thing: Any, without: tuple[str, ...]) -> str:
    """What differs from the defaults, as name=value."""
    told = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if field.name in without or value == field.default or value in ((), None, ""):
            continue
        told.append(f"{field.name}={_value(value)}")
    return " ".join(told)


def _value(value: object) -> str:
    if isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
        return _ids(value)
    if is_dataclass(value):
        return f"({_words(value, ())})"
    if isinstance(value, frozenset):
        return "+".join(sorted(map(str, value)))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ids(ids: Sequence[int]) -> str:
    shown = ",".join(map(str, ids[:LONGEST_IDS]))
    return f"[{shown}{',...' if len(ids) > LONGEST_IDS else ''}]x{len(ids)}"
