"""Links as the core sees them, and the KV that workers have sent over them."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from orchestrator.state.views import World
from workers.api.messages import LinkLoad, Load

LABELS = ("from", "to")


class LinkGauges:
    """A collector over the core's links, one direction each. What was never measured is left out.

    Goodput and round trip are those that were measured last; `state.links` says how far the router
    believes them.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def collect(self) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"pdd_link_{name}", what, labels=LABELS)

        told = gauge("bandwidth_bytes_per_second", "What the topology says the line carries")
        goodput = gauge("goodput_bytes_per_second", "Coded KV that the line gave when it was full")
        rtt = gauge("rtt_seconds", "Round trip between KV ports")
        loss = gauge("loss_ratio", "Share of the KV connections' bytes that TCP sent again")
        queue = gauge("queue_bytes", "Coded KV that is still to be sent, promised KV included")
        for ends, link in sorted(self._world.links.items()):
            told.add_metric(ends, link.told_bytes_per_s)
            if link.seen_goodput is not None:
                goodput.add_metric(ends, link.seen_goodput.value)
            if link.reported_rtt_s is not None:
                rtt.add_metric(ends, link.reported_rtt_s)
            if link.loss is not None:
                loss.add_metric(ends, link.loss)
            queue.add_metric(ends, link.waiting_bytes(self._world.now))
        yield from (told, goodput, rtt, loss, queue)


class KVSent:
    """Adds up what workers say they have sent since they began.

    What a worker sent before it was first heard of is not counted here.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str) -> Counter:
            return Counter(f"pdd_kv_{name}_total", what, LABELS, registry=registry)

        self._sent = counter("sent_bytes", "Coded KV written to connections, repeats included")
        self._resent = counter("resent_bytes", "Of it, what had been written before")
        self._told: dict[str, dict[str, LinkLoad]] = {}

    def load(self, site: str, load: Load) -> None:
        """Take over one worker's account of itself."""
        links = {link.site: link for link in load.links}
        before = self._told.get(load.worker, links)
        self._told[load.worker] = links
        for link in load.links:
            old = before.get(link.site)
            sent, resent = (0, 0) if old is None else (old.sent_bytes, old.resent_bytes)
            if link.sent_bytes < sent:
                sent = resent = 0  # another process of the worker
            self._sent.labels(site, link.site).inc(link.sent_bytes - sent)
            self._resent.labels(site, link.site).inc(max(0, link.resent_bytes - resent))
