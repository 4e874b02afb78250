"""`pdd bench turns`: what each turn of a conversation costs on the wire."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import turns as turns_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.topology.load import load_topology
from orchestrator.topology.packaged import packaged_topology


class FarRoute(StrEnum):
    """The routes on which KV crosses the line."""

    DIRECT = "direct"
    RELAY = "relay"


def turns(
    topology: Annotated[
        Path | None, typer.Option(help="The topology file. Default: laptop-simulated.")
    ] = None,
    route: Annotated[FarRoute, typer.Option(help="How the turns go.")] = FarRoute.DIRECT,
    output: FormatOption = Format.TEXT,
) -> None:
    """KV on the wire for three turns of a conversation, next to sending everything each time."""
    file = topology or packaged_topology("laptop-simulated")
    load_topology(file)
    with cannot_start_told():
        result = turns_bench.run(file, route=route.value, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


ROWS = {
    "prompt, tokens": ("prompt_tokens", "{}", 1),
    "new in it": ("new_tokens", "{}", 1),
    "sent": ("tokens_sent", "{}", 1),
    "KV raw, MB": ("kv_bytes_raw", "{:.2f}", 1e6),
    "on the wire, MB": ("kv_bytes_wire", "{:.2f}", 1e6),
    "transfer, s": ("transfer_s", "{:.2f}", 1),
    "everything: raw, MB": ("all_kv_bytes_raw", "{:.2f}", 1e6),
    "on the wire, MB ": ("all_kv_bytes_wire", "{:.2f}", 1e6),
    "transfer, s ": ("all_transfer_s", "{:.2f}", 1),
}


def _table(result: dict[str, Any]) -> None:
    table = Table(title=f"a conversation on route {result['route']}")
    table.add_column("turn")
    for row in result["turns"]:
        table.add_column(str(row["turn"]), justify="right")
    for name, (key, form, unit) in ROWS.items():
        cells = [_cell(row[key], form, unit) for row in result["turns"]]
        table.add_row(name, *cells, end_section=key == "transfer_s")
    Console().print(table)


def _cell(value: float | None, form: str, unit: float) -> str:
    return "-" if value is None else form.format(value if unit == 1 else value / unit)
