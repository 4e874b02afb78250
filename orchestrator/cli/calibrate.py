"""`pdd calibrate MODEL`: what the pruning policy triattention needs to know of a model."""

import importlib
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError
from workers.engines.models import ModelError, resolve_model

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_PIECE = 2048  # tokens that are read as one text


@app.command()
def calibrate(
    model: Annotated[str, typer.Argument(help="A name from the catalogue or a directory.")],
    text: Annotated[
        Path | None,
        typer.Option(help="Plain text to read, UTF-8. Default: Python's own help texts."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=256, help="How many of its tokens to read.")] = 8192,
    output: FormatOption = Format.TEXT,
) -> None:
    """Read plain text once and keep, in the user's cache, what the model's queries are like.

    A pool with `evict: {policy: triattention}` needs it; it is of one model and no other.
    """
    words = _words(text)
    # By name, when it is called: torch and transformers take seconds to import.
    load = importlib.import_module("workers.engines.torch.load")
    calibrating = importlib.import_module("workers.engines.torch.calibrate")
    tokenizers = importlib.import_module("tokenizers")
    try:
        loaded = load.load_model(resolve_model(model))
        ids = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_file)).encode(words).ids
        if len(ids) < tokens:
            raise UserError(f"--tokens: the text has {len(ids)}, fewer than {tokens}")
        piece = min(_PIECE, loaded.max_context)
        texts = [ids[at : min(at + piece, tokens)] for at in range(0, tokens, piece)]
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=tokens)
            found = calibrating.calibrate(
                loaded, texts, lambda done, total: bar.update(task, completed=done)
            )
        file = calibrating.calibration_file(loaded)
        found.save(file)
    except ModelError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"the calibration cannot be kept: {error}") from error
    if output is Format.JSON:
        print_json({"file": str(file), "model": found.model, "tokens": found.tokens})
    else:
        print(f"read {found.tokens} tokens; kept in {file}")


def _words(text: Path | None) -> str:
    if text is None:
        return "\n\n".join(topics[name] for name in sorted(topics))
    try:
        return text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text: {text} cannot be read: {error}") from error
