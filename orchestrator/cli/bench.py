"""`pdd bench NAME`: measure a claim."""

import typer

from orchestrator.cli.benches.chaos import chaos
from orchestrator.cli.benches.codec import codec
from orchestrator.cli.benches.driver import driver
from orchestrator.cli.benches.faults import faults
from orchestrator.cli.benches.fuzz import fuzz
from orchestrator.cli.benches.gateway import gateway
from orchestrator.cli.benches.handoff import handoff
from orchestrator.cli.benches.hooks import hooks
from orchestrator.cli.benches.link import link
from orchestrator.cli.benches.mutants import mutants
from orchestrator.cli.benches.overload import overload
from orchestrator.cli.benches.paper import paper
from orchestrator.cli.benches.parity import parity
from orchestrator.cli.benches.plan import plan
from orchestrator.cli.benches.pool import pool
from orchestrator.cli.benches.replay import replay
from orchestrator.cli.benches.schedule import schedule
from orchestrator.cli.benches.soak import soak
from orchestrator.cli.benches.triattention import triattention
from orchestrator.cli.benches.turns import turns
from orchestrator.cli.benches.validate import validate
from orchestrator.cli.benches.vtoken import vtoken

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

# To add a benchmark, add its line here.
app.command()(chaos)
app.command()(codec)
app.command()(driver)
app.command()(faults)
app.command()(fuzz)
app.command()(gateway)
app.command()(handoff)
app.command()(hooks)
app.command()(link)
app.command()(mutants)
app.command()(overload)
app.command()(paper)
app.command()(parity)
app.command()(plan)
app.command()(pool)
app.command()(replay)
app.command()(schedule)
app.command()(soak)
app.command()(triattention)
app.command()(turns)
app.command()(validate)
app.command()(vtoken)


@app.callback()
def bench() -> None:
    """Measure a claim; every figure of the README comes from one of these."""
