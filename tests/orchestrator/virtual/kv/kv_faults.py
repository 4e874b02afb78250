"""Streams and accidents from a seed, and what must be true when the accidents are over."""

from collections.abc import Callable
from random import Random

from orchestrator.virtual.network import Accidents
from tests.orchestrator.virtual.kv.kv_rig import SITES, KVWorld
from transport.base import StreamId
from transport.stream.connections import SILENCE_S
from transport.stream.receiver import RESUME_S
from transport.tcp.wire import HANDSHAKE_S

# After the last accident: silence is noticed, then nobody comes back.
SETTLED_S = SILENCE_S + RESUME_S + HANDSHAKE_S
LONG_S = (0.01, 0.3, 3.0, 15.0, 40.0)


class Trouble:
    """A few streams between three workers, with up to four accidents."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = KVWorld(seed, bytes_per_s=self.random.choice((5e3, 50e3, 1e6)))
        self.streams: list[tuple[str, str, StreamId]] = []
        self.forgetful: set[str] = set()  # workers that were killed
        self.stopped: set[str] = set()  # requests of which a leg was stopped
        self.landed = self.broken = 0
        self._last = 0.0

    def run(self) -> None:
        """Until everything has settled. Raises AssertionError."""
        draw, at = self.random, self.world.schedule.at
        for number in range(draw.randint(2, 6)):
            at(draw.random() * 3.0, self._transfer, f"r{number}")
        for _ in range(draw.randint(0, 4)):
            fault = draw.choice((self._cut, self._accidents, self._freeze, self._kill, self._stop))
            at(draw.random() * 5.0, fault)
        self.world.run(5.0)
        while self._last > self.world.schedule.now:
            self.world.run(self._last)
        self.world.run(self.world.schedule.now + SETTLED_S)
        self._check()

    def _check(self) -> None:
        for source, target, stream in self.streams:
            landed = self.world.landed(stream.request, target)
            failed = self.world.failed(stream.request, source)
            if source not in self.forgetful and stream.request not in self.stopped:
                assert landed or failed, f"nobody heard of {stream}"
            self.landed += landed
            self.broken += bool(failed)
        self.world.check_nothing_is_left(self.streams)

    # ------------------------------------------------------------ what happens

    def _transfer(self, request: str) -> None:
        source, target = self.random.sample(sorted(SITES), 2)
        hosts = self.world.hosts
        if hosts[source].process.alive and hosts[target].process.alive:
            tokens = self.random.choice((10, 100, 600))
            stream = self.world.transfer(request, tokens, source=source, target=target)
            self.streams.append((source, target, stream))

    def _for(self, undo: Callable[..., object], *args: object) -> None:
        until = self.world.schedule.now + self.random.choice(LONG_S)
        self._last = max(self._last, until)
        self.world.schedule.at(until, undo, *args)

    def _cut(self) -> None:
        network = self.world.network
        near, far = self.random.sample(self.random.choice((["x", "y"], sorted(SITES))), 2)
        both = self.random.random() < 0.5
        for ends in ((near, far), (far, near))[: 1 + both]:
            network.cut(*ends)
            self._for(network.heal, *ends)

    def _accidents(self) -> None:
        lost, corrupt = (self.random.choice((0.0, 0.02, 0.2)) for _ in range(2))
        self.world.network.accidents = Accidents(lost=lost, corrupt=corrupt)
        self._for(setattr, self.world.network, "accidents", Accidents())

    def _freeze(self) -> None:
        process = self.world.hosts[self.random.choice(sorted(SITES))].process
        process.freeze()
        self._for(process.thaw)

    def _kill(self) -> None:
        host = self.world.hosts[self.random.choice(sorted(SITES))]
        if host.process.alive:
            host.process.kill()
            self.forgetful.add(host.process.name)
            self._for(host.boot)

    def _stop(self) -> None:
        if self.streams:
            source, target, stream = self.random.choice(self.streams)
            self.stopped.add(stream.request)
            if self.random.random() < 0.5:
                self.world.stop(source, stream.request, stream.source)
            else:
                self.world.stop(target, stream.request, stream.target)
