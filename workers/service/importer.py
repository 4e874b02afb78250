"""KV in: what the transport receives goes to the engine's pool; the worker's core decides."""

from collections.abc import Sequence

from transport.base import Offer, Slice, StreamId, StreamStats
from workers.api.info import Part
from workers.api.messages import KVStats, Landed
from workers.engines.base import Engine, KVSlice, SeqId
from workers.outputs import Output, Up
from workers.service.engine_thread import EngineThread
from workers.worker import NotYet, Worker


class Importer:
    """The transport's sink."""

    def __init__(self, engine: Engine, thread: EngineThread) -> None:
        self._engine = engine
        self._thread = thread

    def offered(self, offer: Offer) -> int | None:
        """How many leading tokens are here; None while the leg's start has not come."""
        try:
            return self._thread.look(lambda worker, now: worker.offered(offer, now))
        except NotYet:
            return None

    def put(self, stream: StreamId, piece: Slice) -> None:
        """One decoded slice, in a thread of the transport's. Raises ValueError."""
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
            self._engine.put(SeqId(stream.request, stream.target), kv)
        except KeyError:
            raise ValueError("its leg has ended") from None

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        self._thread.submit(lambda worker, now: _landed(worker, stream, stats, now))

    def broken(self, stream: StreamId, reason: str) -> None:
        self._thread.submit(lambda worker, now: worker.import_broken(stream, reason, now))


def _landed(worker: Worker, stream: StreamId, stats: StreamStats, now: float) -> Sequence[Output]:
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
