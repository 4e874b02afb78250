"""How finely legs speak around a handover, where every token matters.

From the step before the last byte of main's KV leaves (the far site hears of both at once) the
relay says each token as it comes; main does so while there is a relay and a few tokens longer,
where the summary looks for the handoff's gap, and until the lead is spent; the relay also while the
machine gathers its lead by releasing what comes one by one. All else comes in long runs.
"""

from collections.abc import Mapping
from math import inf

from orchestrator.lifecycle.context import Context
from orchestrator.lifecycle.handover import pace_s, wanted_lead_s
from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.release import SPARE_TOKENS
from orchestrator.lifecycle.request import NEAR_HANDOFF, Leg, Request
from orchestrator.replay.leg import LegKey
from orchestrator.replay.lines.line import Transfer
from orchestrator.replay.worker import ModelWorker
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import TokenRun


class Handing:
    """Watches the requests that have a relay. `relayed`: those that may still hand over."""

    def __init__(
        self, schedule: Schedule, machine: Machine, workers: Mapping[str, ModelWorker]
    ) -> None:
        self.relayed: set[str] = set()
        self._schedule = schedule
        self._machine = machine
        self._workers = workers
        self._near: set[str] = set()  # whose KV is nearly at main
        self._looks: dict[LegKey, float] = {}  # when to look again at KV that is on its way

    def over(self, request: str) -> None:
        """A request needs no watching any more."""
        self.relayed.discard(request)
        self._near.discard(request)

    def leaving(self, transfer: Transfer, at: float) -> None:
        """The last byte of a transfer leaves at `at`, as it looks now."""
        relay = self._relay_before(transfer)
        if relay is None:
            return
        worker, name = self._workers[relay.worker], transfer.target[0]
        look_at = worker.race_before((name, relay.epoch), at)
        if look_at is None:
            self._near.add(name)
        elif look_at < self._looks.get(transfer.target, inf):
            self._looks[transfer.target] = look_at
            self._schedule.at(look_at, self._look, transfer)

    def landed(self, transfer: Transfer) -> None:
        """All of it is there: main speaks as finely as its relay."""
        if self._relay_before(transfer) is not None:
            self._workers[transfer.to_worker].race(transfer.target)

    def forget(self, transfer: Transfer) -> None:
        """It is over, or nobody wants it any more."""
        if self._looks:
            self._looks.pop(transfer.target, None)

    def speeds_told(self) -> None:
        """Some worker is faster or slower: a lead that was all there may have to grow again."""
        for name in sorted(self.relayed - self._near):
            req = self._machine.requests[name]
            if req.relay is not None and lead_grows(self._machine.ctx, req):
                self._workers[req.relay.worker].race((name, req.relay.epoch))

    def heard(self, run: TokenRun) -> None:
        """A leg of a request that was relayed has spoken."""
        name = run.request
        req = self._machine.requests[name]
        relay, main = req.relay, req.main
        if relay is not None:
            if run.epoch == relay.epoch and name not in self._near:
                worker, key = self._workers[relay.worker], (name, relay.epoch)
                if lead_grows(self._machine.ctx, req):
                    worker.race(key)
                else:
                    worker.calm(key)
            return
        index = req.account.handoff_index
        if main is None or (index is not None and req.released <= index + NEAR_HANDOFF):
            return
        if pace_s(self._machine.ctx, req) is None:
            self._workers[main.worker].calm((name, main.epoch))
            self.over(name)

    def _look(self, transfer: Transfer) -> None:
        """Nearly there, unless others have come before it."""
        if self._looks.get(transfer.target) == self._schedule.now and not transfer.dropped:
            del self._looks[transfer.target]
            at = transfer.line.leaves_at(transfer)
            if at is not None:
                self.leaving(transfer, at)

    def _relay_before(self, transfer: Transfer) -> Leg | None:
        """The relay that decodes while this transfer brings main's KV."""
        name, epoch = transfer.target
        if name not in self.relayed:
            return None
        req = self._machine.requests[name]
        main = req.main
        return req.relay if main is not None and main.epoch == epoch else None


def lead_grows(ctx: Context, req: Request) -> bool:
    """Whether tokens are held back to gather a lead, and it is not all there yet."""
    pace = pace_s(ctx, req)
    if pace is None:
        return False
    lead = len(req.law.ids) - req.released
    return lead < wanted_lead_s(ctx, req) / pace + SPARE_TOKENS
