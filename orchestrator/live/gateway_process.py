"""One of several gateways on one port, as a process of its own.

    python -m orchestrator.live.gateway_process

Its `Order` is the first line of standard input; the deployment's secret and the clients' keys come
through the environment. It writes one line of JSON, `{"serving": name}` once it answers or
`{"failed": why}`. It ends when standard input ends: whoever started it ended, or wants it to. On
SIGTERM it takes no more clients and ends when those it has got their answers, at the latest after
`policy.deadlines.request`; on another one it ends.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from orchestrator.errors import UserError
from orchestrator.live.directory import Directory
from orchestrator.live.gateway import (
    Gateway,
    gateway_tls,
    load_tokenizer,
    one_line,
    read_card,
    take_port,
)
from orchestrator.live.openai.border.keys import read_door
from orchestrator.live.startable import agent_sites, agents_host
from orchestrator.topology.schema import Topology
from transport.emulator.control import LineControl, LineError
from workers.service.config import SECRET_ENV
from workers.service.front import listen
from workers.service.logs import log_to

log = logging.getLogger(__name__)

READY_S = 60.0  # from listening to agents to a first word of every worker


class Unready(Exception):
    """Requests cannot be served; one line naming what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a gateway is told: it is number `number` of its deployment, from 1, and called `name`.

    `model` is the model's directory, `internal` the port on which agents report, `emulator` the
    control port of the emulated line, if there is one, `log` a file. `replaces`: its place was
    served by another before.
    """

    topology: Topology
    model: Path
    number: int
    name: str
    internal: int
    emulator: int | None
    log: Path | None
    replaces: bool = False

    @property
    def own_port(self) -> int:
        """Where this gateway answers and no other does, beside the port of all."""
        return self.topology.gateway.port + self.number

    def write(self) -> bytes:
        """As one line."""
        body = {
            "topology": self.topology.model_dump(mode="json", exclude_unset=True),
            "model": str(self.model),
            "number": self.number,
            "name": self.name,
            "internal": self.internal,
            "emulator": self.emulator,
            "log": None if self.log is None else str(self.log),
            "replaces": self.replaces,
        }
        return json.dumps(body).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "Order":
        """What `write` gave."""
        body = json.loads(line)
        return cls(
            topology=Topology.model_validate_json(json.dumps(body["topology"])),
            model=Path(body["model"]),
            number=body["number"],
            name=body["name"],
            internal=body["internal"],
            emulator=body["emulator"],
            log=None if body["log"] is None else Path(body["log"]),
            replaces=body["replaces"],
        )


async def serve(order: Order, stop: asyncio.Event, leave: asyncio.Event) -> None:
    """Serve until `stop` is set, or from `leave` on only whom it serves already.

    Raises UserError, LineError, OSError and Unready.
    """
    topology = order.topology
    host, port = topology.gateway.host, topology.gateway.port
    line = None if order.emulator is None else await LineControl.connect(order.emulator)
    tokenizer = await asyncio.to_thread(load_tokenizer, topology.model, order.model)
    gateway = Gateway(
        topology,
        name=order.name,
        card=await asyncio.to_thread(read_card, topology.model, order.model),
        tokenizer=tokenizer,
        directory=Directory(topology, line),
        secret=os.environ[SECRET_ENV],
        door=read_door(topology.security),
        tls=gateway_tls(topology),
        replaces=order.replaces,
    )
    with (
        contextlib.closing(listen(agents_host(topology), order.internal)) as internal,
        contextlib.closing(take_port(host, order.own_port)) as own,
    ):
        running = [asyncio.create_task(gateway.run(own, internal, stop))]
        leaving = asyncio.create_task(_leave(gateway, leave, stop, topology))
        try:
            problem = await gateway.ready(None if agent_sites(topology) else READY_S, running[0])
            if problem is not None:
                raise Unready(problem)
            # Not before: of those who connect to the port of all, some come to this process.
            with contextlib.closing(take_port(host, port, shared=True)) as public:
                running.append(asyncio.create_task(gateway.answer(public, stop)))
                _tell({"serving": order.name})
                await asyncio.wait([*running, leaving], return_when=asyncio.FIRST_COMPLETED)
                stop.set()
                await asyncio.gather(*running)
        finally:
            stop.set()
            leaving.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if line is not None:
                await line.close()


async def _leave(
    gateway: Gateway, leave: asyncio.Event, stop: asyncio.Event, topology: Topology
) -> None:
    await leave.wait()
    log.info("leaves", extra={"open": len(gateway.driver.machine.requests)})
    await gateway.leave(topology.policy.deadlines.request_s)
    stop.set()


def main() -> int:
    """Serve as ordered, until standard input ends or SIGTERM comes."""
    order = Order.read(_first_line())
    log_to(order.name, order.log)
    if order.log is None:
        logging.disable(logging.INFO)
    try:
        uvloop.run(_until_left(order))
    except (UserError, LineError, OSError, Unready) as error:
        _tell({"failed": one_line(error)})
        return 1
    return 0


async def _until_left(order: Order) -> None:
    loop, stop, leave = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def end() -> None:
        (stop if leave.is_set() else leave).set()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: it ended before
            loop.call_soon_threadsafe(stop.set)

    loop.add_signal_handler(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
    await serve(order, stop, leave)


def _first_line() -> bytes:
    """Read by hand: a buffered reader would swallow what the watch waits for."""
    data = b""
    while not data.endswith(b"\n") and (more := os.read(0, 1)):
        data += more
    return data


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
