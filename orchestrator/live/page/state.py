"""What the page shows, as JSON: polled by it once a second. No secret, no text and no token."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.lifecycle.machine import Machine
from orchestrator.live.openai.errors import scrub
from orchestrator.live.page.requests import Recent, describe_open
from orchestrator.live.page.sampler import SILENT_S, Rates, Silence
from orchestrator.membership.members import Member, Members, MemberState, SiteState
from orchestrator.state.views import WorkerView


class LiveState:
    """One gateway's."""

    def __init__(
        self,
        machine: Machine,
        members: Members,
        recent: Recent,
        *,
        model: str,
    ) -> None:
        self._machine, self._members, self._recent = machine, members, recent
        self._model = model
        self._rates, self._silence = Rates(), Silence()

    def describe(self, not_ready: str | None, now: float) -> dict[str, Any]:
        """`now`: the gateway's clock; `not_ready`: why no request can be served."""
        members = self._members.by_name
        silent = self._silence.sample({name: m.load for name, m in members.items()}, now)
        sent = _sent(members)
        counts = {f"{a}>{b}": float(count) for (a, b), count in sent.items()}
        open_ = self._machine.requests.values()
        tokens = self._recent.tokens + sum(len(request.law.ids) for request in open_)
        counts |= {"requests": self._recent.count, "tokens": tokens}
        rates = self._rates.sample(counts, now)
        config = self._machine.ctx.config
        return {
            "model": self._model,
            "gateway": {"name": config.gateway, "site": config.gateway_site},
            "not_ready": None if not_ready is None else scrub(not_ready),
            "requests": {
                "open": len(self._machine.requests),
                "queued": self._machine.queued,
                "ended": self._recent.count,
                "per_s": rates["requests"],
                "tokens_per_s": rates["tokens"],
            },
            "sites": [self._site(site, silent, now) for site in self._members.sites],
            "links": [
                self._link(ends, rates.get(f"{ends[0]}>{ends[1]}"), silent, now)
                for ends in sorted(self._machine.ctx.world.links)
            ],
            "open": describe_open(open_, now),
            "counts": dict(sorted(self._machine.ctx.counts.items())),
            **self._recent.describe(),
        }

    def _site(self, site: str, silent: Mapping[str, float], now: float) -> dict[str, Any]:
        there = {n: m for n, m in sorted(self._members.by_name.items()) if m.site == site}
        workers = [self._worker(name, m, silent[name]) for name, m in there.items()]
        state = str(self._members.site_state(site))
        states = {worker["state"] for worker in workers}
        # What still speaks is there, whatever else is lost.
        if state == SiteState.UP and "silent" in states and MemberState.UP not in states:
            state = "silent"
        return {"name": site, "state": state, "workers": workers}

    def _worker(self, name: str, member: Member, silent_s: float) -> dict[str, Any]:
        view = self._machine.ctx.world.workers.get(name)
        load, hello = member.load, member.hello
        block = 1 if hello is None else hello.block_size
        state = str(member.state)
        if state != MemberState.DOWN and silent_s > SILENT_S:
            state = "silent"
        return {
            "name": name,
            "pool": member.pool,
            "roles": sorted(member.roles if view is None else view.roles),
            "state": state,
            "silent_s": round(silent_s, 1),
            "slots": None if hello is None else hello.slots,
            "slots_used": None if view is None else view.slots_used,
            "legs": {} if view is None else _legs(view),
            "running": None if load is None else load.running,
            "kv_blocks": None if load is None else -(-load.kv_total_tokens // block),
            "kv_blocks_used": None if load is None else -(-load.kv_held_tokens // block),
            "prefill_backlog_tokens": None if load is None else load.prefill_tokens,
            "step_s": None if load is None else load.step_s,
            "prefill_tokens_per_s": None if load is None else load.prefill_tokens_per_s,
        }

    def _link(
        self,
        ends: tuple[str, str],
        sending: float | None,
        silent: Mapping[str, float],
        now: float,
    ) -> dict[str, Any]:
        """One direction. `state`: whether KV that waits moves, and whether both ends speak."""
        link = self._machine.ctx.world.links[ends]
        queue = round(link.waiting_bytes(now))
        heard = {
            member.site
            for name, member in self._members.by_name.items()
            if member.load is not None and silent[name] <= SILENT_S
        }
        state = "idle" if not queue and not sending else "busy"
        drained = any(self._members.site_state(end) == SiteState.DRAINED for end in ends)
        if not heard.issuperset(ends) and not drained:
            state = "silent"
        elif queue and sending == 0.0:
            state = "stalled"
        return {
            "from": ends[0],
            "to": ends[1],
            "state": state,
            "bandwidth_bytes_per_s": link.told_bytes_per_s,
            "goodput_bytes_per_s": link.goodput_bytes_per_s(now),
            "sending_bytes_per_s": sending,
            "rtt_s": link.rtt_s(now),
            "loss": link.loss,
            "queue_bytes": queue,
            "transfers": len(link.queued),
        }


def _legs(view: WorkerView) -> dict[str, int]:
    """Legs by role, as the gateway has booked them."""
    return dict(sorted(Counter(leg.role.value for leg in view.bookings.values()).items()))


def _sent(members: Mapping[str, Member]) -> Counter[tuple[str, str]]:
    """KV that workers have sent from one site to another, bytes since they began."""
    sent: Counter[tuple[str, str]] = Counter()
    for member in members.values():
        for link in member.load.links if member.load is not None else ():
            sent[member.site, link.site] += link.sent_bytes
    return sent
