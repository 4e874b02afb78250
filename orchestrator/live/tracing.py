"""Whether there are traces: their libraries are an extra, which nobody else loads."""

import importlib
from collections.abc import Callable
from typing import Protocol

from orchestrator.errors import UserError
from orchestrator.live.driver import Watcher
from orchestrator.topology.schema import Topology


class Traces(Watcher, Protocol):
    """A watcher that sends what it was told to a collector."""

    def close(self) -> None:
        """Send what is left; blocks."""


def open_traces(topology: Topology, model: str, clock: Callable[[], float]) -> Traces | None:
    """As the topology says; None: none are wanted. Raises UserError without the libraries."""
    if topology.telemetry is None:
        return None
    try:
        telemetry = importlib.import_module("orchestrator.live.telemetry")
    except ImportError as error:
        raise UserError(
            "telemetry.otlp: traces need OpenTelemetry's libraries; "
            "pip install 'pdd-orchestrator[telemetry]'"
        ) from error
    traces: Traces = telemetry.Traces(
        url=topology.telemetry.otlp,
        model=model,
        gateway_site=topology.gateway.site,
        clock=clock,
    )
    return traces
