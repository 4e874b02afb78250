"""What a worker knows of its links to other sites, put together from all peers there. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from transport.base import LinkEstimate
from workers.api.messages import LinkLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Outflow:
    """What goes to one peer: the sender's estimate of its path, and the bytes so far.

    `uncoded_bytes` are raw KV of open streams that the sender was not given yet.
    """

    site: str
    estimate: LinkEstimate
    uncoded_bytes: int
    sent_bytes: int
    resent_bytes: int


def link_loads(outflows: Iterable[Outflow]) -> tuple[LinkLoad, ...]:
    """One account per site, in the order of their names."""
    sites: dict[str, list[Outflow]] = {}
    for outflow in outflows:
        sites.setdefault(outflow.site, []).append(outflow)
    return tuple(_combined(site, there) for site, there in sorted(sites.items()))


def _combined(site: str, there: list[Outflow]) -> LinkLoad:
    """Queues and totals add up; so does the goodput of peers that are being sent to now.

    Each of those has a part of the line. Of peers that are not, the best says what it gave: their
    estimates are of other moments, and their sum would be of none.
    """
    busy = [o.estimate for o in there if o.estimate.queue_bytes]
    now = busy or [o.estimate for o in there]
    goodputs = [e.goodput_bytes_per_s for e in now if e.goodput_bytes_per_s is not None]
    rtts = [e.rtt_s for e in now if e.rtt_s is not None]
    return LinkLoad(
        site=site,
        goodput_bytes_per_s=(sum if busy else max)(goodputs) if goodputs else None,
        rtt_s=min(rtts, default=None),
        loss=_loss(there),
        queue_bytes=sum(o.estimate.queue_bytes for o in there),
        uncoded_bytes=sum(o.uncoded_bytes for o in there),
        sent_bytes=sum(o.sent_bytes for o in there),
        resent_bytes=sum(o.resent_bytes for o in there),
    )


def _loss(there: list[Outflow]) -> float | None:
    """The mean over the bytes that went to each peer; None: nobody counts it."""
    known = [(o.estimate.loss, o.sent_bytes) for o in there if o.estimate.loss is not None]
    sent = sum(nbytes for _, nbytes in known)
    if not sent:
        return None
    return sum(loss * nbytes for loss, nbytes in known) / sent
