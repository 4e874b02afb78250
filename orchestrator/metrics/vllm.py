"""The same figures under the names that vLLM gives them, for dashboards that were made for it.

Names and labels as vLLM's engine (V1) has them; what it calls an engine is a worker here, and 0
for what only the gateway sees. vLLM's own names have colons, which Prometheus keeps for rules.
"""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from orchestrator.lifecycle.machine import Machine
from orchestrator.membership.members import Members
from orchestrator.metrics.phases import PhaseMetrics
from orchestrator.metrics.requests import RequestMetrics

LABELS = ("model_name", "engine")
GATEWAY = "0"


class VllmAliases:
    """A collector over what the others count."""

    def __init__(
        self,
        requests: RequestMetrics,
        phases: PhaseMetrics,
        machine: Machine,
        members: Members,
    ) -> None:
        self._requests, self._phases = requests, phases
        self._machine, self._members = machine, members
        self._gateway = (requests.model, GATEWAY)

    def collect(self) -> Iterator[Metric]:
        yield from self._histograms()
        yield from self._counters()
        yield from self._gauges()

    def _histograms(self) -> Iterator[HistogramMetricFamily]:
        r, p = self._requests, self._phases
        for name, what, tallies in (
            ("time_to_first_token_seconds", "pdd_ttft_seconds", r.ttft),
            ("inter_token_latency_seconds", "pdd_itl_seconds", r.itl),
            ("time_per_output_token_seconds", "pdd_itl_seconds, by its older name", r.itl),
            ("request_time_per_output_token_seconds", "pdd_tpot_seconds", r.tpot),
            ("e2e_request_latency_seconds", "pdd_e2e_seconds", r.e2e),
            ("request_queue_time_seconds", "pdd_queue_seconds", p.queue),
            ("request_prefill_time_seconds", "pdd_prefill_seconds", p.prefill),
            ("request_decode_time_seconds", "pdd_decode_seconds", r.decode),
            ("request_prompt_tokens", "pdd_prompt_tokens", r.prompt_size),
            ("request_generation_tokens", "pdd_output_tokens", r.output_size),
        ):
            yield tallies.alias(f"vllm:{name}", what, LABELS, self._gateway)

    def _counters(self) -> Iterator[CounterMetricFamily]:
        asked, found = self._phases.prefix_cache
        for name, what, value in (
            ("prompt_tokens", "pdd_tokens_total of prompts", self._requests.tokens.prompt),
            ("generation_tokens", "pdd_tokens_total of answers", self._requests.tokens.told),
            ("prefix_cache_queries", "pdd_prefix_cache_query_tokens_total", asked),
            ("prefix_cache_hits", "pdd_prefix_cache_hit_tokens_total", found),
        ):
            family = CounterMetricFamily(f"vllm:{name}", what, labels=LABELS)
            family.add_metric(self._gateway, value)
            yield family
        family = CounterMetricFamily(
            "vllm:request_success", "pdd_requests_total", labels=(*LABELS, "finished_reason")
        )
        for reason, count in sorted(self._requests.finished.items()):
            family.add_metric((*self._gateway, reason), count)
        yield family

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        waiting = self._machine.queued
        running = len(self._machine.requests) - waiting
        for name, what, value in (
            ("running", "pdd_requests_open, but for those queued", running),
            ("waiting", "pdd_requests_queued", waiting),
        ):
            family = GaugeMetricFamily(f"vllm:num_requests_{name}", what, labels=LABELS)
            family.add_metric(self._gateway, value)
            yield family
        family = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "pdd_kv_blocks_used of pdd_kv_blocks", labels=LABELS
        )
        for worker, member in sorted(self._members.by_name.items()):
            if (load := member.load) is not None:
                used = load.kv_held_tokens / load.kv_total_tokens
                family.add_metric((self._requests.model, worker), used)
        yield family
