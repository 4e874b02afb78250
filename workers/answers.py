"""The messages a worker sends up about its legs."""

from transport.base import StreamId
from workers.api.messages import Cause, KVFailed, Landed, Paused, Refused, SendKV
from workers.engines.base import SeqId
from workers.legs import Leg
from workers.outputs import Output, Up


def landed(leg: Leg) -> Up:
    request, epoch = leg.seq
    covered = leg.start.cover
    return Up(gateway=leg.gateway, message=Landed(request=request, epoch=epoch, covered=covered))


def paused(leg: Leg) -> list[Output]:
    """The answer to the pause in force; nothing while it has not taken effect."""
    if leg.pause is None or leg.paused_at is None:
        return []
    request, epoch = leg.seq
    message = Paused(request=request, epoch=epoch, seq=leg.pause.seq, at=leg.paused_at)
    return [Up(gateway=leg.gateway, message=message)]


def runs(leg: Leg, start: int) -> list[Output]:
    """The leg's own history from output index `start`."""
    return [Up(gateway=leg.gateway, message=run) for run in leg.runs(start)]


def refused(gateway: str | None, seq: SeqId, reason: str, *, cause: Cause = Cause.BUSY) -> Up:
    request, epoch = seq
    message = Refused(request=request, epoch=epoch, reason=reason, cause=cause)
    return Up(gateway=gateway, message=message)


def send_failed(gateway: str | None, send: SendKV, reason: str) -> Up:
    """To whoever waits for the KV that `send` asked for."""
    return kv_failed(gateway, StreamId(send.request, send.epoch, send.to_epoch), reason)


def kv_failed(gateway: str | None, stream: StreamId, reason: str) -> Up:
    message = KVFailed(
        request=stream.request, epoch=stream.target, source=stream.source, reason=reason
    )
    return Up(gateway=gateway, message=message)
