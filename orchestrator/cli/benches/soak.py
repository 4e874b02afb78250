"""`pdd bench soak`: mixed traffic with faults for long."""

from typing import Annotated, Any

import typer

from benchmarks.reliability import soak as soak_bench
from orchestrator.cli.benches.served import cannot_start_told
from orchestrator.cli.main import FAILED, GOOD
from orchestrator.cli.output import Format, FormatOption, print_json, tell


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long requests come.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Of requests and faults.")] = 0,
    output: FormatOption = Format.TEXT,
) -> None:
    """Does the gateway's process grow, does anything hang, is anything left at the end?"""
    with cannot_start_told():
        result = soak_bench.run(minutes=minutes, seed=seed, tell=tell)
    if output is Format.JSON:
        print_json(result)
    else:
        _print(result)
    raise typer.Exit(FAILED if result["broken"] else GOOD)


def _print(result: dict[str, Any]) -> None:
    outcomes = ", ".join(f"{count} {what}" for what, count in result["outcomes"].items())
    faults = ", ".join(f"{count} x {what}" for what, count in result["faults"].items())
    print(f"{result['requests']} requests in {result['minutes']:g} minutes: {outcomes}")
    print(f"faults: {faults or 'none'}")
    for what, slope in result["slopes"].items():
        print(
            f"{what}: {'too few samples' if slope is None else f'{slope:+.3g}'} per 1000 requests"
        )
    print(f"at the end {result['left']} tokens of KV held, {result['open']} requests open")
    print(f"broken: {', '.join(result['broken'])}" if result["broken"] else "no promise was broken")
