"""What senders would report of a line, as live workers do each second."""

from orchestrator.replay.lines.line import Line, Transfer
from orchestrator.state.links import LinkView
from workers.api.messages import LinkLoad


def link_loads(
    line: Line, view: LinkView, moving: list[Transfer], *, to_site: str, senders: int
) -> list[LinkLoad]:
    """One for each sender of the near site; what waits is told by the first, for all of them.

    `moving`: the transfers on the line; KV that was promised beside them is still to be computed.
    """
    promised = sum(transfer.nbytes for transfer in view.queued.values())
    uncoded = max(0, promised - sum(transfer.nbytes for transfer in moving))
    return [
        LinkLoad(
            site=to_site,
            goodput_bytes_per_s=line.bytes_per_s,
            rtt_s=None,
            loss=None,
            queue_bytes=0 if number else round(line.waiting_bytes),
            uncoded_bytes=0 if number else uncoded,
            sent_bytes=0 if number else round(line.sent_bytes),
            resent_bytes=0,
        )
        for number in range(senders)
    ]
