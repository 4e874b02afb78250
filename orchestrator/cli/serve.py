"""`pdd serve`: bring a topology up on this machine and serve it."""

import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from orchestrator.cli.dry_run import describe, show
from orchestrator.cli.following import follow
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption
from orchestrator.cli.reading import Asked, Served, read
from orchestrator.cli.voice import Voice, entered, keep_logs, on_hangup, signals
from orchestrator.errors import UserError
from orchestrator.live.journal import Header, Journal
from orchestrator.live.planning import beside
from orchestrator.live.processes import LaunchFailed
from orchestrator.live.running import Running, running
from orchestrator.topology.changes import changes
from orchestrator.topology.packaged import DEFAULT_FILE

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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be started, and start nothing.")
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start the sites of a topology on this machine and serve it until SIGINT or SIGTERM.

    SIGHUP makes it read the file again: pools that were added, removed or changed are taken on, no
    request is lost. What cannot change while it runs is told, and then nothing does.
    """
    asked = Asked(file=file, port=port, gateway_site=gateway_site)
    what = read(asked)
    if record is not None and what.topology.gateway.processes > 1:
        raise UserError("--record: a journal is of one gateway; leave out gateway.processes")
    voice = Voice(output)
    for line in what.told:
        voice.say(line)
    if dry_run:
        show(describe(what.topology, what.roles), output)
        return
    keep_logs("gateway", logs)
    service = _Service(asked, what, logs, voice)
    raise typer.Exit(uvloop.run(_recorded(service, record)))


class _Service:
    """What is served. `logs`: where they are kept; None: nowhere."""

    def __init__(self, asked: Asked, what: Served, logs: Path | None, voice: Voice) -> None:
        self._asked = asked
        self._what = what
        self._logs = logs
        self._voice = voice

    async def serve(self, journal: Journal | None) -> int:
        """Until a signal or a failure; the exit code. Raises UserError."""
        with signals() as another:
            stopped = another()
            with on_hangup(stopped) as changed:
                manager = self._running(journal)
                try:
                    with self._voice.model():
                        up = await entered(manager, stopped)
                except LaunchFailed as error:
                    print(f"cannot start: {error}", file=sys.stderr)
                    return FAILED
                if up is None:
                    return GOOD
                following = asyncio.create_task(
                    follow(
                        self._asked.file,
                        changed,
                        partial(beside, read, self._asked),
                        partial(self._take, up),
                        self._voice,
                    )
                )
                try:
                    return await self._served(up, journal, stopped)
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    await manager.__aexit__(None, None, None)

    def _running(self, journal: Journal | None) -> contextlib.AbstractAsyncContextManager[Running]:
        return running(
            self._what.topology,
            progress=self._voice.say,
            model_progress=self._voice.model_progress,
            log_dir=self._logs,
            record=None if journal is None else journal.record,
            roles=self._what.roles,
            replanning=self._what.replanning,
        )

    async def _served(
        self, up: Running, journal: Journal | None, stopped: "asyncio.Future[None]"
    ) -> int:
        topology = self._what.topology
        if journal is not None and up.gateway is not None:
            config = up.gateway.driver.config
            journal.begin(Header(model=topology.model, config=config))
        url = f"http://{topology.gateway.host}:{topology.gateway.port}/v1"
        self._voice.ready({"ready": url, "model": up.model}, _first_steps(url, up.model))
        failed = up.deployment.failed
        await asyncio.wait((up.serving, stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            print(f"stopping: {failed.result()}", file=sys.stderr)
            return FAILED
        if up.serving.done() and not stopped.done():
            print("stopping: the gateway ended by itself", file=sys.stderr)
            return FAILED
        self._voice.say("stopping")
        return GOOD

    async def _take(self, up: Running, new: Served) -> list[str]:
        """What is told of a changed topology that is served from now on. Raises UserError."""
        lines = changes(self._what.topology, new.topology)
        if lines:
            await up.follow(new.topology, new.roles, new.replanning)
            self._what = new
            lines += new.told
        return lines


async def _recorded(service: _Service, record: Path | None) -> int:
    """Serve, with a journal if one is wanted. Raises UserError before anything was started."""
    if record is None:
        return await service.serve(None)
    journal = Journal(record, asyncio.get_running_loop().call_later)
    with contextlib.closing(journal):
        return await service.serve(journal)


def _first_steps(url: str, model: str) -> str:
    body = (
        f'{{"model": "{model}", "stream": true, "max_tokens": 64, "pdd_timings": true, '
        '"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    )
    return (
        f"ready {url}\n\ncurl -N {url}/chat/completions -H 'Content-Type: application/json' "
        f"-d '{body}'\n\nCtrl-C stops everything."
    )
