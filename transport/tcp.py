"""KV streams over TCP: both ends under one name."""

from transport.client import KVClient, Outgoing
from transport.sender import StreamBroken
from transport.server import KVServer

__all__ = ["KVClient", "KVServer", "Outgoing", "StreamBroken"]
