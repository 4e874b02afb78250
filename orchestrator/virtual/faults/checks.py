"""What must be true of a world in which all is quiet again."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from orchestrator.state.actions import Fail, Failure, Finish, Send
from orchestrator.state.events import (
    Arrived,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from orchestrator.virtual.client import Client
from orchestrator.virtual.faults.reference import why_wrong
from orchestrator.virtual.gateway import VirtualGateway
from orchestrator.virtual.promises import Breach, Promise
from orchestrator.virtual.worker import VirtualWorker
from orchestrator.virtual.world import PEACE_S, World
from workers.api.messages import Role, Start, Stop

# Added to a deadline: the ways between client, gateway and clocks that differ.
SLACK = 1.03
# The longest wait after the last fault, on a line that holds: one deadline, and what it begins.
RESUME_S = 12.0
# What the core counts when something was lost or late.
DAMAGES = ("_late", "_lost", "kv_failed")
# The longest wait between two tokens after small accidents: a few in a row on a slow line, but no
# deadline.
FLOW_S = 5.0


def check(world: World) -> list[Breach]:
    """Every broken promise: those seen on the way, then those that show at the end."""
    found = list(world.breaches)
    for client in world.clients.values():
        found += _client(world, client)
    for gateway in world.gateways:
        if gateway.process.alive:
            found += _gateway(world, gateway)
    for gateway in [*world.gateways, *world.ended]:
        found += _legs(world, gateway)
        found += _placing(world, gateway)
    for worker in world.workers.values():
        if worker.process.alive:
            found += _worker(world, worker)
    return found


def _client(world: World, client: Client) -> Iterator[Breach]:
    """What a client saw, and when."""

    def breach(promise: Promise, seen: str) -> Breach:
        return Breach(promise=promise, who=client.name, at=world.now, seen=seen)

    longest_s = max((b - a for a, b in pairwise(client.times)), default=0.0)
    if world.mild and longest_s > FLOW_S:
        yield breach(Promise.FLOWS, f"{longest_s:.1f} s between two tokens")
    after_s = _longest_after(world, client)
    if after_s > RESUME_S and _line_holds(world):
        yield breach(Promise.RESUMES, f"{after_s:.1f} s after the last fault")
    wrong = why_wrong(world.setup, client)
    if wrong is not None:
        yield breach(Promise.RIGHT_TOKENS, wrong)
    if client.left or client.cut_off:
        return
    if client.end is None or client.ended_at is None:
        yield breach(Promise.ENDS, f"{len(client.ids)} tokens and no end")
        return
    took_s = client.ended_at - client.asked_at
    most_s = world.setup.core.deadlines.request * SLACK + world.frozen_s[client.ask.gateway]
    if took_s > most_s:
        yield breach(Promise.ENDS, f"after {took_s:.1f} s, {most_s:.1f} are allowed")
    if isinstance(client.end, Finish):
        counted = client.end.summary.completion_tokens
        if counted != len(client.ids):
            yield breach(Promise.COUNTS, f"{counted} counted, {len(client.ids)} came")
        recoveries = client.end.summary.recoveries
        peaceful = world.troubled_since is None or client.ended_at < world.troubled_since
        if recoveries and peaceful and _line_holds(world):
            yield breach(Promise.NO_LOSS, f"{recoveries} legs")
    elif isinstance(client.end, Fail) and client.end.failure is Failure.INTERNAL:
        yield breach(Promise.NO_DEFECT, client.end.message)


def _longest_after(world: World, client: Client) -> float:
    """How long the client waited for one thing, counted from the end of the last fault."""
    if client.left or client.cut_off:
        return 0.0
    points = [client.asked_at, *client.times]
    points += [] if client.ended_at is None else [client.ended_at]
    over = world.troubled_until
    return max((b - max(a, over) for a, b in pairwise(points)), default=0.0)


def _line_holds(world: World) -> bool:
    """Whether all prompts together could cross one line within one leg's deadline for KV."""
    per_token = next(iter(world.workers.values())).engine.info.kv_bytes_per_token
    prompts = sum(len(client.ask.arrived.prompt_ids) for client in world.clients.values())
    return prompts * per_token <= world.setup.bytes_per_s * world.setup.core.deadlines.kv


def _gateway(world: World, gateway: VirtualGateway) -> Iterator[Breach]:
    """What a living gateway's core counts, knows and holds."""

    def breach(promise: Promise, seen: str) -> Breach:
        return Breach(promise=promise, who=gateway.name, at=world.now, seen=seen)

    machine = gateway.machine
    spent = {k: n for k, n in machine.ctx.counts.items() if k.endswith(DAMAGES)}
    if world.mild and spent:
        yield breach(Promise.NO_STALL, str(spent))
    if world.now > world.troubled_until + PEACE_S:
        for name, member in gateway.members.by_name.items():
            now = world.workers[name].hello.incarnation
            if member.hello is not None and member.hello.incarnation != now:
                yield breach(Promise.KNOWN, f"{name}: {member.hello.incarnation}, now {now}")
    if machine.requests or machine.queued:
        seen = f"requests {sorted(machine.requests)}, {machine.queued} queued"
        yield breach(Promise.BOOKS, seen)
    if machine.next_deadline() is not None:
        yield breach(Promise.BOOKS, f"a deadline at {machine.next_deadline()}")
    for view in machine.ctx.world.workers.values():
        if view.bookings:
            yield breach(Promise.BOOKS, f"{view.name} is still booked: {view.bookings}")
    for pair, link in machine.ctx.world.links.items():
        if link.queued:
            yield breach(Promise.BOOKS, f"{sorted(pair)} still queues {link.queued}")


def _legs(world: World, gateway: VirtualGateway) -> Iterator[Breach]:
    """From the log: a leg is started at most once, and one of a living gateway was stopped."""
    starts: Counter[tuple[str, int]] = Counter()
    stops: set[tuple[str, int]] = set()
    for entry in gateway.log:
        for action in entry.actions:
            if isinstance(action, Send):
                message = action.message
                if isinstance(message, Start):
                    starts[message.request, message.epoch] += 1
                elif isinstance(message, Stop):
                    stops.add((message.request, message.epoch))
    for leg, count in starts.items():
        who = f"{leg[0]}, epoch {leg[1]}"
        if count > 1:
            seen = f"started {count} times"
            yield Breach(promise=Promise.STOPPED, who=who, at=world.now, seen=seen)
        if leg not in stops and gateway.process.alive:
            yield Breach(promise=Promise.STOPPED, who=who, at=world.now, seen="never stopped")


def _placing(world: World, gateway: VirtualGateway) -> Iterator[Breach]:
    """From the log: where legs were started, given what the gateway knew."""
    draining: set[str] = set()
    peaceful = True
    for entry in gateway.log:
        event = entry.event
        if isinstance(event, WorkerDraining):
            draining.add(event.worker)
        elif isinstance(event, WorkerReturned | WorkerUp | WorkerLost):
            draining.discard(event.worker)
            if isinstance(event, WorkerUp) and event.draining:
                draining.add(event.worker)
        since = world.troubled_since
        peaceful = peaceful and (since is None or entry.at < since)
        first: dict[Role, str] = {}  # the legs that a new request gets
        for action in entry.actions:
            if not isinstance(action, Send) or not isinstance(action.message, Start):
                continue
            start = action.message
            if action.worker in draining:
                seen = f"{start.role} of {start.request} to {action.worker}"
                yield Breach(promise=Promise.DRAINED, who=gateway.name, at=entry.at, seen=seen)
            if isinstance(event, Arrived) and start.request == event.request:
                first[start.role] = action.worker
        if peaceful and first and isinstance(event, Arrived):
            wrong = _misplaced(world, event, first)
            if wrong is not None:
                yield Breach(promise=Promise.ROLES, who=event.request, at=entry.at, seen=wrong)


def _misplaced(world: World, arrived: Arrived, starts: dict[Role, str]) -> str | None:
    """Why these first legs of a request are in the wrong place; None: they are not."""
    specs = {role: world.workers[name].spec for role, name in starts.items()}
    for role, spec in specs.items():
        if role not in spec.roles:
            return f"{role} to {spec.name}"
    prefill, relay, main = (specs.get(role) for role in (Role.PREFILL, Role.RELAY, Role.MAIN))
    if prefill is None:
        return "nobody prefills"
    if relay is not None and relay.site != prefill.site:
        return f"a relay in {relay.site}, prefill in {prefill.site}"
    if relay is not None and (main is None or main.site == prefill.site):
        return "a relay without a line to hide"
    if arrived.limit > 1 and main is None:
        return "nobody decodes"
    return None


def _worker(world: World, worker: VirtualWorker) -> Iterator[Breach]:
    """What a living worker still holds."""
    name = worker.spec.name
    held = worker.engine.kv_held_tokens()
    if held or worker.core.leg_count:
        seen = f"{held} tokens held, {worker.core.leg_count} legs"
        yield Breach(promise=Promise.KV_FREE, who=name, at=world.now, seen=seen)
    if not worker.kv.idle:
        yield Breach(promise=Promise.STREAMS_END, who=name, at=world.now, seen="a stream is open")
