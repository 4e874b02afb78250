"""Where a request runs: route and workers, from predicted latency. A pure function.

Formulas after PDD, arXiv 2609.13161. KV arrives T_kv = max(0, wait + V / B - prefill) + d after
prefill ends, where the link's queue has left wait = max(0, queue / B - time to prefill's turn) when
prefill begins, with queue, B and d as they are believed now (`state.links`); a relay hides it when
N = T_kv / tau_R tokens fit the output.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from math import ceil, inf
from typing import NamedTuple

from orchestrator.state.events import Route
from orchestrator.state.views import SAME_SITE_RTT_S, WorkerView, World
from workers.api.messages import (
    MAIN,
    PREFILL,
    RELAY,
    Role,
)
from workers.api.record import record
from workers.tiers.blocks import Tier
from workers.tiers.choice import ASSUMED_BYTES_PER_S

# Outputs are seldom as long as their limit; without a better prediction assume this many tokens.
EXPECTED_OUTPUT = 256
# A route that is predicted to be faster by less than this is not worth another worker.
TIE_S = 1e-6


class Refusal(StrEnum):
    """Why no route was found."""

    BUSY = "busy"  # workers exist, none has room now
    NOBODY = "nobody"  # no live worker could ever serve it
    TOO_LONG = "too long"  # it fits no worker's memory or context


@record
class Ask:
    """What is to be placed: `tokens` to compute (prompt and law), at most `remaining` to decode.

    `hits`: leading tokens each worker is known to have, `loads`: how many of them it would load
    from a store. `any_role`: after a failure any live
    worker may serve. `forced` is tried first; when it has no room the others follow. KV that has
    not landed `kv_limit_s` after prefill is given up: such a route is for want of another.
    """

    tokens: int
    remaining: int
    hits: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, int] = field(default_factory=dict)
    forced: Route | None = None
    excluded: frozenset[str] = frozenset()
    any_role: bool = False
    kv_limit_s: float = inf


class Decision(NamedTuple):
    """A route with its workers and what is predicted for it, in seconds."""

    route: Route
    prefill: str
    relay: str | None
    main: str
    ttft_s: float
    stall_s: float  # first token to second token, beyond nothing
    total_s: float
    relay_tokens: int  # tokens the relay is expected to decode
    late: bool  # main's KV will probably be given up before it has landed

    @property
    def cost_s(self) -> float:
        """What the choice is made by: a stall in plain sight counts twice.

        By the total alone a far main that is much faster than the relay would be taken without
        one: it catches up, but the client would have waited for the wire meanwhile.
        """
        return self.total_s + self.stall_s


def expected_output(remaining: int) -> int:
    """Tokens a request will probably decode."""
    return min(remaining, EXPECTED_OUTPUT)


def main_reserve(ask: Ask) -> int:
    """Tokens of KV memory main sets aside: everything there will ever be."""
    return ask.tokens + ask.remaining


def relay_reserve(ask: Ask, relay_tokens: int) -> int:
    """Tokens of KV memory the relay sets aside: twice what it is expected to decode."""
    return ask.tokens + min(ask.remaining, 2 * max(relay_tokens, 16))


def choose(ask: Ask, world: World) -> Decision | Refusal:
    """The fastest admissible route, or why there is none."""
    live = [w for w in world.workers.values() if w.name not in ask.excluded and not w.draining]
    # Of the route that is forced first: most often nobody needs to know of the others.
    found = list(_decisions(ask, world, live, ask.forced, only_with_room=True))
    if ask.forced is not None:
        found = found or list(_decisions(ask, world, live, None, only_with_room=True))
    if found:
        return min(found, key=_rank) if len(found) > 1 else found[0]
    if any(True for _ in _decisions(ask, world, live, None, only_with_room=False)):
        return Refusal.BUSY
    fits = [w for w in live if main_reserve(ask) <= min(w.up.max_context, w.up.kv_total_tokens)]
    return Refusal.NOBODY if fits or not live else Refusal.TOO_LONG


def place(
    role: Role,
    tokens: int,
    world: World,
    *,
    context: int,
    near: str,
    hits: Mapping[str, int],
    excluded: frozenset[str] = frozenset(),
    any_role: bool = False,
) -> str | None:
    """One worker for one leg: its role first, then the site nearest to `near`, then the lightest.

    `tokens` of KV memory are set aside; `context` is the longest the sequence can get. With
    `any_role` a worker without the role serves when nobody else can.
    """
    able = [
        w
        for w in world.workers.values()
        if w.name not in excluded
        and not w.draining
        and (any_role or role in w.roles)
        and w.has_room(tokens)
        and context <= w.up.max_context
        and world.connected(w.site, near)
    ]

    def key(w: WorkerView) -> tuple[bool, float, int, float, str]:
        return (
            role not in w.roles,
            0.0 if w.site == near else world.rtt_s(w.site, near),
            -hits.get(w.name, 0),
            w.share + w.prefill_queue_tokens / w.prefill_tokens_per_s,
            w.name,
        )

    best = min(able, key=key, default=None)
    return None if best is None else best.name


ANY_ROLE = frozenset(Role)
# What a store gives, until somebody tells better: as workers assume who have not measured theirs.
STORE_BYTES_PER_S = ASSUMED_BYTES_PER_S[Tier.MEMORY]
LOCAL, DIRECT, RELAYED = Route
ORDER = {LOCAL: 0, DIRECT: 1, RELAYED: 2}


def _rank(d: Decision) -> tuple[bool, float, int, str, str]:
    # Rounded so that float noise between equal workers never beats the fixed order.
    return (d.late, round(d.cost_s / TIE_S) * TIE_S, ORDER[d.route], d.prefill, d.main)


# A worker with what it is chosen by, the smallest first; names differ, so no two are equal.
_Ranked = tuple[float, str, WorkerView]
_RankedMain = tuple[float, float, str, WorkerView]


class _Prefill(NamedTuple):
    """A worker for the prefill leg, with what that leg will take."""

    worker: WorkerView
    turn_s: float  # until it begins
    prefill_s: float
    ttft_s: float


def _decisions(
    ask: Ask,
    world: World,
    live: list[WorkerView],
    route: Route | None,
    *,
    only_with_room: bool,
) -> Iterator[Decision]:
    """The best of each site's workers, put together in every way, or those of one `route`."""
    tokens, need_main, need_relay = ask.tokens, main_reserve(ask), relay_reserve(ask, 0)
    prefills: dict[str, _Ranked] = {}  # by site, the best
    relays: list[tuple[float, str, WorkerView, int]] = []  # the last: tokens it has room for
    mains: dict[str, list[_RankedMain]] = {}
    for w in live:
        up = w.up
        if need_main > up.max_context:
            continue
        roles = ANY_ROLE if ask.any_role else w.roles
        most = w.room if only_with_room else w.up.kv_total_tokens
        if PREFILL in roles and tokens <= most:
            ranked = _turn_s(w) + _prefill_s(ask, w), w.name, w
            if w.site not in prefills or ranked < prefills[w.site]:
                prefills[w.site] = ranked
        if RELAY in roles and need_relay <= most:
            relays.append((w.share, w.name, w, most))
        if MAIN in roles and need_main <= most:
            # The one with the longest hit is taken, its own before a store's; then the lightest.
            rank = -ask.hits.get(w.name, 0) + (0.5 if w.name in ask.loads else 0.0)
            ranked_main = rank, w.share, w.name, w
            mains.setdefault(w.site, []).append(ranked_main)
    relays.sort()

    for _, _, p in prefills.values():
        turn_s, prefill_s = _turn_s(p), _prefill_s(ask, p)
        ttft_s = turn_s + prefill_s + world.rtt_s(world.gateway_site, p.site)
        prefill = _Prefill(p, turn_s, prefill_s, ttft_s)
        if ask.remaining <= 1:
            if route is None or route is LOCAL:
                yield _predict(ask, world, prefill, None, p, 0.0)  # its own token is the last one
            continue
        for site, ranked_mains in mains.items():
            near = site == p.site
            if route is not None and near is not (route is LOCAL):
                continue
            if near and any(other is p for _, _, _, other in ranked_mains):
                if _both_fit(p, tokens + need_main, only_with_room):
                    yield _predict(ask, world, prefill, None, p, 0.0)
                ranked_mains = [ranked for ranked in ranked_mains if ranked[3] is not p]
            if not ranked_mains or not world.connected(p.site, site):
                continue
            m = min(ranked_mains)[3]
            kv_s = _transfer_s(ask, world, prefill, m)
            if route is not RELAYED:
                yield _predict(ask, world, prefill, None, m, kv_s)
            if near or route is DIRECT:
                continue
            for _, _, relay, most in relays:
                if relay.site != p.site:
                    continue
                relayed = _predict(ask, world, prefill, relay, m, kv_s)
                # The slower the line, the more the relay will decode and has to set aside.
                need = relay_reserve(ask, relayed.relay_tokens)
                if need <= most and (relay is not p or _both_fit(p, tokens + need, only_with_room)):
                    yield relayed
                    break


def _both_fit(w: WorkerView, tokens: int, only_with_room: bool) -> bool:
    """Whether a worker takes a prefill leg and another one, `tokens` in all."""
    if not only_with_room:
        return w.up.slots >= 2 and tokens <= w.up.kv_total_tokens
    return w.slots_used + w.slots_theirs + 2 <= w.up.slots and tokens <= w.room


def _turn_s(p: WorkerView) -> float:
    return p.prefill_queue_tokens / p.prefill_tokens_per_s


def _prefill_s(ask: Ask, p: WorkerView) -> float:
    missing = ask.tokens - min(ask.hits.get(p.name, 0), ask.tokens - 1)
    seconds = missing / p.prefill_tokens_per_s
    stored = ask.loads.get(p.name)
    if stored is not None:  # the worker takes what is shorter
        seconds += stored * min(
            1 / p.prefill_tokens_per_s, p.up.kv_bytes_per_token / STORE_BYTES_PER_S
        )
    return seconds


def _transfer_s(ask: Ask, world: World, prefill: _Prefill, m: WorkerView) -> float:
    """Seconds from the end of prefill until the KV has landed at `m`."""
    p = prefill.worker
    if p is m:
        return 0.0
    missing = ask.tokens - min(ask.hits.get(m.name, 0), ask.tokens)
    kept = p.leaves(ask.tokens)
    nbytes = missing * m.up.kv_bytes_per_token * kept / ask.tokens
    link, now = world.link(p.site, m.site), world.now
    if link is None:  # they are in one site
        sending_s, delay_s = nbytes / world.inside_bytes_per_s(p.site), SAME_SITE_RTT_S / 2
    else:
        goodput = link.goodput_bytes_per_s(now)
        # What waits on the line goes while other prompts are prefilled before this one.
        sending_s = max(0.0, link.waiting_bytes(now) / goodput - prefill.turn_s)
        sending_s += link.wire_bytes(nbytes) / goodput
        delay_s = link.rtt_s(now) / 2
    # Streaming starts with the first chunk, so the wire works while prefill still runs; but not
    # where it is known only at the end what is kept.
    overlap_s = prefill.prefill_s if kept == ask.tokens else 0.0
    return max(0.0, sending_s - overlap_s) + delay_s


def _predict(
    ask: Ask,
    world: World,
    prefill: _Prefill,
    r: WorkerView | None,
    m: WorkerView,
    kv_s: float,
) -> Decision:
    """What comes of three workers; `kv_s` from the end of prefill until `m` has its KV."""
    p, ttft_s = prefill.worker, prefill.ttft_s
    output = expected_output(ask.remaining)
    main_step_s = m.step_s
    if r is None:
        relay_tokens = 0
        stall_s = max(kv_s, world.rtt_s(world.gateway_site, m.site)) + main_step_s
        total_s = ttft_s + stall_s + max(0, output - 2) * main_step_s
    else:
        near_s, relay_step_s = _transfer_s(ask, world, prefill, r), r.step_s
        stall_s = max(near_s, world.rtt_s(world.gateway_site, r.site)) + relay_step_s
        relay_tokens = min(output, ceil((kv_s + main_step_s) / relay_step_s))
        total_s = ttft_s + stall_s + relay_tokens * relay_step_s
        total_s += max(0, output - 2 - relay_tokens) * main_step_s
    return Decision(
        LOCAL if p.site == m.site else DIRECT if r is None else RELAYED,
        p.name,
        None if r is None else r.name,
        m.name,
        ttft_s,
        stall_s,
        total_s,
        relay_tokens,
        late=kv_s > ask.kv_limit_s,
    )
