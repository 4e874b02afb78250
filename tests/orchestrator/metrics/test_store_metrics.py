"""A store's account as samples: hits by tier, bytes, evictions by cause, and what else happened."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from orchestrator.metrics.exposition import Metrics
from tests.workers.tiers.blocks_rig import NBYTES, fill, served, store, written


def test_what_a_store_counts_is_scraped(tmp_path: Path) -> None:
    tiers = store(tmp_path, quotas={"small": 2 * NBYTES})
    fill(tiers, range(15))
    fill(tiers, range(100, 103), "small")
    written(tiers)
    served(tiers, range(19, -1, -1))
    registry = CollectorRegistry()
    metrics = Metrics(registry, "smol")
    account = tiers.account()
    metrics.store("hami", "p", account)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"site": "hami", "pool": "p", **labels})

    counts = account["counts"]
    for tier in ("dram", "nvme"):
        assert value("pdd_store_hits_total", tier=tier) == counts[f"hits_{tier}"] > 0
        assert value("pdd_store_read_bytes_total", tier=tier) == counts[f"read_bytes_{tier}"]
        assert value("pdd_store_held_bytes", tier=tier) == account["tiers"][tier]["bytes"]
    assert value("pdd_store_capacity_bytes", tier="dram") == 10 * NBYTES
    evictions = "pdd_store_evictions_total"
    assert value(evictions, tier="dram", cause="room") == counts["evicted_dram_room"] > 0
    assert value(evictions, tier="dram", cause="quota") == counts["evicted_dram_quota"] > 0
    for event in ("misses", "stored", "written", "written_bytes"):
        assert value("pdd_store_events_total", event=event) == counts[event]

    metrics.store("hami", "p", None)  # it is away
    assert value("pdd_store_hits_total", tier="dram") is None
