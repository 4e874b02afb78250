"""`pdd bench link`: KV over a packet-level long line, next to iperf3 and Mooncake."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.link import run as link_bench
from benchmarks.link.processes import BenchFailed
from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from transport.codecs.choose import check_policy
from transport.lab.lab import LabError

COLUMNS = ("wire_gbps", "effective_gbps", "iperf3_gbps", "mooncake_gbps")


def link(
    gbps: Annotated[
        list[float] | None, typer.Option(min=0.001, help="A line's rate; again for more.")
    ] = None,
    loss: Annotated[
        list[float] | None, typer.Option(min=0.0, max=0.5, help="Share of packets lost.")
    ] = None,
    size: Annotated[list[int] | None, typer.Option(min=1, help="MiB of KV in a transfer.")] = None,
    codec: Annotated[list[str] | None, typer.Option(help="As policy.codec.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = link_bench.REPEATS,
    rivals: Annotated[bool, typer.Option(help="Run iperf3 and Mooncake as well.")] = True,
    accidents: Annotated[
        bool, typer.Option(help="Then cut the line, kill a connection, damage frames.")
    ] = True,
    large_buffers: Annotated[
        bool,
        typer.Option(
            "--large-buffers/--kernel-buffers", help="64 MiB for everybody, or the kernel's own."
        ),
    ] = True,
    output: FormatOption = Format.TEXT,
) -> None:
    """KV over a line between two network namespaces, in Gbps. Needs root; minutes."""
    for policy in codec or ():
        try:
            check_policy(policy)
        except ValueError as error:
            raise UserError(f"--codec: {error}") from error
    try:
        result = link_bench.run(
            lines_gbps=tuple(gbps or link_bench.LINES_GBPS),
            losses=tuple(loss or link_bench.LOSSES),
            sizes_mib=tuple(size or link_bench.SIZES_MIB),
            codecs=tuple(codec or link_bench.CODECS),
            repeats=repeats,
            with_rivals=rivals,
            with_accidents=accidents,
            large_buffers=large_buffers,
            tell=tell,
        )
    except (LabError, BenchFailed) as error:
        raise UserError(str(error)) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    table = Table(title="Gbps, medians; wire: coded bytes, effective: KV before coding")
    for name in ("line", "loss", "MiB", "codec", *COLUMNS):
        table.add_column(name.removesuffix("_gbps"), justify="right")
    for cell in result["cells"]:
        values = ["-" if cell[name] is None else f"{cell[name]:.3f}" for name in COLUMNS]
        named = (f"{cell['line_gbps']:g}", f"{cell['loss']:g}", str(cell["size_mib"]))
        table.add_row(*named, cell["codec"], *values)
    Console().print(table)
    harmed = Table(title="Transfers that something happened to")
    for name in ("what", "MiB", "s", "sent twice", "sender grew, MB", "receiver grew, MB"):
        harmed.add_column(name, justify="right")
    for row in result["accidents"]:
        harmed.add_row(
            row["what"],
            str(row["size_mib"]),
            f"{row['seconds']:.2f}",
            f"{row['resent_share']:.2%}",
            f"{row['sender_grown_mb']:.0f}",
            f"{row['receiver_grown_mb']:.0f}",
        )
    Console().print(harmed)
