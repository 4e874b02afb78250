"""What must hold for `security.tls`: the certificates of the sites that start on this machine."""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from orchestrator.topology.rules import Found
from orchestrator.topology.schema import Tls
from orchestrator.topology.strict import validate
from transport.tls import TlsError, check_files, site_hostname


def absolute_path(path: str, directory: FilePath) -> str:
    """Where a path that stands in a topology's file in `directory` leads."""
    return str((directory / FilePath(path).expanduser()).absolute())


def absolute(tls: Tls | None, directory: FilePath) -> Tls | None:
    """The same with absolute paths; `directory` is where the topology's file lies."""
    if tls is None:
        return None
    ca, cert, key = (absolute_path(path, directory) for path in (tls.ca, tls.cert, tls.key))
    return Tls(ca=ca, cert=cert, key=key)


def tls_mistakes(
    data: dict[str, Any], directory: FilePath, at: str | None = None
) -> Iterator[Found]:
    """Every rule about `security.tls` that the file's data breaks.

    `at`: the site whose machine this is; None: the gateway's.
    """
    security, sites = data.get("security"), data.get("sites")
    if not isinstance(security, dict) or not isinstance(sites, dict) or "tls" not in security:
        return
    try:
        tls = absolute(validate(Tls, security["tls"]), directory)
    except ValidationError:
        return  # reported by the schema
    if tls is not None:
        yield from _name_rules(sites)
        here = _here(data, sites) if at is None else [site for site in sites if site == at]
        yield from _file_rules(tls, here)


def _name_rules(sites: dict[str, Any]) -> Iterator[Found]:
    first: dict[str, str] = {}
    for site in sites:
        other = first.setdefault(site_hostname(site), site)
        if other != site:
            yield (
                ("sites", site),
                f"differs from {other!r} only in case: certificates cannot tell them apart",
            )


def _here(data: dict[str, Any], sites: dict[str, Any]) -> list[str]:
    """The sites whose certificates must be on this machine: local ones and the gateway's."""
    gateway = data.get("gateway")
    home = gateway.get("site") if isinstance(gateway, dict) else None
    return [
        name
        for name, site in sites.items()
        if name == home or not isinstance(site, dict) or site.get("launch", "local") == "local"
    ]


def _file_rules(tls: Tls, here: list[str]) -> Iterator[Found]:
    for site in here:
        files = tls.files(site)
        try:
            check_files(files, site)
        except TlsError as error:
            keys = {files.ca: "ca", files.cert: "cert", files.key: "key"}
            yield ("security", "tls", keys[error.path]), str(error)
