"""Where each worker is reached from each site: directly, or through the emulated line."""

from orchestrator.live.channel import Place
from orchestrator.live.http import base_url
from orchestrator.topology.schema import Topology
from transport.emulator.control import LineControl


class Directory:
    """Addresses as "host:port", by worker, plane and the site they are seen from.

    `line` is the emulator of every link that is marked so; None: nothing is emulated.
    """

    def __init__(self, topology: Topology, line: LineControl | None) -> None:
        self._topology = topology
        self._line = line
        self._forwards: dict[tuple[str, str, str, str], str] = {}
        self._kv: dict[tuple[str, str], str] = {}

    async def add(self, worker: str, site: str, http: str, kv: str) -> Place:
        """Make a worker reachable from everywhere; where the gateway finds it.

        Called again when an agent reports the worker again; opens nothing twice. Raises LineError.
        """
        for other in self._topology.sites:
            seen = await self.seen(kv, site, other, "kv")
            # The sender paces by the site that follows the address.
            self._kv[worker, other] = f"{seen}@{site}"
        gateway = self._topology.gateway.site
        control = await self.seen(http, site, gateway, "control")
        tokens = await self.seen(http, site, gateway, "tokens")
        tls = self._topology.security.tls
        return Place(control=base_url(control, tls), tokens=base_url(tokens, tls))

    def kv(self, worker: str, seen_from: str) -> str:
        """A worker's KV port for senders at `seen_from`. KeyError: the worker was never added."""
        return self._kv[worker, seen_from]

    async def seen(self, target: str, site: str, seen_from: str, plane: str) -> str:
        """The address of `target`, which is at `site`, for somebody at another. Raises LineError.

        `plane` is "control", "tokens" or "kv".
        """
        if self._line is None or not self.emulated(site, seen_from):
            return target
        key = (target, seen_from, site, plane)
        if key not in self._forwards:
            port = await self._line.forward(target, seen_from, site, plane)
            self._forwards[key] = f"127.0.0.1:{port}"
        return self._forwards[key]

    def emulator(self, a: str, b: str) -> str | None:
        """The control port of the emulator between two sites; None: the line is real."""
        return self._line.address if self._line is not None and self.emulated(a, b) else None

    def emulated(self, a: str, b: str) -> bool:
        link = self._topology.link(a, b)
        return link is not None and link.emulate
