"""What the core and the deployment's members say of themselves, read when Prometheus asks."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from orchestrator.lifecycle.machine import Machine
from orchestrator.membership.members import Members, MemberState, SiteState

DEFECTS = "defects"  # what an alert waits for


class CoreState:
    """A collector: requests, legs and workers as they are now, and the core's own counts.

    The counts' names are those that the core's code writes, so there are only so many.
    """

    def __init__(self, machine: Machine, members: Members, model: str) -> None:
        self._machine, self._members, self._model = machine, members, model

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield self._events()
        yield from self._requests()
        yield from (self._legs(), self._workers(), self._sites())

    def _events(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "pdd_core_events", "Losses, late legs, cuts and repairs", labels=("event",)
        )
        # From the start, for a counter that begins at 1 has not increased to those who ask later.
        counts = {DEFECTS: 0} | self._machine.ctx.counts
        for event, count in sorted(counts.items()):
            family.add_metric((event,), count)
        return family

    def _requests(self) -> Iterator[GaugeMetricFamily]:
        for name, what, count in (
            ("open", "Requests that have not ended", len(self._machine.requests)),
            ("queued", "Of them, those that wait for a place", self._machine.queued),
        ):
            family = GaugeMetricFamily(f"pdd_requests_{name}", what, labels=("model",))
            family.add_metric((self._model,), count)
            yield family

    def _legs(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("pdd_legs", "Legs now, by role", labels=("site", "role"))
        workers = self._machine.ctx.world.workers.values()
        counted = dict.fromkeys(((w.site, role) for w in workers for role in w.roles), 0)
        for site, leg in ((w.site, leg) for w in workers for leg in w.bookings.values()):
            counted[site, leg.role] = counted.get((site, leg.role), 0) + 1
        for (site, role), count in sorted(counted.items()):
            family.add_metric((site, role), count)
        return family

    def _workers(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "pdd_workers", "Workers of the deployment, by state", labels=("site", "state")
        )
        counted = Counter((m.site, m.state) for m in self._members.by_name.values())
        # Those of sites that never came as well: an alert must see them.
        for site in sorted({*self._members.sites, *(site for site, _ in counted)}):
            for state in MemberState:
                family.add_metric((site, state), counted[site, state])
        return family

    def _sites(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "pdd_site_state", "1 for the state that a site is in", labels=("site", "state")
        )
        for site in sorted(self._members.sites):
            now = self._members.site_state(site)
            for state in SiteState:
                family.add_metric((site, state), float(state is now))
        return family
