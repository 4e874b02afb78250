"""What a request takes on its path, with the workers and lines in a given state.

After PDD (arXiv 2609.13161): KV lands max(0, V / B + wait - prefill) + d after prefill ends, and a
relay decodes until main has it and the handover is done. All times are seconds.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import NamedTuple

from orchestrator.plan.demand import RequestClass
from orchestrator.plan.programme.paths import Ends, Net, Path
from orchestrator.policy.handoff import main_is_faster, pace_s, wanted_lead_s
from workers.api.messages import PREFILL


@dataclass(slots=True)
class State:
    """How the workers and lines of a net are, by the places of its groups.

    `batch`: sequences that one worker decodes; `context`: tokens of each; `step_s`: of that batch,
    and `variance` of it, in s2; `held`: part of the memory or slots in use, `hold_s`: by one leg;
    `cached`: part of the known tokens that the cache still has; `prefill_s`: of each class in each
    site, alone.
    """

    load: list[float]
    batch: list[float]
    context: list[float]
    step_s: list[float]
    variance: list[float]
    wait_s: list[float]
    held: list[float]
    hold_s: list[float]
    cached: list[float]
    line_load: dict[Ends, float]
    line_wait_s: dict[Ends, float]
    prefill_s: dict[tuple[int, str], float]

    def copy(self) -> "State":
        """One that can be changed without this one."""
        return replace(self, **{name: getattr(self, name).copy() for name in self.__slots__})


def empty_state(net: Net) -> State:
    """Nobody is there yet: no waits, batches of one, all that was ever seen still in the caches."""
    count = len(net.groups)
    shares, classes = net.problem.shares, net.problem.classes
    mean = sum(s * (c.prompt + c.output / 2) for s, c in zip(shares, classes, strict=True))
    steps = [
        0.0 if group.role is PREFILL else decoding.step_s(1, mean)
        for group, decoding in zip(net.groups, net.decoding, strict=True)
    ]
    prefill_s = {
        (kind, site): min(net.prefill_s(kind, place, 1.0) for place in places)
        for kind in range(len(classes))
        for site, places in net.prefills.items()
    }
    return State(
        load=[0.0] * count,
        batch=[1.0] * count,
        context=[mean] * count,
        step_s=steps,
        variance=[0.0] * count,
        wait_s=[0.0] * count,
        held=[0.0] * count,
        hold_s=[0.0] * count,
        cached=[1.0] * count,
        line_load=dict.fromkeys(net.rates, 0.0),
        line_wait_s=dict.fromkeys(net.rates, 0.0),
        prefill_s=prefill_s,
    )


class Terms(NamedTuple):
    """What one request takes on its path.

    `kv_s`: from prefill's end until main has all KV; `stall_s`: what the wait for the second token
    is longer than a step; `hold_s`: from prefill's end until relay has handed over; `wire_bytes`:
    raw KV that goes over the line; `extend_s`: main's catching up with what relay has decoded.
    """

    kv_s: float
    wire_bytes: float
    stall_s: float
    relay_tokens: float
    main_tokens: float
    extend_s: float
    hold_s: float


class _Sending(NamedTuple):
    """A request's KV for main: raw bytes, seconds on the wire with and without the wait before."""

    nbytes: float
    waiting_s: float
    alone_s: float
    delay_s: float


def terms_of(net: Net, path: Path, state: State) -> Terms:
    """What a path takes as things are."""
    sending = _sending(net, path, state)
    if path.relay is None:
        return _direct(net, path, state, sending)
    return _relayed(net, path, path.relay, state, sending)


def unsent_terms(net: Net, path: Path, state: State) -> Terms:
    """What a relayed path takes of a request whose KV never has its turn: relay ends the answer."""
    assert path.relay is not None  # without one somebody waits for that KV
    near_s, decoded = _near_s(net, path), _decoded(net, path)
    relay_step_s = state.step_s[path.relay]
    return Terms(
        kv_s=0.0,
        wire_bytes=0.0,
        stall_s=near_s + relay_step_s / 2,
        relay_tokens=decoded,
        main_tokens=0.0,
        extend_s=0.0,
        hold_s=near_s + decoded * relay_step_s,
    )


def kv_bytes(net: Net, path: Path, state: State) -> float:
    """Raw KV of a request that main lacks."""
    return net.missing(path.kind, path.main, state.cached[path.main]) * (
        net.problem.kv_bytes_per_token
    )


def relay_reserve(request: RequestClass, relay_tokens: float) -> float:
    """Tokens of KV memory that a relay leg sets aside (PROTOCOL, rule 9)."""
    return request.prompt + min(request.output, 2 * max(16.0, relay_tokens))


def _sending(net: Net, path: Path, state: State) -> _Sending:
    nbytes, ground = kv_bytes(net, path, state), net.ground
    if path.line is None:
        alone_s = nbytes / ground.inside_bytes_per_s(path.site)
        return _Sending(nbytes, alone_s, alone_s, ground.delay_s(path.site, path.site))
    alone_s, wait_s = nbytes / net.rates[path.line], state.line_wait_s[path.line]
    return _Sending(nbytes, alone_s + wait_s, alone_s, ground.delay_s(*path.line))


def _direct(net: Net, path: Path, state: State, sending: _Sending) -> Terms:
    home_s, there = net.ground.home_s, net.groups[path.main].pool.site
    # Streaming begins with the first layers, so the wire works while prefill still runs.
    hidden_s = state.prefill_s[path.kind, path.site]
    kv_s = max(0.0, sending.waiting_s - hidden_s) + sending.delay_s
    token_s = home_s(path.site) + home_s(there)  # the first token's way to main
    turn_s = home_s(there) - home_s(path.site)  # second tokens come from elsewhere
    return Terms(
        kv_s=kv_s,
        wire_bytes=sending.nbytes,
        stall_s=max(kv_s, token_s) + turn_s + state.step_s[path.main] / 2,
        relay_tokens=0.0,
        main_tokens=_decoded(net, path),
        extend_s=0.0,
        hold_s=0.0,
    )


def _relayed(net: Net, path: Path, relay: int, state: State, sending: _Sending) -> Terms:
    assert path.line is not None  # relays bridge lines only
    request, ground = net.problem.classes[path.kind], net.ground
    decoded = _decoded(net, path)
    main_step_s, relay_step_s = state.step_s[path.main], state.step_s[relay]
    prefill_s = state.prefill_s[path.kind, path.site]
    near_s = _near_s(net, path)
    # What KV can wait for its turn before the answer has ended without it.
    ends_s = near_s + decoded * relay_step_s
    spare_s = ends_s - main_step_s - sending.delay_s + prefill_s - sending.alone_s
    wait_s, turn_comes = _turn(path.line, spare_s, state)
    kv_s = max(0.0, sending.alone_s + wait_s - prefill_s) + sending.delay_s
    ready_s = max(0.0, kv_s + main_step_s - near_s)
    before = min(decoded, ready_s / relay_step_s)  # tokens until main has joined in
    rtt_s = ground.home_s(path.site) + ground.home_s(net.groups[path.main].pool.site)
    race_s = _race_s(relay_step_s, main_step_s, rtt_s, net.problem.handoff_bound_s)
    relay_tokens = min(decoded, before + race_s / relay_step_s)
    return Terms(
        kv_s=kv_s,
        wire_bytes=sending.nbytes * turn_comes,
        stall_s=near_s + relay_step_s / 2,
        relay_tokens=relay_tokens,
        main_tokens=decoded - before,
        extend_s=net.decoding[path.main].extend_s(round(before), round(request.prompt)),
        hold_s=near_s + relay_tokens * relay_step_s,
    )


def _near_s(net: Net, path: Path) -> float:
    """Until relay has KV, over the site's own network, and the first token."""
    ground, prompt = net.ground, net.problem.classes[path.kind].prompt
    kv_s = prompt * net.problem.kv_bytes_per_token / ground.inside_bytes_per_s(path.site)
    kv_s += ground.delay_s(path.site, path.site)
    return max(kv_s, 2 * ground.home_s(path.site))


def _decoded(net: Net, path: Path) -> float:
    """Tokens of an answer after its first, which prefill gives."""
    return max(0.0, net.problem.classes[path.kind].output - 1)


def _turn(line: Ends, spare_s: float, state: State) -> tuple[float, float]:
    """How long KV waits on average for its turn, at most `spare_s`; and the chance of a turn.

    A wait is 0 or exponential, see `queues`. KV of an answer that has ended is dropped: so a line
    that is too slow for all still carries some, and relays do the rest.
    """
    mean_s, load = state.line_wait_s[line], min(1.0, state.line_load[line])
    if not mean_s or not load:
        return 0.0, 1.0
    late = exp(-load * max(0.0, spare_s) / mean_s)
    return mean_s * (1 - late), 1 - load * late


def _race_s(relay_step_s: float, main_step_s: float, rtt_s: float, bound_s: float) -> float:
    """How long relay and main both decode: until main has caught up, or a lead covers a cut.

    The rules are `orchestrator.policy.handoff`'s.
    """
    if main_is_faster(relay_step_s, main_step_s):
        behind = (rtt_s + main_step_s) / relay_step_s
        race_s = behind / (1 / main_step_s - 1 / relay_step_s)
        if race_s <= bound_s:
            return race_s
    # A pace slower than relay's steps builds 1 - step / pace seconds of lead in each second.
    gained = 1 - relay_step_s / pace_s(relay_step_s, main_step_s)
    return min(bound_s, wanted_lead_s(relay_step_s, main_step_s, rtt_s) / gained)
