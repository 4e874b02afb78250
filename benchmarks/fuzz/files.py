"""Files that people write: topologies, scenarios and recorded traces."""

import atexit
import functools
import gzip
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fuzz.campaign import Refusal
from benchmarks.fuzz.mutate import json_like, some_bytes, text_like
from orchestrator.errors import UserError
from orchestrator.replay.scenario.load import load_scenario
from orchestrator.replay.workload.request import WorkloadError
from orchestrator.replay.workload.traces import read_trace
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError

# Small ones, for most of the time goes by their length.
TOPOLOGIES = [
    """\
model: qwen3-8b
sites:
  a: {pools: {p: {chip: h100, count: 8, parallel: 8, roles: [prefill, relay], price: 2.0/h}}}
  b: {pools: {m: {chip: h200}}}
links: [{between: [a, b], distance_km: 4000, bandwidth: 20Gbps, jitter: 0.5ms, loss: 1e-6}]
gateway: {site: a}
""",
    """\
model: qwen3-8b
sites: {a: {launch: agent, host: 10.0.0.2, ports: 7000-7009, pools: {m: {chip: h200, count: 8}}}}
gateway: {site: a, host: 127.0.0.1, port: 8000, agents: {host: 10.0.0.1, port: 7100}}
slo: {ttft: 2s, tpot: 50ms}
""",
    """\
model: smollm2-135m
sites:
  a:
    pools:
      p: {chip: cpu, engine: simulated, kv_tokens: 4096, slots: 4}
gateway: {site: a, processes: 2, cors: ["*"]}
policy: {route: auto, handoff: auto, codec: lossless, deadlines: {prefill: 60s}}
security: {api_keys_env: KEYS, tenants: {acme: {requests_per_minute: 60}}}
""",
    """\
model: smollm2-135m
sites: {a: {pools: {p: {chip: cpu, evict: {policy: h2o, budget: 0.5, recent: 32}}}}}
gateway: {site: a}
replan: {every: 30s, margin: 0.2, dwell: 60s, gain: 0.05}
plan: {prompt: 1200, output: 250, hits: 0.5}
""",
    """\
model: smollm2-135m
sites: {a: {pools: {p: {chip: cpu, kv_store: {dram: 8GiB, nvme: {path: ./kv, size: 64GiB}}}}}}
gateway: &g {site: a}
""",
]
SITES = "topology: {model: qwen3-8b, sites: {a: {pools: {p: {chip: h100}}}}, gateway: {site: a}}\n"
SCENARIOS = [
    SITES
    + """\
workload: {generated: {rate: 0.2/s, prompt: {mean: 1200, cv: 0.8}, output: {mean: 250}, count: 9}}
policies: [{name: x, route: local}, {name: y, codec: int4}]
""",
    SITES
    + """\
title: t
workload: {trace: nothing.jsonl}
policies: [{name: x}]
prices: {chips: {h100: 2.0/h}}
faults: [{kind: site, site: a, from: 600s, until: 630s}]
""",
    SITES
    + """\
workload: {generated: {rate: 2/s, prompt: {mean: 9}, output: {mean: 9}, turns: 3, count: 15}}
policies: [{name: x}]
catalogue: {chips: {l40s: {memory_gb: {value: 48, grade: S, source: s}}}}
seed: 7
""",
]
OURS = [
    {"at": 0.5, "prompt": 48, "output": 10, "blocks": [1, 2, 3], "session": "s"},
    {"at": 1, "prompt": 16, "output": 1},
]
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]},
    {"timestamp": 27, "input_length": 12, "output_length": 3, "hash_ids": [9]},
]
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690Z,396,109
2024-05-12T00:00:00+02:00,1,1
"""
MOST_LINE = 2000


@functools.cache
def _scratch() -> Path:
    """A folder for the input of the moment, in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="pdd-fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class Yaml:
    """Topologies and scenarios, as `pdd validate` and `pdd replay` read them."""

    def __init__(self) -> None:
        self._file = _scratch() / "input.yaml"
        self._scenario = False

    def input(self, rng: random.Random) -> bytes:
        self._scenario = rng.random() < 0.5
        return text_like(rng, SCENARIOS if self._scenario else TOPOLOGIES)

    def feed(self, data: bytes) -> None:
        self._file.write_bytes(data)
        load: Any = load_scenario if self._scenario else load_topology
        try:
            load(self._file)
        except TopologyError as error:
            for mistake in error.mistakes:
                _one_line(str(mistake))
            raise Refusal("TopologyError", str(error.mistakes[0])) from error
        except UserError as error:
            raise Refusal(type(error).__name__, str(error)) from error


def _one_line(text: str) -> None:
    assert "\n" not in text, text[:200]
    assert len(text) < MOST_LINE, f"{len(text)} characters: {text[:200]}"


class Traces:
    """Traces in all three formats, gzipped or not."""

    def __init__(self) -> None:
        self._file = _scratch() / "input.trace"

    def input(self, rng: random.Random) -> bytes:
        rows: list[Any] = rng.choice((OURS, MOONCAKE))
        if rng.random() < 0.7:
            data = b"\n".join(json_like(rng, rows) for _ in range(rng.randrange(1, 6)))
        else:
            data = text_like(rng, [AZURE, "\n".join(map(json.dumps, rows))])
        if rng.random() < 0.1:
            data = gzip.compress(data, 1)
            if rng.random() < 0.5:
                data = some_bytes(rng, data, [data])
        return data

    def feed(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            trace = read_trace(self._file)
        except WorkloadError as error:
            raise Refusal("WorkloadError", str(error)) from error
        for bad in trace.bad:
            _one_line(str(bad))
        assert all(row.prompt > 0 and row.output > 0 and row.at >= 0 for row in trace.requests())
