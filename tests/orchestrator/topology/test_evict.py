"""`evict` in a topology: what it says, what is refused, what workers are told of it."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orchestrator.live.site_workers import worker_configs
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from workers.kv.evict.config import Eviction, Heads
from workers.kv.evict.policies import POLICIES


def written(folder: Path, evict: Any, **beside: Any) -> Path:
    path = folder / "site.yaml"
    pools = {"a": {"chip": "h100", "evict": evict}, "b": {"chip": "h100"} | beside}
    content = {
        "model": "smollm2-135m",
        "sites": {"hami": {"pools": pools}},
        "gateway": {"site": "hami"},
    }
    with path.open("w") as file:
        YAML().dump(content, file)
    return path


def test_workers_are_told_what_the_file_says(tmp_path: Path) -> None:
    said = {"policy": "triattention", "budget": 0.1, "recent": 64, "calibration": "c.npz"}
    said["heads"] = "shares"
    topology = load_topology(written(tmp_path, said))
    pruning, keeping = worker_configs(topology, "hami", "a model")
    assert pruning.eviction == Eviction(
        policy="triattention",
        budget=0.1,
        recent=64,
        heads=Heads.SHARES,
        calibration=str(tmp_path / "c.npz"),
    )
    assert keeping.eviction is None


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_its_name_in_the_file(tmp_path: Path, policy: str) -> None:
    topology = load_topology(written(tmp_path, {"policy": policy, "budget": 512}))
    evict = topology.sites["hami"].pools["a"].evict
    assert evict is not None
    assert evict.orders().policy == policy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 1.5}, "evict.budget: expected a share of the tokens below 1"),
        ({"budget": 0}, "evict.budget"),
        ({"policy": "h3o"}, "evict.policy"),
        ({"waste": 2}, "evict.waste"),
        ({"policy": "triattention", "heads": "per-head"}, "would give hardly any block back"),
        ({"policy": "triattention", "heads": "per-layer-head"}, "heads: expected union or shares"),
        ({"heads": "all"}, "evict.heads"),
        ({"heads": "shares"}, "heads is for the policy triattention"),
        ({"recnt": 3}, "recent"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(written(tmp_path, {"policy": "h2o", "budget": 0.5} | change))
    assert any(said in str(mistake) for mistake in caught.value.mistakes)


def test_a_pool_whose_engine_takes_whole_requests_only_stands_beside_none_that_prunes(
    tmp_path: Path,
) -> None:
    vllm = {"engine": "vllm", "vllm": {"python": "/opt/vllm/bin/python"}}
    path = written(tmp_path, {"policy": "h2o", "budget": 0.5}, **vllm)
    with pytest.raises(TopologyError, match=r"pools\.a\.evict: hami\.b could be sent"):
        load_topology(path)
