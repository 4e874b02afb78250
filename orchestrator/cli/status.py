"""`pdd status`: what a running service is doing, once or as it changes."""

import time
from datetime import datetime
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.gateway import KeyOption, ask_status
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.cli.watching import Change, Watch
from orchestrator.errors import UserError
from orchestrator.topology.units import show_rate

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EVERY_S = 0.5  # between two looks of one who watches


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Where the gateway listens.")] = "http://127.0.0.1:8000",
    key: KeyOption = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="A line for each change of gateway, sites and workers, until Ctrl-C."
        ),
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Sites, workers, links and requests of a running service. Exit code 1 while it is not ready.

    With --watch the first lines tell what there is, and -o json writes one object a line.
    """
    told, _ = ask_status(url, key)
    if watch:
        _watch(told, url, key, output)
    if output is Format.JSON:
        print_json(told)
    else:
        _show(told)
    raise typer.Exit(GOOD if told["ready"] else FAILED)


def _watch(told: dict[str, Any] | None, url: str, key: str | None, output: Format) -> NoReturn:
    """For ever, also while the gateway is away."""
    seen = Watch()
    while True:
        for change in seen.see(told):
            _tell(change, output)
        time.sleep(EVERY_S)
        try:
            told, _ = ask_status(url, key)
        except UserError:
            told = None


def _tell(change: Change, output: Format) -> None:
    now = datetime.now().astimezone()
    if output is Format.JSON:
        at = now.isoformat(timespec="milliseconds")
        body = {"at": at, "name": change.name, "before": change.before, "after": change.after}
        print(orjson.dumps(body).decode(), flush=True)
    else:
        print(f"{now:%H:%M:%S}  {change}", flush=True)


def _show(told: dict[str, Any]) -> None:
    console = Console(highlight=False)
    state = "ready" if told["ready"] else f"not ready: {told['why_not']}"
    requests = told["requests"]
    console.print(
        f"{told['model']} at {told['gateway']['site']}: {state}; "
        f"{requests['open']} requests open, {requests['queued']} queued"
    )
    for site in told["sites"]:
        if site["state"] != "up":
            console.print(f"site {site['name']}: {site['state']}")
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "roles", "state", "runs", "KV held", "KV free", "step", "prefill"):
        wraps = column == "roles"
        table.add_column(column, no_wrap=not wraps, min_width=7 if wraps else None)
    for worker in told["workers"]:
        load = worker["load"] or {}
        table.add_row(
            worker["name"],
            ", ".join(worker["roles"]),
            worker["state"],
            _number(load.get("running")),
            _number(load.get("kv_held_tokens")),
            _number(load.get("kv_free_tokens")),
            _number(load.get("step_s"), "{:.0f} ms", 1e3),
            _number(load.get("prefill_tokens_per_s"), "{:.0f}/s"),
        )
    console.print(table)
    for link in told["links"]:
        console.print(_link(link))


def _link(link: dict[str, Any]) -> str:
    """One direction of a link on one line."""
    told, given = link["bandwidth_bytes_per_s"], link["goodput_bytes_per_s"]
    ago, loss = link["measured_s_ago"], link["loss"]
    return "".join(
        (
            f"{' > '.join(link['between'])}: {show_rate(given)} of {show_rate(told)}",
            "" if ago is None else f", measured {ago:.0f} s ago",
            f"; rtt {link['rtt_s'] * 1e3:.1f} ms",
            "" if loss is None else f", loss {loss * 100:.2g} %",
            f", {link['queue_bytes']} bytes of KV to send",
            "" if link["emulator"] is None else f"\n  emulated; control port {link['emulator']}",
        )
    )


def _number(value: float | None, form: str = "{}", factor: float = 1) -> str:
    return "-" if value is None else form.format(value * factor)
