"""`pdd bench triattention`: the pruner's foresight, and what pruning costs and gains."""

import importlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.cli.output import Format, FormatOption, print_json, tell
from orchestrator.errors import UserError
from workers.engines.models import ModelError


def triattention(
    short: Annotated[bool, typer.Option("--short", help="One text, one context.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Pearson, KL beside other policies at the same budgets, planted facts, decode speed."""
    # By name, when it is called: torch and transformers take seconds to import.
    triattention_bench = importlib.import_module("benchmarks.triattention.run")
    try:
        result = triattention_bench.run(short=short, tell=tell)
    except ModelError as error:
        raise UserError(str(error)) from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table(title="against all of the context, means over the texts")
    for name in ("context", "kept", "policy", "KL", "top-1", "perplexity", "KV", "decode"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in result["budgets"]:
        table.add_row(
            str(row["context"]),
            f"{row['budget']:.0%}",
            row["policy"],
            f"{row['kl']:.4f}",
            f"{row['top1']:.1%}",
            f"{row['perplexity']:.2f} ({row['perplexity_full']:.2f})",
            f"1/{row['kv_ratio']:.1f}",
            "-" if row["speedup"] is None else f"{row['speedup']:.2f} x",
        )
    Console().print(table)
    for fact in result.get("facts", []):
        print(
            f"{fact['found']} of {fact['of']} planted facts at {fact['budget']:.0%}, "
            f"{fact['policy']}"
        )
    pearson, paper = result["pearson"], result["paper"]
    print(
        f"Pearson {pearson['median']:.2f}, quartiles {pearson['q25']:.2f} and "
        f"{pearson['q75']:.2f}; in the paper {paper['pearson']}"
    )
