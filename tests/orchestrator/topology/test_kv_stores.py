"""`kv_store` in a topology: what it says, what is refused, what processes are told of it."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.live.site_workers import store_configs, worker_configs
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from workers.tiers.store import StoreConfig


def written(folder: Path, **kv_stores: Any) -> Path:
    """A site of three pools, those named with a store of KV blocks."""
    pools: dict[str, Any] = {name: {"chip": "h100"} for name in ("a", "b", "c")}
    for name, kept in kv_stores.items():
        pools[name]["kv_store"] = kept
    path = folder / "site.yaml"
    content = {
        "model": "smollm2-135m",
        "sites": {"hami": {"pools": pools}},
        "gateway": {"site": "hami"},
    }
    with path.open("w") as file:
        YAML().dump(content, file)
    return path


def mistakes(folder: Path, **kv_stores: Any) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load_topology(written(folder, **kv_stores))
    return [str(mistake) for mistake in caught.value.mistakes]


def test_processes_are_told_what_the_file_says(tmp_path: Path) -> None:
    kept = {
        "dram": "2GiB",
        "nvme": {"path": "blocks", "size": "200 GB"},
        "policy": "s3-fifo",
        "quotas": {"acme": "1GiB"},
    }
    topology = load_topology(written(tmp_path, b=kept, c={"dram": "64MiB"}))
    ports = count(7001)
    stores = store_configs(topology, "hami", lambda: next(ports))
    assert [store.name for store in stores] == ["hami/b/store", "hami/c/store"]
    assert stores[0].tiers == StoreConfig(
        memory_bytes=2 << 30,
        files=tmp_path / "blocks",
        files_bytes=200_000_000_000,
        policy="s3-fifo",
        quotas={"acme": 1 << 30},
    )
    assert stores[1].tiers == StoreConfig(memory_bytes=64 << 20, unwritten_bytes=16 << 20)
    workers = worker_configs(topology, "hami", "a model", stores=stores)
    near, far = "127.0.0.1:7001", "127.0.0.1:7002"
    assert [worker.stores for worker in workers] == [(), (near, far), (far, near)]


def test_without_a_kv_store_there_is_none(tmp_path: Path) -> None:
    topology = load_topology(written(tmp_path))
    assert store_configs(topology, "hami", lambda: 1) == ()
    assert {worker.stores for worker in worker_configs(topology, "hami", "a model")} == {()}


@pytest.mark.parametrize(
    ("kept", "place", "message"),
    [
        ({}, "kv_store", "dram"),
        ({"dram": 8}, "kv_store.dram", "no unit; write it such as 8GiB"),
        ({"dram": "8"}, "kv_store.dram", "no unit"),
        ({"dram": "8Gb"}, "kv_store.dram", "did you mean 8GB?"),
        ({"dram": "0B"}, "kv_store.dram", "must be above 0"),
        ({"dram": "1GiB", "policy": "clock"}, "kv_store.policy", "s3-fifo"),
        ({"dram": "1GiB", "nvme": {"path": "x"}}, "kv_store.nvme", "size"),
        ({"dram": "1GiB", "quota": {}}, "kv_store.quota", "quotas"),
        ({"dram": "1GiB", "quotas": {"../x": "1GiB"}}, "kv_store.quotas", "../x"),
    ],
)
def test_mistakes_are_named_with_their_place(
    tmp_path: Path, kept: dict[str, Any], place: str, message: str
) -> None:
    (said,) = mistakes(tmp_path, a=kept)
    assert f"sites.hami.pools.a.{place}" in said
    assert message in said


def test_sites_on_machines_of_their_own_have_folders_of_their_own(tmp_path: Path) -> None:
    kept = {"dram": "1GiB", "nvme": {"path": "/blocks", "size": "1GB"}}
    path = written(tmp_path, a=kept)
    yaml = YAML()
    content = yaml.load(path)
    content["sites"]["far"] = content["sites"]["hami"]
    content["links"] = [{"between": ["hami", "far"], "delay": "1ms", "bandwidth": "1Gbps"}]
    yaml.dump(content, path)
    with pytest.raises(TopologyError, match=r"hami\.a keeps its blocks there already"):
        load_topology(path)
    content["sites"]["far"] = content["sites"]["hami"] | {"launch": "agent"}
    yaml.dump(content, path)
    assert load_topology(path).sites["far"].pools["a"].kv_store is not None


def test_two_pools_cannot_keep_their_blocks_in_one_folder(tmp_path: Path) -> None:
    kept = {"dram": "1GiB", "nvme": {"path": "blocks", "size": "1GB"}}
    (said,) = mistakes(tmp_path, a=kept, b=kept)
    assert "sites.hami.pools.b.kv_store.nvme.path: hami.a keeps its blocks there already" in said
