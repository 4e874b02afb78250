"""`pdd schema`: what a file may say, as JSON Schema draft-07, for editors."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import BaseModel

from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.replay.scenario.schema import ScenarioFile
from orchestrator.topology.json_schema import json_schema, outline
from orchestrator.topology.schema import Topology
from orchestrator.virtual.faults.scenario import Scenario

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Kind(StrEnum):
    """The files that people write."""

    TOPOLOGY = "topology"
    SCENARIO = "scenario"
    FAULTS = "faults"


SCHEMAS: Mapping[Kind, tuple[type[BaseModel], str]] = {
    Kind.TOPOLOGY: (Topology, "A PDD deployment"),
    Kind.SCENARIO: (ScenarioFile, "A scenario of pdd replay and pdd plan"),
    Kind.FAULTS: (Scenario, "A scenario of pdd bench faults"),
}


@app.command()
def schema(
    kind: Annotated[Kind, typer.Argument(help="Of which file.")] = Kind.TOPOLOGY,
    output: FormatOption = Format.JSON,
) -> None:
    """Print the JSON Schema of a file, or as text its keys and what they take.

    A first line `# yaml-language-server: $schema=SCHEMA` makes editors use it.
    """
    made = json_schema(*SCHEMAS[kind])
    if output is Format.JSON:
        print_json(made)
    else:
        print("\n".join(outline(made)))
