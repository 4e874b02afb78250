"""What sites' stores of KV blocks tell gateways, by their agents: differences between versions."""

from orchestrator.membership.reports import Report, StoreReport
from orchestrator.state.events import StoreHolds


class StoreVersions:
    """The versions that a gateway has of each site's stores."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}  # by site, by pool

    def hear(self, report: Report) -> list[tuple[StoreReport, StoreHolds | None]]:
        """What an agent reports of its stores, and what is new to the core of each.

        Left out are differences that nobody here can take in: another gateway's, or of before this
        one began. The agent hears what is known, and tells everything next time.
        """
        known = self._known.setdefault(report.site, {})
        heard: list[tuple[StoreReport, StoreHolds | None]] = []
        for store in report.stores:
            if not store.whole and store.since != known.get(store.pool):
                continue
            news = store.version != known.get(store.pool)
            known[store.pool] = store.version
            heard.append((store, _holds(report.site, store) if news else None))
        return heard

    def of(self, site: str) -> dict[str, str]:
        """What is known of a site's stores, by pool."""
        return self._known.get(site, {})


def _holds(site: str, store: StoreReport) -> StoreHolds:
    return StoreHolds(
        site=site,
        pool=store.pool,
        whole=store.whole,
        added=store.added,
        removed=store.removed,
    )
