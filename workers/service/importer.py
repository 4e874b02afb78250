"""KV in: what the transport receives goes to the engine's pool; the worker's core decides."""

from transport.base import Offer, Slice, StreamId, StreamStats
from workers.engines.base import Engine
from workers.service.engine_thread import EngineThread
from workers.streams import imports


class Importer:
    """The transport's sink."""

    def __init__(self, engine: Engine, thread: EngineThread) -> None:
        self._engine = engine
        self._thread = thread

    def offered(self, offer: Offer) -> int | None:
        """How many leading tokens are here; None while the leg's start has not come.

        Raises OfferRefused.
        """
        return self._thread.look(lambda worker, now: imports.offered(worker, offer, now))

    def put(self, stream: StreamId, piece: Slice) -> None:
        """One decoded slice, in a thread of the transport's. Raises ValueError."""
        imports.put(self._engine, stream, piece)

    def completed(self, stream: StreamId, stats: StreamStats) -> None:
        self._thread.submit(lambda worker, now: imports.landed(worker, stream, stats, now))

    def broken(self, stream: StreamId, reason: str) -> None:
        self._thread.submit(lambda worker, now: worker.import_broken(stream, reason, now))
