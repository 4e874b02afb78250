"""What a deployment costs: its chips and its lines by the hour, and what goes over its lines."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.replay.scenario.schema import Compared, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Money of the user's currency. `chips_per_h` None: some pool has no price.

    `per_gb`: of 1e9 bytes over the line between two sites, by their names in order.
    """

    chips_per_h: float | None
    lines_per_h: float
    per_gb: dict[tuple[str, str], float]

    def cost(self, seconds: float, sent_bytes: Mapping[tuple[str, str], float]) -> float | None:
        """Of a run that long with so much over each line, each way; None: see `chips_per_h`."""
        if self.chips_per_h is None:
            return None
        rent = (self.chips_per_h + self.lines_per_h) * seconds / 3600
        return rent + sum(
            self.per_gb[_pair(ends)] * nbytes / 1e9 for ends, nbytes in sent_bytes.items()
        )


def bill(scenario: Scenario, policy: Compared) -> Bill:
    """All pools and links of the policy's topology are paid for, used or not."""
    prices, topology = scenario.file.prices, scenario.topology(policy)
    chips: float | None = 0.0
    for site, place in topology.sites.items():
        for name, pool in place.pools.items():
            each = prices.pools.get(f"{site}/{name}", prices.chips.get(pool.chip, pool.price_per_h))
            chips = None if each is None or chips is None else chips + each * pool.count
    rent_per_h, per_gb = 0.0, {}
    lines = {_pair(line.between): line for line in prices.lines}
    for link in topology.links:
        ends = _pair(link.between)
        line = lines.get(ends)
        traffic = None if line is None else line.per_gb
        per_gb[ends] = (link.price_per_gb or 0.0) if traffic is None else traffic
        rent_per_h += 0.0 if line is None else line.rent_per_h
    return Bill(chips_per_h=chips, lines_per_h=rent_per_h, per_gb=per_gb)


def _pair(ends: tuple[str, str]) -> tuple[str, str]:
    a, b = sorted(ends)
    return a, b
