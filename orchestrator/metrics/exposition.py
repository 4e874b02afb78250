"""A gateway's metrics in one registry of its own."""

from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from orchestrator.metrics.core import CoreEvents
from orchestrator.metrics.requests import RequestMetrics
from orchestrator.metrics.workers import WorkerMetrics


class Metrics:
    """Made once per gateway: the HTTP surface sets `requests`, the driver `workers`."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = RequestMetrics(registry)
        self.workers = WorkerMetrics(registry)

    def watch_core(self, counts: Mapping[str, int]) -> None:
        """Show the core's counts from now on."""
        self._registry.register(CoreEvents(counts))

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)
