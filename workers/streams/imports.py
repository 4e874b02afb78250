"""KV in, without I/O: what the transport asks a worker's core and its engine."""

from transport.base import Offer, Slice, StreamId, StreamStats
from workers.api.info import Part
from workers.api.messages import KVStats, Landed
from workers.engines.base import Engine, KVSlice, SeqId
from workers.handover import LEG_ENDED
from workers.outputs import Output, Up
from workers.worker import NotYet, Worker


def offered(worker: Worker, offer: Offer, now: float) -> int | None:
    """How many leading tokens are here; None while the leg's start has not come.

    Raises OfferRefused.
    """
    try:
        return worker.offered(offer, now)
    except NotYet:
        return None


def put(engine: Engine, stream: StreamId, piece: Slice) -> None:
    """Give the engine one decoded slice. Raises ValueError."""
    key = piece.key
    kv = KVSlice(
        layer=key.layer,
        part=Part(key.part),
        start=key.start,
        stop=key.stop,
        positions=piece.positions,
        data=piece.data,
    )
    try:
        engine.put(SeqId(stream.request, stream.target), kv)
    except KeyError:
        raise ValueError(LEG_ENDED) from None


def landed(worker: Worker, stream: StreamId, stats: StreamStats, now: float) -> list[Output]:
    """Complete the import; whoever hears that it landed hears what it cost."""
    outputs = worker.import_completed(stream, now)
    told = next((o for o in outputs if isinstance(o, Up) and isinstance(o.message, Landed)), None)
    if told is None:
        return outputs
    message = KVStats(
        request=stream.request,
        epoch=stream.target,
        bytes_raw=stats.bytes_raw,
        bytes_wire=stats.bytes_wire,
        transfer_s=stats.transfer_s,
    )
    return [Up(gateway=told.gateway, message=message), *outputs]
