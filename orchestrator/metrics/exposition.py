"""A gateway's metrics in one registry of its own."""

from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from orchestrator.metrics.core import CoreEvents
from orchestrator.metrics.links import LinkGauges
from orchestrator.metrics.requests import RequestMetrics
from orchestrator.metrics.workers import WorkerMetrics
from orchestrator.state.views import World


class Metrics:
    """Made once per gateway: the HTTP surface sets `requests`, the driver `workers`."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = RequestMetrics(registry)
        self.workers = WorkerMetrics(registry)

    def watch_core(self, counts: Mapping[str, int], world: World) -> None:
        """Show the core's counts and links from now on."""
        self._registry.register(CoreEvents(counts))
        self._registry.register(LinkGauges(world))

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)
