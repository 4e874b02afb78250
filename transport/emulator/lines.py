"""Lines between sites, and the ports whose connections cross them."""

import asyncio
import itertools
import socket
from collections.abc import Coroutine
from typing import Any

from transport.emulator.line import LinkSpec, Plane
from transport.emulator.relay import End, Flow, Pipe

_CONNECT_S = 5.0
_KEYS = {"between", "delay_s", "rate_bytes_per_s", "jitter_s", "loss"}


class ConfigError(ValueError):
    """The configuration or a request to the control port does not make sense."""


class Emulator:
    """Lines by pair of sites, and the forwards that cross them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._pipes: dict[tuple[str, str], Pipe] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        if set(config) != {"lines"}:
            raise ConfigError(f"one key, 'lines', is wanted, got {sorted(config)}")
        seeds = itertools.count()
        for at, line in enumerate(config["lines"]):
            if not isinstance(line, dict) or not set(line) <= _KEYS:
                raise ConfigError(f"lines[{at}]: known keys are {', '.join(sorted(_KEYS))}")
            one, other = line["between"]
            try:
                spec = LinkSpec(**{k: v for k, v in line.items() if k != "between"})
            except (TypeError, ValueError) as error:
                raise ConfigError(f"lines[{at}]: {error}") from error
            if (one, other) in self._pipes:
                raise ConfigError(f"lines[{at}]: a second line between {one} and {other}")
            self._names[f"{one}-{other}"] = (one, other)
            self._pipes[one, other] = Pipe(spec, next(seeds))
            self._pipes[other, one] = Pipe(spec, next(seeds))

    async def forward(self, target: str, from_site: str, to_site: str, plane: str) -> int:
        """Open a port on 127.0.0.1 whose connections cross the line to `target`."""
        there, back = self._pipe(from_site, to_site), self._pipe(to_site, from_site)
        try:
            level = Plane[plane.upper()]
        except KeyError as error:
            raise ConfigError(f"plane {plane!r}: control, tokens or kv") from error
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"target {target!r}: must be host:port")

        def accepted() -> End:
            out, answer = Flow(there, level), Flow(back, level)
            near = End(out, answer)
            out.hold()
            self.spawn(self._connect(near, out, answer, host, int(port)))
            return near

        listener = socket.create_server(("127.0.0.1", 0))
        # What waits in the kernel is out of the line's order, so little may.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, there.queue_limit_bytes)
        server = await asyncio.get_running_loop().create_server(accepted, sock=listener)
        self._servers.append(server)
        taken: int = listener.getsockname()[1]
        return taken

    async def _connect(self, near: End, out: Flow, answer: Flow, host: str, port: int) -> None:
        """Set-up crosses the line too: the first byte leaves one round trip after the accept."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(out.pipe.model.spec.delay_s)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: End(answer, out), host, port)
        except (OSError, TimeoutError):
            await asyncio.sleep(answer.pipe.model.spec.delay_s)
            near.reset()
            return
        await asyncio.sleep(answer.pipe.model.spec.delay_s)
        out.release()

    async def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request of the control port. Raises ConfigError."""
        op = message.pop("op", None)
        try:
            match op:
                case "forward":
                    return {"port": await self.forward(**message)}
                case "stats":
                    return {"lines": self.stats()}
                case "set":
                    line, values = message.pop("line"), message.pop("values")
                    for pipe in self._both(line):
                        pipe.change(**values)
                case "cut":
                    for pipe in self._towards(message.pop("line"), message.pop("towards", None)):
                        pipe.cut()
                case "restore":
                    for pipe in self._both(message.pop("line")):
                        pipe.restore()
                case _:
                    raise ConfigError(f"op {op!r}: forward, set, cut, restore or stats")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{op}: {error}") from error
        return {}

    def stats(self) -> dict[str, Any]:
        return {
            name: {
                f"{one}->{other}": self._pipes[one, other].stats(),
                f"{other}->{one}": self._pipes[other, one].stats(),
            }
            for name, (one, other) in self._names.items()
        }

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pipe(self, one: str, other: str) -> Pipe:
        pipe = self._pipes.get((one, other))
        if pipe is None:
            raise ConfigError(f"no line between {one} and {other}: {', '.join(self._names)}")
        return pipe

    def _towards(self, line: str, site: str | None) -> tuple[Pipe, ...]:
        """The direction that ends at `site`; None: both."""
        pipes = self._both(line)
        if site is None:
            return pipes
        ends = self._names[line]
        if site not in ends:
            raise ConfigError(f"line {line} does not end at {site!r}: {', '.join(ends)}")
        return (self._pipes[ends[site == ends[0]], site],)

    def _both(self, line: str) -> tuple[Pipe, Pipe]:
        if line not in self._names:
            raise ConfigError(f"no line {line!r}: {', '.join(self._names)}")
        one, other = self._names[line]
        return self._pipes[one, other], self._pipes[other, one]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
