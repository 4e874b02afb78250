"""KV on its way from one site to another: a shared line, its delay, and what can befall it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from orchestrator.replay.leg import LegKey
from orchestrator.replay.lines.account import Account
from orchestrator.replay.lines.model import IDLE_S, LineModel, Sharing
from orchestrator.replay.lines.ramp import Ramp, Spare
from orchestrator.replay.lines.shares import Flow
from orchestrator.replay.outcome import Use
from orchestrator.virtual.schedule import Schedule

_NOTHING = 1e-9  # so small a part of a transfer is left by arithmetic only
_HELD = 0  # no landing is planned


@dataclass(slots=True, eq=False)
class Transfer:
    """KV of one leg for another, complete when it is handed to the line. Bytes are raw KV.

    `since`: when the first of it could be sent. `ramp`: what was there before it was complete. The
    line fills in what follows: bytes on the wire, and when the first of them began, the last left,
    and all of it was there. `gone`: tokens that the source has not kept.
    """

    source: LegKey
    target: LegKey
    to_worker: str
    line: "Line"
    nbytes: int
    since: float
    ramp: Ramp = ()
    weight: float = 1.0
    gone: int = 0
    dropped: bool = False
    wire_bytes: float = 0.0
    began_at: float | None = None
    left_at: float | None = None
    landed_at: float | None = None
    flow: Flow | None = field(default=None, repr=False)


class Line:
    """One direction of the path between two sites. Transfers that are sent while it is cut wait.

    `leaving(transfer, at)` is told when a transfer has to wait, and when it is the next whose last
    byte will leave: at `at`, as it looks then. Told again if it will be earlier, not if later.
    `landed(transfer)` when all of a transfer is there that was not dropped.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: LineModel,
        *,
        leaving: Callable[[Transfer, float], None],
        landed: Callable[[Transfer], None],
        use_every_s: float = 0.0,
    ) -> None:
        self.model = model
        self.up = True
        self._schedule = schedule
        self._leaving = leaving
        self._landed = landed
        self._share = model.sharing()
        self._each = model.each_bytes_per_s() if model.share is Sharing.POOL else inf
        self._account = Account(use_every_s)
        self._spare = Spare()
        self._factor = 1.0
        self._marked_at = 0.0
        self._silent_since: float | None = -inf  # None: bytes go, or wait to
        self._slow_until = 0.0  # connections have not opened up before
        self._wake_at = inf
        self._open = 0  # transfers of which bytes are still to go
        self._flying: dict[Transfer, int] = {}  # all has left, and the plan of its landing
        self._plans = 0

    @property
    def bytes_per_s(self) -> float:
        """On the wire, what it carries now; whoever sends sees it."""
        return self.model.goodput_bytes_per_s(self._factor) if self.up else 0.0

    @property
    def sent_bytes(self) -> float:
        """On the wire, up to now."""
        self._mark(self._schedule.now)
        return self._account.nbytes

    @property
    def waiting_bytes(self) -> float:
        """On the wire, still to go as of the last change."""
        return self._share.backlog

    def leaves_at(self, transfer: Transfer) -> float | None:
        """When the last byte of a transfer leaves, as it looks now; None: others are before it.

        `leaving` is told when it is the next.
        """
        now = self._schedule.now
        self._settle(now)
        flow = transfer.flow
        if flow is None or transfer.left_at is not None:
            return transfer.left_at
        due = self._share.next()
        flow.told_at = inf if due is None or due[1] is not flow else due[0]
        return None if flow.told_at == inf else flow.told_at

    def use(self) -> Use:
        """How busy it has been up to now: of what its model carries, faults or none."""
        now = self._schedule.now
        self._settle(now)
        self._mark(now)
        return self._account.use(now, self.model.goodput_bytes_per_s())

    def send(self, transfer: Transfer) -> None:
        """Take a transfer whose KV is complete."""
        now = self._schedule.now
        self._settle(now)
        self._mark(now)
        transfer.wire_bytes = transfer.nbytes / self.model.codec.ratio
        left = transfer.wire_bytes - self._sent_before(transfer, now)
        if left <= _NOTHING * transfer.wire_bytes:
            self._leaving(transfer, now)
            self._left(transfer, now)
            return
        flow = transfer.flow = Flow(transfer, left, at=transfer.since, weight=transfer.weight)
        self._silent_since = None
        self._open += 1
        self._share.add(now, flow)
        self._plan()
        if flow.told_at == inf and self._share.bytes_per_s:
            # As if all that waits were before it.
            self._leaving(transfer, now + self._share.backlog / self._share.bytes_per_s)

    def drop(self, transfer: Transfer) -> None:
        """Nobody wants it any more: what has left is lost at the far end, the rest does not go."""
        transfer.dropped = True
        now = self._schedule.now
        self._settle(now)
        if transfer.left_at is not None:
            self._flying.pop(transfer, None)
        elif transfer.flow is not None and not transfer.flow.gone:
            self._mark(now)
            self._share.drop(now, transfer.flow)
            transfer.flow = None
            self._closed(now)
            self._plan()

    def cut(self) -> None:
        """Nothing goes any more, and what is on its way is lost: it is sent again afterwards."""
        self.up = False
        self._flying = dict.fromkeys(self._flying, _HELD)
        self._set_rate()

    def restore(self) -> None:
        """Connections are made anew: they start slowly, if the line does so at all."""
        self.up = True
        if self.model.slow_start:
            self._start_slowly(self._schedule.now + self.model.starting_s(self._share.backlog))
        self._set_rate()
        for transfer in tuple(self._flying):
            self._fly(transfer, self._schedule.now)

    def set_rate(self, factor: float) -> None:
        """From now on the line carries so many times what its model says."""
        self._factor = factor
        self._set_rate()

    # ------------------------------------------------------------ before it was complete

    def _sent_before(self, transfer: Transfer, now: float) -> float:
        """Bytes on the wire that went while the KV was computed; see `Spare`.

        Also where a line that was silent starts slowly: nothing counts until it is at its speed.
        """
        ramp = transfer.ramp
        since = max(transfer.since, ramp[0][0]) if ramp else now
        if self.model.slow_start and self._silent_since is not None:
            begins = max(since, self._silent_since)
            if begins - self._silent_since > IDLE_S:
                since = begins + self.model.starting_s(transfer.wire_bytes)
                self._start_slowly(since)
            self._silent_since = now
        if since >= now:
            return 0.0
        claimed = self._spare.claim(
            since, ramp, ratio=self.model.codec.ratio, each_bytes_per_s=self._each
        )
        if not claimed:
            return 0.0
        transfer.began_at = claimed[0][0]
        return self._account.add_parts(claimed)

    def _start_slowly(self, until: float) -> None:
        """Nothing goes before; then the line is at its speed."""
        self._slow_until = until
        if until > self._schedule.now:
            self._set_rate()
            self._schedule.at(until, self._set_rate)

    # ------------------------------------------------------------ as time goes by

    def _mark(self, now: float) -> None:
        """Account for what went since the last change."""
        begin = self._marked_at
        if now > begin:
            used, spare = self._share.used(), self._share.spare()
            if used:
                self._account.add(begin, now, used)
            if spare:
                self._spare.add(begin, now, spare)
            self._marked_at = now

    def _settle(self, now: float) -> None:
        """Everything leaves whose time has come."""
        due = self._share.next()
        while due is not None and due[0] <= now:
            self._mark(due[0])
            flow = self._share.pop()
            self._closed(due[0])
            self._left(flow.item, due[0])
            due = self._share.next()

    def _plan(self) -> None:
        """Wake when the next transfer leaves. If it will be later than planned, look again then."""
        due = self._share.next()
        if due is None:
            return
        at, flow = due
        if at < flow.told_at:
            flow.told_at = at
            self._leaving(flow.item, at)
        if at < self._wake_at:
            self._wake_at = at
            self._schedule.at(at, self._wake, at)

    def _wake(self, planned: float) -> None:
        if planned == self._wake_at:
            self._wake_at = inf
            self._settle(self._schedule.now)
            self._plan()

    def _set_rate(self) -> None:
        now = self._schedule.now
        self._settle(now)
        self._mark(now)
        opened = self.up and now >= self._slow_until
        rate = self.model.goodput_bytes_per_s(self._factor) if opened else 0.0
        self._share.set_rate(now, rate)
        self._plan()

    def _closed(self, now: float) -> None:
        self._open -= 1
        if not self._open:
            self._silent_since = now

    # ------------------------------------------------------------ the far end

    def _left(self, transfer: Transfer, at: float) -> None:
        transfer.left_at = at
        if transfer.began_at is None:
            began_at = transfer.flow.began_at if transfer.flow is not None else None
            transfer.began_at = at if began_at is None else began_at
        transfer.flow = None  # which knows the transfer: nobody else needs either any more
        self._flying[transfer] = _HELD
        if self.up:
            self._fly(transfer, at)

    def _fly(self, transfer: Transfer, left_at: float) -> None:
        self._plans += 1
        self._flying[transfer] = self._plans
        name = f"{transfer.target[0]} {transfer.target[1]}"
        arriving_s = self.model.arriving_s(transfer.nbytes, name)
        self._schedule.at(left_at + arriving_s, self._arrive, transfer, self._plans)

    def _arrive(self, transfer: Transfer, plan: int) -> None:
        if self._flying.get(transfer) == plan:
            del self._flying[transfer]
            transfer.landed_at = self._schedule.now
            self._landed(transfer)
