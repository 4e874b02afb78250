"""`pdd calibrate MODEL`: what the pruning policy triattention needs to know of a model."""

import importlib
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks import texts as passages
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
        typer.Option(help="Plain text to read, UTF-8. Default: help, code, prose and Chinese."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=256, help="How many of its tokens to read.")] = 8192,
    output: FormatOption = Format.TEXT,
) -> None:
    """Read plain text once and keep, in the user's cache, what the model's queries are like.

    A pool with `evict: {policy: triattention}` needs it; it is of one model and no other.
    """
    words = _words(text)  # before the imports: a file that is not there is said at once
    # By name, when it is called: torch and transformers take seconds to import.
    load = importlib.import_module("workers.engines.torch.load")
    calibrating = importlib.import_module("workers.engines.torch.calibrate")
    tokenizers = importlib.import_module("tokenizers")
    try:
        loaded = load.load_model(resolve_model(model))
        encode = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_file)).encode
        texts = pieces(
            [encode(each).ids for each in words], tokens, min(_PIECE, loaded.max_context)
        )
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


def pieces(texts: Sequence[Sequence[int]], tokens: int, piece: int) -> list[Sequence[int]]:
    """So many tokens in pieces that are read by themselves, from each of the texts in turn.

    Raises UserError where the texts have fewer.
    """
    total = sum(map(len, texts))
    if total < tokens:
        raise UserError(f"--tokens: the text has {total}, fewer than {tokens}")
    cut = [[ids[at : at + piece] for at in range(0, len(ids), piece)] for ids in texts]
    found: list[Sequence[int]] = []
    for one in filter(None, chain.from_iterable(zip_longest(*cut))):
        found.append(one[:tokens])
        tokens -= len(found[-1])
        if not tokens:
            break
    return found


def _words(text: Path | None) -> list[str]:
    """The texts to read. Ours are of several kinds: of one, queries could be like no others."""
    if text is None:
        names = sorted(topics)
        helps = "\n\n".join(topics[name] for name in names[: len(names) // 2])
        return [helps, *passages.texts().values()]
    try:
        return [text.read_text(encoding="utf-8")]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text: {text} cannot be read: {error}") from error
