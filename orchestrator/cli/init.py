"""`pdd init`: a commented topology, and a CA and a certificate per site, for a first try."""

import datetime
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.errors import UserError
from orchestrator.topology.document import read_document
from orchestrator.topology.packaged import DEFAULT_FILE
from orchestrator.topology.schema import NAME_PATTERN
from orchestrator.topology.starter import starter
from transport.certificates import Authority, Pair
from transport.tls import site_hostname

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

SITES = ("hami", "shenzhen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was written; of certificates until when they are valid, and what goes into the topology.

    `topology`: the file that was written; None: there was one already.
    """

    topology: str | None
    files: list[str]  # of certificates and keys
    sites: dict[str, str]  # site -> the DNS name in its certificate
    valid_until: str | None  # ISO 8601, UTC
    tls: dict[str, str] | None


@app.command()
def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The topology file: written, unless it is there. Default: topology.yaml."
        ),
    ] = None,
    certs: Annotated[
        Path | None, typer.Option(help="Make a CA and a certificate per site in this folder.")
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(
            help="The sites' names, with commas; with --certs and without a file only certificates "
            "are made. Default: hami,shenzhen."
        ),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Write a commented topology to start from; on request the certificates of its sites too, or
    of the sites of a topology that is there already."""
    target = _target(file, certs, sites)
    there = target is not None and target.exists()
    if target is not None and there:
        names = _names_in(target)
    else:
        names = _names_given(sites or ",".join(SITES))
    made = Made(
        topology=None if target is None or there else str(target),
        files=[],
        sites={name: site_hostname(name) for name in names},
        valid_until=None,
        tls=None,
    )
    if certs is not None:
        authority = Authority(datetime.datetime.now(datetime.UTC))
        made = replace(
            made,
            files=[str(path) for path in _write(certs, authority, names)],
            valid_until=authority.until.isoformat(timespec="seconds"),
            tls=_tls(_seen_from(certs, target)),
        )
    if target is not None and not there:
        _write_topology(target, starter(names, tls=made.tls))
    if output is Format.JSON:
        print_json(made)
    else:
        print(_text(made))


def _target(file: Path | None, certs: Path | None, sites: str | None) -> Path | None:
    """The topology that is written or read; None: there is none, only certificates are wanted."""
    if file is None and certs is not None and sites is not None:
        return None
    target = file or DEFAULT_FILE
    if target.exists() and sites is not None:
        raise UserError(f"--sites: {target} is there already, and names its sites")
    if target.exists() and certs is None:
        raise UserError(f"{target} is there already; name another, or --certs for its certificates")
    return target


def _tls(folder: Path) -> dict[str, str]:
    """What a topology says of the certificates in a folder."""
    return {
        "ca": str(folder / "ca.pem"),
        "cert": str(folder / "{site}.pem"),
        "key": str(folder / "{site}.key"),
    }


def _write_topology(file: Path, text: str) -> None:
    """Raises UserError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or file}: {error.strerror}") from error


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
    lines = [f"wrote {path}" for path in (made.topology, *made.files) if path is not None]
    if made.files:
        key = Path(made.files[0]).with_suffix(".key")
        lines.append(
            f"valid until {made.valid_until}; whoever has {key} can make more: keep it off the "
            "sites"
        )
    if made.topology is None and made.tls is not None:
        lines += ["", "In the topology:", "", "security:", "  tls:"]
        lines += [f"    {key}: {orjson.dumps(path).decode()}" for key, path in made.tls.items()]
    if made.topology is not None:
        named = "" if made.topology == str(DEFAULT_FILE) else f" {made.topology}"
        lines.append(f"next: pdd serve{named}")
    return "\n".join(lines)
