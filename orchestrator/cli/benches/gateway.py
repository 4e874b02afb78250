"""`pdd bench gateway`: what the gateway costs per token."""

import sys
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import gateway as gateway_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.main import FAILED
from orchestrator.cli.output import Format, FormatOption, print_json, tell

COLUMNS = {
    "streams": "{}",
    "tokens": "{}",
    "tokens_per_s": "{:.0f}",
    "ttft_ms": "{:.1f}",
    "added_ttft_ms": "{:.1f}",
    "cpu_us_per_token": "{:.1f}",
}


def gateway(output: FormatOption = Format.TEXT) -> None:
    """CPU per token, added time to the first token and token rate of the gateway's process."""
    try:
        with cannot_start_told():
            result = gateway_bench.run(tell=tell)
    except gateway_bench.BenchFailed as error:
        print(f"a stream failed: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _table(result)


def _table(result: dict[str, Any]) -> None:
    table = Table(title="the gateway's process, simulated engine, 20 ms a step")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for cell in result["cells"]:
        table.add_row(*(form.format(cell[name]) for name, form in COLUMNS.items()))
    Console().print(table)
    print(
        f"peak {result['peak_tokens_per_s']:.0f} tokens/s; "
        f"one addition in a Python loop takes {result['loop_ns']:.0f} ns now"
    )
