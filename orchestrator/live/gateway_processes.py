"""Several gateways that answer on one port: each a process that may die without the others."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.live.driver import new_gateway_name
from orchestrator.live.gateway import take_port
from orchestrator.live.gateway_process import Order
from orchestrator.live.processes import ROOT, LaunchFailed, end_process
from orchestrator.topology.schema import Topology
from workers.service.config import SECRET_ENV

AGAIN_S = 1.0  # before another takes the place of one that ended
UP_S = 180.0  # for all to serve: to load a tokenizer, and hear every worker

log = logging.getLogger(__name__)

Tell = Callable[[str], None]


def check_ports(topology: Topology) -> None:
    """Raises UserError when a port of the gateways is taken.

    Asked before they listen, for those who share a port would not notice another deployment's.
    """
    gateway = topology.gateway
    for port in range(gateway.port, gateway.port + gateway.processes + 1):
        take_port(gateway.host, port).close()


class GatewayProcesses:
    """Starts them, and another in the place of each that ends, until it is told to stop.

    `internal` are the ports on which they hear agents, one for each; `tell` gets lines for people.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        model: Path,
        internal: Sequence[int],
        emulator: int | None,
        secret: str,
        log_dir: Path | None,
        tell: Tell,
    ) -> None:
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {SECRET_ENV: secret, "PYTHONPATH": os.pathsep.join(path)}
        self._places = [
            _Place(
                Order(
                    topology=topology,
                    model=model,
                    number=number,
                    name="",  # of each process that takes the place
                    internal=port,
                    emulator=emulator,
                    log=None if log_dir is None else log_dir / f"gateway-{number}.log",
                ),
                environment,
                tell,
            )
            for number, port in enumerate(internal, start=1)
        ]

    async def up(self) -> None:
        """Return when all of them serve. Raises LaunchFailed."""
        try:
            async with asyncio.timeout(UP_S):
                await asyncio.gather(*(place.serving for place in self._places))
        except TimeoutError:
            raise LaunchFailed(f"the gateways do not serve within {UP_S:g} s") from None

    def follow(self, topology: Topology) -> None:
        """The next process of each place is to know this topology; those that run need not."""
        for place in self._places:
            place.order = replace(place.order, topology=topology)

    async def watch(self) -> None:
        """Return when some place is kept no longer, which is never but by a defect."""
        await asyncio.wait(
            [place.keeping for place in self._places], return_when=asyncio.FIRST_COMPLETED
        )

    async def stop(self) -> None:
        """End them in order, all at once."""
        await asyncio.gather(*(place.end() for place in self._places))


class _Place:
    """One place among the gateways, and the process that has it now.

    `serving` is done when the first one serves, or cannot; `keeping` then.
    """

    def __init__(self, order: Order, environment: dict[str, str], tell: Tell) -> None:
        self.order = order
        self._environment = environment
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.keeping = asyncio.create_task(self._keep())

    async def end(self) -> None:
        """End its process in order, and start no other."""
        self.keeping.cancel()
        self.serving.cancel()
        await asyncio.gather(self.keeping, self.serving, return_exceptions=True)
        await self._end_process()

    async def _end_process(self) -> None:
        if self._process is not None:
            await end_process(self._process)

    async def _keep(self) -> None:
        number = self.order.number
        while True:
            try:
                reason = await self._live()
            except OSError as error:  # no process could be started, or it ended at once
                reason = str(error)
            except ValueError as error:  # it says what no gateway says
                reason = f"not understood: {error}"
                await self._end_process()
            if not self.serving.done():
                self.serving.set_exception(LaunchFailed(f"gateway {number}: {reason}"))
                return
            log.error("gateway ended", extra={"number": number, "reason": reason})
            self._tell(f"gateway {number} ended ({reason}); another takes its place")
            await asyncio.sleep(AGAIN_S)

    async def _live(self) -> str:
        """One process, from its start to its end: why it ended."""
        order = replace(
            self.order,
            name=f"{new_gateway_name()}-{self.order.number}",
            replaces=self.serving.done(),
        )
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator.live.gateway_process"),
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the launcher, which ends things in order
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order.write())
        failed: str | None = None
        async for line in process.stdout:
            if not line.startswith(b"{"):
                continue  # a library's word
            told = json.loads(line)
            failed = told.get("failed")
            if failed is None:
                log.info("gateway serves", extra={"number": order.number, "gateway": order.name})
                self._tell(f"gateway {order.number} serves")
                if not self.serving.done():
                    self.serving.set_result(None)
        code = await process.wait()
        return failed or f"code {code}"
