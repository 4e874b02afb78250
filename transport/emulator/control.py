"""Starting an emulated line and telling it what to do while it runs."""

import asyncio
import json
import sys
from typing import Any

_START_S = 15.0
_ANSWER_S = 5.0


class LineError(Exception):
    """The emulator did not start, is gone, or refused a request; the text says why."""


class LineControl:
    """A connection to an emulator's control port at `address`; every verb raises LineError."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, port: int) -> "LineControl":
        try:
            async with asyncio.timeout(_ANSWER_S):
                streams = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
                return cls(*streams, f"127.0.0.1:{port}")
        except (OSError, TimeoutError) as error:
            raise LineError(f"no emulator at port {port}: {error}") from error

    async def forward(self, target: str, from_site: str, to_site: str, plane: str) -> int:
        """A port on 127.0.0.1 from which connections cross the line to `target` (host:port).

        `plane` is "control", "tokens" or "kv".
        """
        answer = await self._ask(
            op="forward", target=target, from_site=from_site, to_site=to_site, plane=plane
        )
        return int(answer["port"])

    async def set(self, line: str, **values: float) -> None:
        """Change `delay_s`, `rate_bytes_per_s`, `jitter_s` or `loss` of both directions."""
        await self._ask(op="set", line=line, values=values)

    async def cut(self, line: str, *, towards: str | None = None) -> None:
        """Nothing moves until `restore`; connections stay open and nothing is lost.

        `towards` a site: only the direction that ends there.
        """
        await self._ask(op="cut", line=line, towards=towards)

    async def restore(self, line: str) -> None:
        await self._ask(op="restore", line=line)

    async def stats(self) -> dict[str, Any]:
        """{line: {"from->to": {sent_bytes: {plane: n}, queued_bytes: {plane: n}, cut, ...}}}"""
        lines: dict[str, Any] = (await self._ask(op="stats"))["lines"]
        return lines

    async def close(self) -> None:
        self._writer.close()

    async def _ask(self, **message: Any) -> dict[str, Any]:
        async with self._turn:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self._writer.write(json.dumps(message).encode() + b"\n")
                    await self._writer.drain()
                    answer: dict[str, Any] = json.loads(await self._reader.readuntil(b"\n"))
            except (OSError, EOFError, TimeoutError) as error:
                raise LineError(f"the emulator does not answer: {error!r}") from error
        if "error" in answer:
            raise LineError(answer["error"])
        return answer


async def start_emulator(config: dict[str, Any]) -> tuple[asyncio.subprocess.Process, LineControl]:
    """Start an emulator of `config` (see transport.emulator.__main__) and connect to it.

    It ends when the process's standard input is closed or this process ends. Raises LineError.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "transport.emulator",
        json.dumps(config),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
        ready: dict[str, Any] = json.loads(line) if line else {"error": "no answer"}
        if "error" in ready:
            raise LineError(f"the emulator did not start: {ready['error']}")
        return process, await LineControl.connect(ready["control_port"])
    except BaseException as error:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise LineError(f"the emulator was not ready within {_START_S:g} s") from error
        raise
