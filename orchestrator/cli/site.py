"""`pdd site`: bring one site of a topology up on this machine, for a gateway elsewhere."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from orchestrator.cli.following import follow
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption
from orchestrator.cli.voice import Voice, entered, keep_logs, on_hangup, signals
from orchestrator.live.one_site import OneSite, one_site
from orchestrator.live.planning import beside
from orchestrator.live.processes import LaunchFailed
from orchestrator.live.site_workers import Roles
from orchestrator.live.startable import check_site
from orchestrator.replay.scenario.roles import plan_roles
from orchestrator.topology.changes import changes
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import DEFAULT_FILE
from orchestrator.topology.schema import Topology

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="Which of the topology's sites this machine is.")],
    file: Annotated[Path, typer.Argument(help="The topology file.")] = DEFAULT_FILE,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the logs in this folder. Default: none are kept.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="A Ray cluster that runs, HOST:PORT. Default: a node is started here."),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start a site with launch: agent here, until SIGINT or SIGTERM; its agent dials the gateway.

    PDD_SECRET must hold the deployment's secret, the same as at the gateway. A signal drains the
    site: what runs ends, nothing new is taken. A second one ends it at once. SIGHUP makes it read
    the file again: pools of the site that changed are taken on while it serves.

    With --ray workers go to the node with label site=NAME, whose processes must have PDD_SECRET.
    """
    voice = Voice(output)
    raise typer.Exit(uvloop.run(_Site(name, file, voice).serve(logs, ray)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to run, with the roles that the file leaves to the planner, `told` in lines."""

    topology: Topology
    roles: Roles
    told: tuple[str, ...]


def _read(asked: tuple[str, Path]) -> _Wanted:
    """A site as its file is now. Raises UserError."""
    name, file = asked
    topology = load_topology(file, at=name)
    check_site(topology, name)
    planned = plan_roles(topology)
    return _Wanted(topology=topology, roles=planned.roles, told=planned.told)


class _Site:
    """The site that runs, as its file was taken on last."""

    def __init__(self, name: str, file: Path, voice: Voice) -> None:
        self._asked = name, file
        self._what = _read(self._asked)
        self._voice = voice

    async def serve(self, logs: Path | None, ray: str | None) -> int:
        """Until a signal or a failure; the exit code. Raises UserError."""
        name, file = self._asked
        for line in self._what.told:
            self._voice.say(line)
        keep_logs(f"site-{name}", logs)
        with signals() as another:
            stopped = another()
            with on_hangup(stopped) as changed:
                manager = one_site(
                    self._what.topology,
                    name,
                    tell=self._voice.say,
                    model_progress=self._voice.model_progress,
                    ray=ray,
                    log_dir=logs,
                    roles=self._what.roles,
                )
                try:
                    with self._voice.model():
                        up = await entered(manager, stopped)
                except LaunchFailed as error:
                    print(f"cannot start: {error}", file=sys.stderr)
                    return FAILED
                if up is None:
                    return GOOD
                read, take = partial(beside, _read, self._asked), partial(self._take, up)
                following = asyncio.create_task(follow(file, changed, read, take, self._voice))
                try:
                    return await self._served(up, stopped, another)
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    await manager.__aexit__(None, None, None)

    async def _served(
        self,
        up: OneSite,
        stopped: "asyncio.Future[None]",
        another: Callable[[], "asyncio.Future[None]"],
    ) -> int:
        self._voice.ready(
            {"ready": up.name, "agent": up.agent},
            f"ready {up.name}, agent at {up.agent}; Ctrl-C drains and stops it",
        )
        await asyncio.wait((stopped, up.failed), return_when=asyncio.FIRST_COMPLETED)
        if up.failed.done():
            print(f"stopping: {up.failed.result()}", file=sys.stderr)
            return FAILED
        await _drained(up, self._voice, another())
        self._voice.say("stopping")
        return GOOD

    async def _take(self, up: OneSite, new: _Wanted) -> list[str]:
        """What is told of the site as it is from now on. Raises UserError."""
        lines = changes(self._what.topology, new.topology)
        ours = [line for line in lines if line.startswith(f"sites.{up.name}.")]
        if ours:
            await up.follow(new.topology, new.roles)
            ours += new.told
        self._what = new
        return ours


async def _drained(up: OneSite, voice: Voice, again: "asyncio.Future[None]") -> None:
    """Return when nothing runs any more, or at the next signal, which is `again`."""
    voice.say("draining: what runs ends first; the same again ends it at once")
    leaving = asyncio.create_task(up.leave())
    await asyncio.wait((leaving, again, up.failed), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
