"""An emulated line between sites as a process of its own: a TCP forwarder by port.

    python -m transport.emulator '{"lines": [{"between": ["hami", "shenzhen"],
        "delay_s": 0.025, "rate_bytes_per_s": 1250000, "jitter_s": 0, "loss": 0}]}'

The configuration is the argument or, without one, the first line of standard input. It prints
one line of JSON, `{"control_port": n}` when it is ready or `{"error": why}` (exit code 2), is then
told what to do by `transport.emulator.control`, and ends when standard input ends: hold it open.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from typing import Any

import uvloop

from transport.emulator.lines import ConfigError, Emulator


async def _serve(config: dict[str, Any]) -> None:
    emulator = Emulator(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # No deadline on the read: an idle control connection is a healthy one.
        try:
            while line := await reader.readline():
                try:
                    answer = await emulator.request(json.loads(line))
                except (ConfigError, json.JSONDecodeError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    def watch_parent() -> None:
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: it ended before its parent
            loop.call_soon_threadsafe(stop.set)

    server = await asyncio.start_server(
        lambda reader, writer: emulator.spawn(control(reader, writer)), "127.0.0.1", 0
    )
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # Ctrl-C reaches the whole group; the parent still needs the line while it drains.
    loop.add_signal_handler(signal.SIGINT, stop.set if os.isatty(0) else lambda: None)
    threading.Thread(target=watch_parent, daemon=True).start()
    print(json.dumps({"control_port": server.sockets[0].getsockname()[1]}), flush=True)
    await stop.wait()
    server.close()
    await emulator.close()


def main() -> int:
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # a real line does not wait for a core
    text = sys.argv[1] if len(sys.argv) > 1 else _first_line()
    try:
        uvloop.run(_serve(json.loads(text)))
    except (ConfigError, KeyError, TypeError, json.JSONDecodeError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 2
    return 0


def _first_line() -> str:
    """Read by hand: a buffered reader would swallow what the parent's watch waits for."""
    data = b""
    while not data.endswith(b"\n") and (more := os.read(0, 1)):
        data += more
    return data.decode()


if __name__ == "__main__":
    sys.exit(main())
