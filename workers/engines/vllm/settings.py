"""How a worker comes by its vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field

GUARD_ENV = "PDD_GUARD"  # set for what ends and removes things when its worker has gone
START_S = 1200.0  # how long one may take to serve: it reads all weights, and compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Started with `python`, `args` and `env`; or one at the url `attach`, with its `pools`."""

    python: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    attach: str | None = None
    pools: str | None = None
