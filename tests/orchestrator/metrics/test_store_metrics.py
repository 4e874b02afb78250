"""A store's account as samples: hits by tier, bytes moved, evictions by cause, defects by kind."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.metrics.exposition import Metrics
from tests.workers.tiers.blocks_rig import NBYTES, block, fill, key, served, store, written
from workers.tiers import files, ledger
from workers.tiers.blocks import Block, Tier
from workers.tiers.files import BlockFiles


class Scraped:
    """A gateway's metrics of one store."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, "smol")

    def value(self, name: str, **labels: str) -> float | None:
        labels = {"site": "hami", "pool": "p", **labels}
        return self.registry.get_sample_value(f"pdd_store_{name}", labels)


def test_what_a_store_counts_is_scraped(tmp_path: Path) -> None:
    tiers = store(tmp_path, quotas={"small": 2 * NBYTES})
    fill(tiers, range(15))
    fill(tiers, range(100, 103), "small")
    tiers.put("t", [(key(1000), Block(b"damaged", 1)), block(14)])
    written(tiers)
    BlockFiles(tmp_path).path(key(3), "t").write_bytes(b"torn")
    served(tiers, range(19, -1, -1))
    scraped = Scraped()
    value, account = scraped.value, tiers.account()
    scraped.metrics.store("hami", "p", account)

    counts = account["counts"]
    for tier in Tier:
        assert value("hits_total", tier=tier) == counts[f"hits_{tier}"] > 0
        for family in ("read_bytes", "written", "written_bytes"):
            assert value(f"{family}_total", tier=tier) == counts[f"{family}_{tier}"] > 0
        assert value("held_bytes", tier=tier) == account["tiers"][tier]["bytes"]
    assert value("misses_total") == counts["misses"] > 0
    assert value("capacity_bytes", tier="dram") == 10 * NBYTES
    assert value("unwritten_bytes") == account["unwritten_bytes"]
    for cause in ("room", "quota"):
        dram = value("evictions_total", tier="dram", cause=cause)
        assert dram == counts[f"evicted_dram_{cause}"] > 0
    assert value("defects_total", kind="put", cause="corrupt") == 1
    assert value("defects_total", kind="read", cause="corrupt") == 1
    assert value("events_total", event="known") == 1
    assert value("up") == 1


def test_a_store_that_is_away_is_down_and_says_nothing_else() -> None:
    scraped = Scraped()
    scraped.metrics.store("hami", "p", store().account())
    assert scraped.value("held_bytes", tier="dram") == 0
    scraped.metrics.store("hami", "p", None)
    assert scraped.value("up") == 0
    assert scraped.value("held_bytes", tier="dram") is None


@pytest.mark.parametrize("cause", ledger.Cause)
def test_every_cause_of_an_eviction_is_a_label(cause: ledger.Cause) -> None:
    scraped = Scraped()
    account = store().account()
    account["counts"][f"evicted_nvme_{cause}"] = 3
    scraped.metrics.store("hami", "p", account)
    assert scraped.value("evictions_total", tier="nvme", cause=cause) == 3


def test_every_error_of_the_system_is_a_cause() -> None:
    causes = [files.cause_of(OSError(number, "")) for number in (None, 2, 5, 24, 28)]
    assert causes == ["oserror", "enoent", "eio", "emfile", "enospc"]
    assert all(re.fullmatch("[a-z0-9_]+", cause) for cause in causes)
