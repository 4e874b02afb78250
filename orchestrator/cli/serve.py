"""`pdd serve`: bring a topology up on this machine and serve it."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption
from orchestrator.errors import UserError
from orchestrator.live.journal import Header, Journal
from orchestrator.live.launch import LaunchFailed
from orchestrator.live.running import check_startable, running
from orchestrator.live.site_workers import Roles
from orchestrator.replan.watch import Replanning
from orchestrator.replay.scenario.roles import plan_roles, replanning_of
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import DEFAULT_FILE
from orchestrator.topology.schema import Topology
from workers.service.logs import log_to

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def serve(
    file: Annotated[Path, typer.Argument(help="The topology file.")] = DEFAULT_FILE,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Listen here instead of the file's port.")
    ] = None,
    gateway_site: Annotated[
        str | None, typer.Option(help="Stand in this site instead of the file's.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the logs in this folder. Default: none are kept.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write every event of the core and its answers to this file, prompts included; "
            "pdd bench parity reads it. A file that is there is replaced."
        ),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start the sites of a topology on this machine and serve it until SIGINT or SIGTERM."""
    topology = _overridden(load_topology(file), port, gateway_site)
    check_startable(topology)
    if record is not None and topology.gateway.processes > 1:
        raise UserError("--record: a journal is of one gateway; leave out gateway.processes")
    voice = _Voice(output)
    roles, replanning = _planned(topology, voice), replanning_of(topology)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        log_to("gateway", logs / "gateway.log")
    else:
        log_to("gateway", None)
        logging.disable(logging.INFO)
    what = _Service(topology=topology, roles=roles, replanning=replanning, logs=logs)
    raise typer.Exit(uvloop.run(_recorded(what, voice, record)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """What is to be served. `logs`: where they are kept; None: nowhere."""

    topology: Topology
    roles: Roles
    replanning: Replanning | None
    logs: Path | None


def _overridden(topology: Topology, port: int | None, site: str | None) -> Topology:
    gateway = topology.gateway
    if port is not None:
        gateway = gateway.model_copy(update={"port": port})
    if site is not None:
        if site not in topology.sites:
            known = ", ".join(sorted(topology.sites))
            raise UserError(f"--gateway-site: no site {site!r} in the topology; there are {known}")
        gateway = gateway.model_copy(update={"site": site})
    return topology.model_copy(update={"gateway": gateway})


def _planned(topology: Topology, voice: "_Voice") -> Roles:
    """The roles that the file leaves to the planner, told. Raises UserError."""
    planned = plan_roles(topology)
    for line in planned.told:
        voice.say(line)
    return planned.roles


class _Voice:
    """Tells people what happens, as text or as one JSON object a line."""

    def __init__(self, output: Format) -> None:
        self._json = output is Format.JSON
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        if self._json:
            print(orjson.dumps({"progress": text}).decode(), flush=True)
        else:
            self._console.print(f"  {text}")

    def ready(self, url: str, model: str) -> None:
        if self._json:
            print(orjson.dumps({"ready": url, "model": model}).decode(), flush=True)
            return
        print(f"ready {url}", flush=True)
        body = (
            f'{{"model": "{model}", "stream": true, "max_tokens": 64, "pdd_timings": true, '
            '"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
        )
        print(
            f"\ncurl -N {url}/chat/completions -H 'Content-Type: application/json' "
            f"-d '{body}'\n\nCtrl-C stops everything.",
            flush=True,
        )

    @contextlib.contextmanager
    def model(self) -> Iterator[None]:
        """A progress bar for the model's preparation, shown only if it takes any."""
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def model_progress(self, done: int, total: int, what: str) -> None:
        if self._json:
            self.say(f"{what} {done}/{total}")
            return
        if self._bar is None:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.0f} %"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)
            if done >= total:
                self._bar.stop()


async def _recorded(what: _Service, voice: _Voice, record: Path | None) -> int:
    """Serve, with a journal if one is wanted. Raises UserError before anything was started."""
    if record is None:
        return await _serve(what, voice, None)
    journal = Journal(record, asyncio.get_running_loop().call_later)
    with contextlib.closing(journal):
        return await _serve(what, voice, journal)


async def _serve(what: _Service, voice: _Voice, journal: Journal | None) -> int:
    topology = what.topology
    host, port = topology.gateway.host, topology.gateway.port
    async with _until_signal() as stopped:
        try:
            with voice.model():
                manager = running(
                    topology,
                    progress=voice.say,
                    model_progress=voice.model_progress,
                    log_dir=what.logs,
                    record=None if journal is None else journal.record,
                    roles=what.roles,
                    replanning=what.replanning,
                )
                entering = asyncio.ensure_future(manager.__aenter__())
                await asyncio.wait({entering, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not entering.done():
                    entering.cancel()
                    await asyncio.gather(entering, return_exceptions=True)
                    return GOOD
                up = entering.result()
        except LaunchFailed as error:
            print(f"cannot start: {error}", file=sys.stderr)
            return FAILED
        try:
            if journal is not None and up.gateway is not None:
                config = up.gateway.driver.config
                journal.begin(Header(model=topology.model, config=config))
            voice.ready(f"http://{host}:{port}/v1", up.model)
            failed = up.deployment.failed
            await asyncio.wait({up.serving, stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                print(f"stopping: {failed.result()}", file=sys.stderr)
                return FAILED
            if up.serving.done() and not stopped.done():
                print("stopping: the gateway ended by itself", file=sys.stderr)
                return FAILED
            voice.say("stopping")
            return GOOD
        finally:
            await manager.__aexit__(None, None, None)


@contextlib.asynccontextmanager
async def _until_signal() -> AsyncIterator["asyncio.Future[None]"]:
    """A future that is done when SIGINT or SIGTERM has come."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
