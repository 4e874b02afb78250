"""`pdd drain`: a site, or one worker, out of a running service in peace."""

from typing import Annotated, Any

import typer

from orchestrator.cli.gateway import KeyOption, give_order
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def drain(
    target: Annotated[str, typer.Argument(help="A site, or a worker: SITE/POOL/NUMBER.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the site have its workers again.")
    ] = False,
    url: Annotated[str, typer.Option(help="Where the gateway listens.")] = "http://127.0.0.1:8000",
    key: KeyOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """No new request goes there, running ones end in peace, then the processes end.

    A site stays away until --undo; a worker's place another process takes. pdd status --watch shows
    how far it is. With API keys it takes one of security.operator_keys_env.
    """
    if "/" in target and undo:
        raise UserError("--undo: of a site; a worker comes back by itself")
    order = {"worker": target} if "/" in target else {"site": target, "undo": undo}
    told = give_order(url, key, order)
    if output is Format.JSON:
        print_json(told)
    else:
        print(_text(told, undo=undo))


def _text(told: dict[str, Any], *, undo: bool) -> str:
    if "worker" in told:
        return f"{told['worker']} drains; another process takes its place"
    if undo:
        return f"{told['site']} may have its workers again"
    return f"{told['site']} drains: {', '.join(told['workers']) or 'it has no workers'}"
