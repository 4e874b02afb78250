"""`pdd bench plan`: is the plan the best, and does it serve what it says?"""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import plan as plan_bench
from orchestrator.cli.output import Format, FormatOption, print_json, tell


def plan(
    only: Annotated[
        str | None, typer.Option(help="Only small cases whose name contains this.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: all cores.")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Small deployments, every assignment simulated; large ones against the clock; PDD's own."""
    result = plan_bench.run(only=only, jobs=jobs, tell=tell)
    if output is Format.JSON:
        print_json(result)
        return
    console = Console()
    console.print(_cases(result["cases"]))
    for row in result.get("scale", ()):
        print(
            f"{row['name']}: {row['plan_s']:.1f} s, {row['tried']} assignments, "
            f"{row['gap']:.0%} below the bound"
        )
    if "pdd" in result:
        paper, found = result["pdd"], result["pdd"]["plan"]
        print(f"PDD: {found['explanation'].headline}")
        for name, key in (("one site", "over_one_site"), ("direct", "over_direct")):
            gain = paper[key]
            print(f"  goodput per cost over {name}: {'-' if gain is None else f'{gain:+.1%}'}")
        print(f"  the paper's, over one site: {paper['papers_gain_over_one_site']:+.1%}")
        for site, text in result["three_sites"]["explanation"].sites.items():
            print(f"three sites: {site} {text}")


def _cases(cases: list[dict[str, Any]]) -> Table:
    table = Table(title="plans against simulation, requests/s within the goal")
    table.add_column("case")
    for column in ("planned", "simulated", "off", "best", "optimal", "of", "plan s"):
        table.add_column(column, justify="right")
    for case in cases:
        off = case["error"]
        table.add_row(
            case["name"],
            f"{case['bound']:.2f}",
            f"{case['simulated']:.2f}",
            "-" if off is None else f"{off:+.1%}",
            f"{case['best_by_simulation']:.2f}",
            "yes" if case["optimal"] else "no",
            f"{case['assignments']}",
            f"{case['plan_s']:.2f}",
        )
    return table
