"""Where the clients' keys come from: the environment, or a file."""

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.live.openai.border.door import DEFAULT_TENANT, Door, Rates
from orchestrator.topology.schema import Security


def read_door(security: Security) -> Door:
    """The door that a topology describes.

    A key is `TENANT:KEY` where the file names that tenant, else all of it is a key of the default
    tenant. In the environment keys are separated by commas, in a file each has a line; `#` begins
    a comment there. Operators' keys are the default tenant's too. Raises UserError.
    """
    rates = {
        name: Rates(
            requests_per_minute=tenant.requests_per_minute,
            tokens_per_minute=tenant.tokens_per_minute,
        )
        for name, tenant in security.tenants.items()
    }
    variable = security.operator_keys_env
    operators = None if variable is None else _from_environment("operator_keys_env", variable, ())
    if security.api_keys_env is None and security.api_keys_file is None:
        _check_tenants(rates, {DEFAULT_TENANT})
        return Door(rates=rates, operators=operators)
    keys: dict[str, str] = {}
    if security.api_keys_env is not None:
        keys |= _from_environment("api_keys_env", security.api_keys_env, rates)
    if security.api_keys_file is not None:
        keys |= _from_file(Path(security.api_keys_file), rates)
    _check_tenants(rates, set(keys.values()) | {DEFAULT_TENANT})
    return Door((operators or {}) | keys, rates, operators)


def _from_environment(field: str, variable: str, tenants: Iterable[str]) -> dict[str, str]:
    keys = _keys(os.environ.get(variable, "").split(","), tenants)
    if not keys:
        raise UserError(
            f"security.{field}: {variable} is empty; set it to one key or several, with commas"
        )
    return keys


def _from_file(file: Path, tenants: Iterable[str]) -> dict[str, str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(f"security.api_keys_file: {file}: {reason}") from error
    keys = _keys((line for line in lines if not line.lstrip().startswith("#")), tenants)
    if not keys:
        raise UserError(f"security.api_keys_file: {file} holds no key; write one on each line")
    return keys


def _keys(given: Iterable[str], tenants: Iterable[str]) -> dict[str, str]:
    keys = {}
    for entry in filter(None, (entry.strip() for entry in given)):
        name, colon, key = entry.partition(":")
        if colon and name in tenants:
            keys[key.strip()] = name
        else:
            keys[entry] = DEFAULT_TENANT
    return keys


def _check_tenants(named: Iterable[str], known: set[str]) -> None:
    for name in named:
        if name not in known:
            raise UserError(
                f"security.tenants.{name}: no key is this tenant's; write one as {name}:KEY"
            )
