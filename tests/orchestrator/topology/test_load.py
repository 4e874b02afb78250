"""Good files: what they become."""

import pickle
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from orchestrator.catalogue import Grade, load_catalogue
from orchestrator.state.config import Deadlines as CoreDeadlines
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from orchestrator.topology.schema import (
    Deadlines,
    Link,
    PlanSection,
    Policy,
    Pool,
    Simulate,
    Topology,
)
from transport.codecs.choose import POLICIES
from workers.api.messages import Role

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "configs" / "topologies").glob("*.yaml"))

SMALL = """\
model: smollm2-135m
sites: {here: {pools: {all: {chip: cpu, roles: [prefill, main]}}}}
gateway: {site: here}
"""


def load(folder: Path, text: str) -> Topology:
    file = folder / "topology.yaml"
    file.write_text(text, encoding="utf-8")
    return load_topology(file)


def test_files_are_shipped() -> None:
    names = {file.name for file in SHIPPED}
    assert {"laptop-4000km.yaml", "laptop-simulated.yaml", "hami-shenzhen.yaml"} <= names


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_files_load(file: Path) -> None:
    topology = load_topology(file)
    if topology.links:
        assert topology.link("hami", "shenzhen") is topology.links[0]
    assert pickle.loads(pickle.dumps(topology)) == topology  # noqa: S301 - our own bytes


def test_roles_that_are_left_out_are_open(tmp_path: Path) -> None:
    text = SMALL.replace(", roles: [prefill, main]", "").replace("all:", "one: {chip: cpu}, all:")
    text = text.replace("all: {chip: cpu}", "all: {chip: cpu, roles: [prefill, main]}")
    topology = load(tmp_path, text + "plan: {prompt: 600, output: 128}\nreplan: {dwell: 20s}\n")
    one, both = topology.sites["here"].pools.values()
    assert (one.open, one.roles) == (True, set(Role))
    assert (both.open, both.roles) == (False, {Role.PREFILL, Role.MAIN})
    assert topology.plan == PlanSection(prompt=600, output=128)
    assert topology.replan is not None
    assert (topology.replan.dwell_s, topology.replan.gain) == (20.0, 0.15)


def test_the_laptop() -> None:
    topology = load_topology(ROOT / "configs" / "topologies" / "laptop-4000km.yaml")
    compute, relay = topology.sites["hami"].pools.values()
    memory = topology.sites["shenzhen"].pools["memory"]
    assert (compute.roles, relay.roles, memory.roles) == (
        {Role.PREFILL, Role.MAIN},
        {Role.RELAY},
        {Role.MAIN},
    )
    assert {pool.engine for pool in (compute, relay, memory)} == {"torch"}
    link = topology.link("shenzhen", "hami")
    assert link is not None
    assert (link.delay_s, link.rate_bytes_per_s, link.jitter_s) == (0.025, 1.25e6, 0.0002)
    assert link.emulate
    assert (topology.policy.route, topology.policy.handoff) == ("relay", "auto")
    assert (topology.gateway.site, topology.gateway.host) == ("shenzhen", "127.0.0.1")


def test_delay_from_the_distance() -> None:
    topology = load_topology(ROOT / "configs" / "topologies" / "hami-shenzhen.yaml")
    assert topology.links[0].delay_s == pytest.approx(4000 * 1.25 * 4.9e-6)
    assert topology.links[0].loss == 1e-6
    assert topology.sites["hami"].pools["compute"].price_per_h == 2.0
    assert topology.security.api_keys_env == "PDD_API_KEYS"


def test_defaults(tmp_path: Path) -> None:
    topology = load(tmp_path, SMALL)
    pool = topology.sites["here"].pools["all"]
    assert (pool.count, pool.instances, pool.parallel, pool.slots) == (1, 1, 1, 8)
    assert (pool.kv_tokens, pool.block_size, pool.chunk_tokens) == (16384, 16, 128)
    assert (pool.engine, pool.simulate, pool.price_per_h) == ("torch", None, None)
    assert topology.sites["here"].launch == "local"
    assert topology.links == ()
    assert topology.link("here", "there") is None
    assert (topology.policy.route, topology.policy.codec) == ("auto", "lossless")
    assert topology.policy.queue_limit == 256
    assert topology.security.api_keys_env is None


@pytest.mark.parametrize("codec", POLICIES)
def test_every_codec_may_be_asked_for(tmp_path: Path, codec: str) -> None:
    topology = load(tmp_path, SMALL + f"policy: {{codec: {codec}}}\n")
    assert topology.policy.codec == codec
    assert set(get_args(Policy.model_fields["codec"].annotation)) == set(POLICIES)


def test_the_core_has_the_only_table_of_deadlines() -> None:
    mine, core = Deadlines(), CoreDeadlines()
    names = list(CoreDeadlines.__dataclass_fields__)
    assert {name: getattr(mine, f"{name}_s") for name in names} == {
        name: getattr(core, name) for name in names
    }


def test_every_key(tmp_path: Path) -> None:
    text = """\
model: smollm2-135m
sites:
  a:
    launch: agent
    pools:
      p:
        chip: m890
        count: 128
        instances: 2
        parallel: 64
        scale_up: 128
        roles: [relay, prefill, relay]
        engine: simulated
        simulate: {prefill_tokens_per_s: 200, step: 60ms}
        price: 3/h
        kv_tokens: 32768
        block_size: 32
        chunk_tokens: 64
        slots: 4
  b: {pools: {m: {chip: cpu, roles: [main]}}}
links:
  - {between: [a, b], distance_km: 100 km, bandwidth: 1 GB/s, jitter: 1us, loss: 0.01,
     emulate: true, price: 0.02/GB}
gateway: {site: a, host: "::1", port: 9000}
slo: {ttft: 1s, tpot: 30ms}
policy:
  route: direct
  handoff: one-shot
  codec: raw
  handoff_bound: 500ms
  queue_limit: 0
  deadlines: {queue: 1s, prefill: 2s, first_token: 3s, silence: 4s, kv: 5s, cut: 6s, request: 7s,
              hold: 8s, lease: 9s, resync: 500ms}
security: {api_keys_env: KEYS}
"""
    topology = load(tmp_path, text)
    pool = topology.sites["a"].pools["p"]
    assert pool.roles == {Role.RELAY, Role.PREFILL}
    assert pool.simulate == Simulate(prefill_tokens_per_s=200.0, step_s=0.06)
    assert (pool.scale_up, pool.price_per_h, pool.slots) == (128, 3.0, 4)
    link = topology.links[0]
    assert (link.distance_km, link.rate_bytes_per_s, link.price_per_gb) == (100, 1e9, 0.02)
    assert link.delay_s == pytest.approx(100 * 1.25 * 4.9e-6)
    deadlines = topology.policy.deadlines
    assert (deadlines.queue_s, deadlines.cut_s, deadlines.lease_s) == (1, 6, 9)
    assert (topology.policy.handoff_bound_s, topology.policy.queue_limit) == (0.5, 0)


def test_a_model_directory_is_found_beside_the_file(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    assert load(tmp_path, SMALL.replace("smollm2-135m", "./weights")).model == str(weights)
    assert load(tmp_path, SMALL.replace("smollm2-135m", str(weights))).model == str(weights)


def test_in_code_numbers_are_si_and_names_say_so() -> None:
    link = Link(between=("a", "b"), delay_s=0.025, rate_bytes_per_s=1.25e6)
    assert (link.delay_s, link.rate_bytes_per_s) == (0.025, 1.25e6)
    with pytest.raises(ValidationError, match="exactly one"):
        Link(between=("a", "b"), rate_bytes_per_s=1.25e6)
    pool = Pool(chip="cpu", roles=frozenset({Role.MAIN}))
    with pytest.raises(ValidationError, match="frozen"):
        pool.count = 2


def test_a_file_may_not_use_the_names_in_code(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="unknown key 'ttft_s'; did you mean 'ttft'"):
        load(tmp_path, SMALL + "slo: {ttft_s: 2s}\n")


def test_the_catalogue() -> None:
    catalogue = load_catalogue()
    h200, cpu = catalogue.chips["h200"], catalogue.chips["cpu"]
    assert h200.memory_tb_s is not None
    assert (h200.memory_tb_s.value, h200.memory_tb_s.grade) == (4.8, Grade.SECONDARY)
    assert cpu.bf16_tflops is not None
    assert cpu.bf16_tflops.grade is Grade.MEASURED
    disputed = catalogue.chips["p800"].bf16_tflops
    assert disputed is not None
    assert disputed.grade is Grade.DISPUTED
    assert catalogue.models["smollm2-135m"].kv_bytes_per_token.value == 23040
    assert catalogue.models["deepseek-v3"].active_params.value == 37e9
    assert (len(catalogue.chips), len(catalogue.models)) == (22, 18)
