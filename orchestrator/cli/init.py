"""`pdd init --certs DIR`: a CA and a certificate per site, for a first try with TLS."""

import datetime
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer

from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError
from orchestrator.topology.document import read_document
from orchestrator.topology.schema import NAME_PATTERN
from transport.certificates import Authority, Pair
from transport.tls import site_hostname

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was written, until when it is valid, and what goes into the topology."""

    files: list[str]
    sites: dict[str, str]  # site -> the DNS name in its certificate
    valid_until: str  # ISO 8601, UTC
    tls: dict[str, str]


@app.command()
def init(
    file: Annotated[
        Path | None, typer.Argument(help="A topology file, for the names of its sites.")
    ] = None,
    certs: Annotated[
        Path | None, typer.Option(help="Make a CA and a certificate per site in this folder.")
    ] = None,
    sites: Annotated[
        str | None, typer.Option(help="The sites' names, with commas, instead of a file.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make the certificates with which the sites of a deployment know each other."""
    if certs is None:
        raise UserError("--certs: name a folder for the certificates; nothing else is made so far")
    if (file is None) == (sites is None):
        raise UserError("name the sites once: by a topology file or by --sites a,b")
    names = _names_in(file) if file is not None else _names_given(sites or "")
    authority = Authority(datetime.datetime.now(datetime.UTC))
    written = _write(certs, authority, names)
    seen = _seen_from(certs, file)
    made = Made(
        files=[str(path) for path in written],
        sites={name: site_hostname(name) for name in names},
        valid_until=authority.until.isoformat(timespec="seconds"),
        tls={
            "ca": str(seen / "ca.pem"),
            "cert": str(seen / "{site}.pem"),
            "key": str(seen / "{site}.key"),
        },
    )
    if output is Format.JSON:
        print_json(made)
    else:
        print(_text(made))


def _names_in(file: Path) -> list[str]:
    data = read_document(file).data
    sites = data.get("sites") if isinstance(data, dict) else None
    if not isinstance(sites, dict) or not sites:
        raise UserError(f"{file}: sites: there are none; pdd validate {file} says more")
    return _checked(list(sites), f"{file}: sites")


def _names_given(text: str) -> list[str]:
    return _checked([name.strip() for name in text.split(",")], "--sites")


def _checked(names: list[str], where: str) -> list[str]:
    for name in names:
        if not re.fullmatch(NAME_PATTERN, name):
            raise UserError(
                f"{where}: the name {name!r} may only have letters, digits, - and _ (at most 40)"
            )
        if name.lower() == "ca":
            raise UserError(
                f"{where}: a site cannot be called {name!r} here: such files are the CA's"
            )
    for number, name in enumerate(names):
        twin = next((one for one in names[:number] if one.lower() == name.lower()), None)
        if twin == name:
            raise UserError(f"{where}: {name!r} is there twice")
        if twin is not None:
            raise UserError(f"{where}: {twin!r} and {name!r} differ only in case")
    return names


def _write(folder: Path, authority: Authority, names: list[str]) -> list[Path]:
    """Write all or nothing: what is there already is not touched. Raises UserError."""
    pairs = {"ca": authority.pair} | {name: authority.issue(name) for name in names}
    files = [folder / f"{name}.{kind}" for name in pairs for kind in ("pem", "key")]
    try:
        there = next((path for path in files if path.exists() or path.is_symlink()), None)
        if there is not None:
            raise UserError(f"--certs: {there} is there already; remove it or name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        return [path for name, pair in pairs.items() for path in _write_pair(folder, name, pair)]
    except OSError as error:
        place = error.filename or folder
        raise UserError(f"--certs: cannot write {place}: {error.strerror}") from error


def _write_pair(folder: Path, name: str, pair: Pair) -> list[Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    # Of its owner only, from the first byte on.
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(pair.key)
    with cert.open("xb") as out:
        out.write(pair.cert)
    return [cert, key]


def _seen_from(certs: Path, file: Path | None) -> Path:
    """The folder as a topology names it: from the file if it lies below, else in full."""
    full = certs.resolve()
    if file is not None and full.is_relative_to(here := file.parent.resolve()):
        return full.relative_to(here)
    return full


def _text(made: Made) -> str:
    tls = "\n".join(f"    {key}: {orjson.dumps(path).decode()}" for key, path in made.tls.items())
    key = Path(made.files[0]).with_suffix(".key")
    return (
        "\n".join(f"wrote {path}" for path in made.files)
        + f"\nvalid until {made.valid_until}; whoever has {key} can make more: keep it off the "
        f"sites\n\nIn the topology:\n\nsecurity:\n  tls:\n{tls}"
    )
