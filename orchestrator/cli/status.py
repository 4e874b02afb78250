"""`pdd status`: what a running service is doing."""

from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

ANSWER_S = 5.0


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Where the gateway listens.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="PDD_API_KEY", help="An API key, if the gateway asks.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Workers, links and requests of a running service. Exit code 1 while it is not ready."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answered = httpx.get(f"{base}/status", headers=headers, timeout=ANSWER_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise UserError(
            f"no gateway at {base}: {reason}; start one with pdd serve or give its --url"
        ) from error
    if answered.status_code == 401:
        raise UserError(f"{base} asks for an API key; give it with --key or PDD_API_KEY")
    told = _read(answered)
    if told is None:
        raise UserError(f"{base} is no pdd gateway: /status answered {answered.status_code}")
    if output is Format.JSON:
        print_json(told)
    else:
        _show(told)
    raise typer.Exit(GOOD if told["ready"] else FAILED)


def _read(answered: httpx.Response) -> dict[str, Any] | None:
    """The status in a gateway's answer; None: it is not from a gateway."""
    try:
        told = answered.json() if answered.status_code == 200 else None
    except ValueError:
        return None
    return told if isinstance(told, dict) and "ready" in told and "workers" in told else None


def _show(told: dict[str, Any]) -> None:
    console = Console(highlight=False)
    state = "ready" if told["ready"] else f"not ready: {told['why_not']}"
    requests = told["requests"]
    console.print(
        f"{told['model']} at {told['gateway']['site']}: {state}; "
        f"{requests['open']} requests open, {requests['queued']} queued"
    )
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
        rate = link["goodput_bytes_per_s"] * 8 / 1e6
        console.print(
            f"{' - '.join(link['between'])}: rtt {link['rtt_s'] * 1e3:.1f} ms, {rate:g} Mbps, "
            f"{link['queue_bytes']} bytes of KV under way"
        )
        if link["emulator"] is not None:
            console.print(f"  emulated; control port {link['emulator']}")


def _number(value: float | None, form: str = "{}", factor: float = 1) -> str:
    return "-" if value is None else form.format(value * factor)
