"""A gateway's metrics in one registry of its own."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from orchestrator.lifecycle.machine import Machine
from orchestrator.lifecycle.timeline import Timeline
from orchestrator.membership.members import Members
from orchestrator.metrics.core import CoreState
from orchestrator.metrics.links import KVSent, LinkGauges
from orchestrator.metrics.phases import PhaseMetrics
from orchestrator.metrics.requests import RequestMetrics
from orchestrator.metrics.stores import StoreMetrics
from orchestrator.metrics.vllm import VllmAliases
from orchestrator.metrics.workers import WorkerMetrics
from orchestrator.state.actions import Fail, Finish
from workers.api.messages import Load


class Metrics:
    """Made once per gateway: the HTTP surface sets `requests`, the driver tells the rest."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry = registry
        self._model = model
        self.requests = RequestMetrics(registry, model)
        self._phases = PhaseMetrics(registry, model)
        self._kv_sent = KVSent(registry)
        self._stores = StoreMetrics()
        registry.register(self._stores)

    def watch(self, machine: Machine, members: Members, *, vllm_aliases: bool = False) -> None:
        """Show the deployment's state from now on; with aliases under vLLM's names as well."""
        self._registry.register(CoreState(machine, members, self._model))
        self._registry.register(LinkGauges(machine.ctx.world))
        self._registry.register(WorkerMetrics(members))
        if vllm_aliases:
            self._registry.register(VllmAliases(self.requests, self._phases, machine, members))

    def load(self, site: str, load: Load) -> None:
        """A worker's account of itself."""
        self._kv_sent.load(site, load)

    def store(self, site: str, pool: str, account: Mapping[str, Any] | None) -> None:
        """A pool's store's account of itself; None: it is away."""
        self._stores.told(site, pool, account)

    def ended(self, told: Timeline | None, end: Finish | Fail | None, trace: str | None) -> None:
        """A request that has ended, however that was; None: it was refused when it came."""
        if told is not None:
            self._phases.ended(told)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)
