"""The link from one site to another: what the topology says, what senders see, what is under way.

Two bounds keep the router's picture sane. A path gives no more than the topology's bandwidth: the
senders pace themselves below it, so what seems more was summed from different moments. And what
was measured is believed only for a while: a route that is avoided is not measured any more, so it
gets its topology's figures back.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from workers.api.messages import HEARTBEAT_S, LinkLoad

LegId = tuple[str, int]  # request and epoch

# A measurement is believed fully for so long, and then less and less.
FRESH_S = 10.0
FORGOTTEN_S = 60.0
# A sender's goodput says what the line gives only while the line holds it up: when this many times
# as much waits as a round trip takes at that goodput. Otherwise the sender had no more to send, or
# all that it had was on its way within one round trip, and the line may be far faster.
FULL = 2.0
# And it must have held for this long: the first acknowledgements after an idle time come late.
HELD_S = HEARTBEAT_S / 2
# A worker that has not reported for so long does not know its queue any better than our books.
REPORTS_S = 3 * HEARTBEAT_S
# A transfer is in its sender's reports when it was promised so long before: the order has to get
# there, and waits for the end of a running step.
TOLD_S = HEARTBEAT_S
# Newer transfers say more about how well KV codes than older ones.
_OLDER = 0.8


class Transfer(NamedTuple):
    """KV that a worker was told to send: raw bytes."""

    worker: str
    nbytes: int
    at: float


class Measured(NamedTuple):
    """A value and when it was true."""

    value: float
    at: float

    def blended(self, told: float, now: float) -> float:
        """What is believed now: the older this is, the nearer to what was told."""
        left = (FORGOTTEN_S - (now - self.at)) / (FORGOTTEN_S - FRESH_S)
        weight = min(1.0, max(0.0, left))
        return weight * self.value + (1 - weight) * told


@dataclass(slots=True)
class _Sender:
    """One worker that sends over the link. `untold`: its legs that no report contains yet."""

    load: LinkLoad | None = None
    at: float = 0.0  # of `load`
    promised_bytes: int = 0
    untold: dict[LegId, Transfer] = field(default_factory=dict)
    untold_bytes: int = 0


@dataclass(slots=True)
class LinkView:
    """One direction of a link. `queued` are the transfers under way, per receiving leg.

    `told_rtt_s` and `told_bytes_per_s` are the topology's; the other figures are seconds and coded
    bytes as believed at `now`.
    """

    told_rtt_s: float
    told_bytes_per_s: float
    queued: dict[LegId, Transfer] = field(default_factory=dict, init=False)
    seen_goodput: Measured | None = field(default=None, init=False)
    seen_rtt: Measured | None = field(default=None, init=False)
    _full_since: float | None = field(default=None, init=False)
    _senders: dict[str, _Sender] = field(default_factory=dict, init=False)
    _reporting: dict[str, _Sender] = field(default_factory=dict, init=False)  # that have a `load`
    _promised_bytes: int = field(default=0, init=False)
    _raw_bytes: float = field(default=0.0, init=False)
    _coded_bytes: float = field(default=0.0, init=False)

    # ------------------------------------------------------------ what happens

    def enqueue(self, leg: LegId, transfer: Transfer) -> None:
        """KV for a leg is under way, instead of what was before."""
        self.unqueue(leg)
        self.queued[leg] = transfer
        self._promised_bytes += transfer.nbytes
        sender = self._senders.setdefault(transfer.worker, _Sender())
        sender.promised_bytes += transfer.nbytes
        sender.untold[leg] = transfer
        sender.untold_bytes += transfer.nbytes

    def unqueue(self, leg: LegId) -> None:
        """Nothing for this leg is under way any more."""
        transfer = self.queued.pop(leg, None)
        if transfer is None:
            return
        self._promised_bytes -= transfer.nbytes
        sender = self._senders[transfer.worker]
        sender.promised_bytes -= transfer.nbytes
        if sender.untold.pop(leg, None) is not None:
            sender.untold_bytes -= transfer.nbytes

    def report(self, worker: str, load: LinkLoad, now: float) -> None:
        """What a worker of the near site sees."""
        sender = self._senders.setdefault(worker, _Sender())
        before = sender.load
        sender.load, sender.at = load, now
        self._reporting[worker] = sender
        for leg in [leg for leg, transfer in sender.untold.items() if transfer.at + TOLD_S <= now]:
            sender.untold_bytes -= sender.untold.pop(leg).nbytes
        rtt_s = load.rtt_s or 0.0
        if rtt_s > 0 and _credible(load, before, rtt_s <= self.rtt_s(now)):
            self.seen_rtt = Measured(rtt_s, now)
        self._measure(now)

    def forget(self, worker: str) -> None:
        """The worker is gone, or another in its place; its transfers end with their legs."""
        sender = self._reporting.pop(worker, None)
        if sender is not None:
            sender.load = None

    def coded(self, raw_bytes: int, wire_bytes: int) -> None:
        """What one transfer came to."""
        if not raw_bytes:
            return
        self._raw_bytes = self._raw_bytes * _OLDER + raw_bytes
        self._coded_bytes = self._coded_bytes * _OLDER + wire_bytes

    # ------------------------------------------------------------ what is believed

    def goodput_bytes_per_s(self, now: float) -> float:
        """What the line gives: as measured while that is fresh, else the topology's bandwidth."""
        told, seen = self.told_bytes_per_s, self.seen_goodput
        return told if seen is None else min(told, max(1.0, seen.blended(told, now)))

    def rtt_s(self, now: float) -> float:
        """The round trip: as measured while that is fresh, else the topology's."""
        told, seen = self.told_rtt_s, self.seen_rtt
        return told if seen is None else seen.blended(told, now)

    def wire_bytes(self, raw_bytes: float) -> float:
        """What raw KV probably comes to: as much as lately; before that, the same."""
        return raw_bytes * self._coded_bytes / self._raw_bytes if self._raw_bytes else raw_bytes

    def waiting_bytes(self, now: float) -> float:
        """What is still to be sent: as the senders see it, and what was promised since.

        A sender that does not report is taken to have sent nothing of what was promised.
        """
        coded, raw = 0, self._promised_bytes
        for sender in self._reporting.values():
            load = sender.load
            if load is not None and now - sender.at <= REPORTS_S:
                coded += load.queue_bytes
                raw += load.uncoded_bytes + sender.untold_bytes - sender.promised_bytes
        return coded + self.wire_bytes(raw)

    @property
    def loss(self) -> float | None:
        """The share of bytes that TCP had to send again, of all that reporting workers sent."""
        known = [
            (load.loss, load.sent_bytes)
            for sender in self._senders.values()
            if (load := sender.load) is not None and load.loss is not None
        ]
        sent = sum(nbytes for _, nbytes in known)
        return sum(loss * nbytes for loss, nbytes in known) / sent if sent else None

    @property
    def reported_rtt_s(self) -> float | None:
        """The shortest round trip that a sender reports, believed or not."""
        loads = (sender.load for sender in self._senders.values())
        rtts = (load.rtt_s for load in loads if load is not None)
        return min((rtt_s for rtt_s in rtts if rtt_s is not None), default=None)

    # ------------------------------------------------------------ inside

    def _measure(self, now: float) -> None:
        """The line's goodput, if those that send over it now hold it full: their sum."""
        goodput = queue = 0.0
        for sender in self._senders.values():
            load = sender.load
            if load is None or now - sender.at > REPORTS_S or not load.queue_bytes:
                continue
            queue += load.queue_bytes
            goodput += max(0.0, load.goodput_bytes_per_s or 0.0)
        if not goodput or queue < FULL * goodput * self.rtt_s(now):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= HELD_S:
            self.seen_goodput = Measured(goodput, now)


def _credible(load: LinkLoad, before: LinkLoad | None, short: bool) -> bool:
    """Whether a reported round trip says how long the way is now.

    None is shorter than the way, so a `short` one is taken while the link is used. A long one may
    have waited behind our own KV, or for a busy processor: it is taken when it is new and nothing
    was waiting.
    """
    if short:
        return bool(load.queue_bytes or before is None or before.sent_bytes != load.sent_bytes)
    if before is None or before.queue_bytes or load.queue_bytes:
        return False
    return before.rtt_s != load.rtt_s
