"""`pdd bench hooks`: what the connector takes of a vLLM step."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import hooks as hooks_bench
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError
from workers.engines.models import DEFAULT_MODEL, ModelNotFound


def hooks(
    python: Annotated[
        str, typer.Option(help="The python of an environment that has vLLM.")
    ] = "build/vllm/bin/python",
    output: FormatOption = Format.TEXT,
) -> None:
    """CPU time inside the connector's hooks per step of vLLM, for its own requests and for runs."""
    try:
        result = hooks_bench.run(python, DEFAULT_MODEL)
    except ModelNotFound as error:
        raise UserError(str(error)) from error
    except FileNotFoundError as error:
        raise UserError(f"no python at {python}: make test-vllm makes one") from error
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"microseconds per decode step, {result['steps']} steps")
    for name in ("requests", "in hooks (CPU)", "step (CPU)", "step", "share"):
        table.add_column(name, justify="left" if name == "requests" else "right")
    for name, row in result["rows"].items():
        numbers = (f"{row[key]:.0f}" for key in ("hooks_us_per_step", "step_cpu_us", "step_us"))
        table.add_row(name.replace("_", " x "), *numbers, f"{row['share']:.2%}")
    Console().print(table)
