"""`pdd bench pool`: what a site's store of KV blocks brings."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from workers.engines.models import ModelNotFound


def pool(
    folder: Annotated[
        Path | None,
        typer.Option(help="A folder on the disk to measure. Default: where temporary files go."),
    ] = None,
    longest: Annotated[
        int,
        typer.Option(min=128, max=2048, help="The longest prompt whose TTFT is measured, tokens."),
    ] = 2048,
    output: FormatOption = Format.TEXT,
) -> None:
    """Hits by tier, TTFT from each of them, what pays where, and what main need not be sent."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"--folder: there is no folder {folder}")
    # By name, when it is called: torch and transformers take seconds to import.
    pool_bench = importlib.import_module("benchmarks.pool.run")
    try:
        result = pool_bench.run(folder, longest=longest, tell=tell)
    except ModelNotFound as error:
        raise UserError(str(error)) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    console = Console()
    tiers, again = result["hit_by_tier"], result["restart"]
    console.print(
        f"{result['conversations']} conversations of {result['turns']} turns: "
        f"{result['hit']:.1%} of the tokens were found ({result['ideal_hit']:.1%} at best): "
        + ", ".join(f"{name} {part:.1%}" for name, part in tiers.items())
    )
    console.print(
        f"after the store's restart {again['hit']:.1%} of {again['ideal_hit']:.1%} at best"
    )
    ttft = Table(title=f"time to the first token, {result['model']}")
    for name in ("tokens", "in memory, s", "in files, s", "computed, s"):
        ttft.add_column(name, justify="right")
    for row in result["ttft"]:
        seconds = (row["dram_s"], row["nvme_s"], row["recompute_s"])
        ttft.add_row(str(row["tokens"]), *(f"{s:.3f}" for s in seconds))
    console.print(ttft)
    pays = Table(title="loaded instead of computed")
    for name in ("model", "chip", "memory, MB/s", "pays", "files, MB/s", "pays"):
        pays.add_column(name, justify="left" if name in ("model", "chip") else "right")
    for row in result["crossover"]:
        cells = [
            cell
            for tier in ("dram", "nvme")
            for cell in (f"{row[f'{tier}_bytes_per_s'] / 1e6:.0f}", _from(row, tier))
        ]
        pays.add_row(row["model"], row["chip"], *cells)
    console.print(pays)
    console.print(_modelled(result["crossover"]))
    sent = Table(title="what main is sent")
    for name in ("turn", "prompt, tokens", "sent", "KV sent, MB", "everything, MB"):
        sent.add_column(name, justify="right")
    for row in result["transfers"]:
        sent.add_row(
            str(row["turn"]),
            str(row["prompt_tokens"]),
            str(row["sent_tokens"]),
            f"{row['sent_bytes'] / 1e6:.2f}",
            f"{row['everything_bytes'] / 1e6:.2f}",
        )
    console.print(sent)


def _modelled(pairs: list[dict[str, Any]]) -> Table:
    shown = Table(title="time to the first token, simulated engine with a catalogue model's costs")
    for name in ("model", "chip", "tokens", "in memory, s", "in files, s", "computed, s"):
        shown.add_column(name, justify="left" if name in ("model", "chip") else "right")
    for pair in pairs:
        for row in pair["ttft"]:
            seconds = (row["dram_s"], row["nvme_s"], row["recompute_s"])
            cells = (str(row["tokens"]), *(f"{s:.3f}" for s in seconds))
            shown.add_row(pair["model"], pair["chip"], *cells)
    return shown


def _from(row: dict[str, Any], tier: str) -> str:
    tokens = row[f"{tier}_from_tokens"]
    return "never" if tokens is None else f"from {tokens} tokens"
