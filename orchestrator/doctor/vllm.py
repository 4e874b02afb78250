"""The vLLM of a topology's pools, as far as it can be seen from this machine."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx

from orchestrator.catalogue import ModelFacts
from orchestrator.doctor.finding import Finding, State, good_if, size
from orchestrator.topology.schema import Pool, Topology, Vllm
from workers.engines.models import ModelError
from workers.engines.vllm.inside.checks import TESTED
from workers.engines.vllm.load import own_pools
from workers.engines.vllm.server import NAME, read_kv_tokens

ASK_S = 60.0
_VERSION = "from importlib.metadata import packages_distributions as p, version as v; "
_VERSION += "print(v(p()['vllm'][0]))"

# What a command prints; raises OSError or SubprocessError.
Run = Callable[[list[str]], str]
# What a GET of a URL answers; raises httpx.HTTPError.
Get = Callable[[str], str]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_S)
    return done.stdout.strip()


def get(url: str) -> str:
    return httpx.get(url, timeout=ASK_S, trust_env=False).raise_for_status().text


def vllm_findings(
    topology: Topology, facts: ModelFacts | None, run: Run = run, get: Get = get
) -> list[Finding]:
    """Version, room for KV and layout of every pool's vLLM; those of other machines cannot be seen.

    `facts`: of the topology's model; None: the catalogue does not know it.
    """
    findings = []
    for site_name, site in topology.sites.items():
        for name, pool in site.pools.items():
            where = f"vllm of {site_name}.{name}"
            if pool.vllm is None or site.launch != "local":
                continue
            if pool.vllm.attach is not None:
                findings += _attached(where, pool, pool.vllm.attach, get)
            else:
                findings.append(_started(where, pool.vllm, run))
            if facts is not None:
                findings.append(_shared_memory(where, topology, pool, facts))
    return findings


def _started(where: str, vllm: Vllm, run: Run) -> Finding:
    python = vllm.python or ""
    try:
        version = run([python, "-c", _VERSION])
    except (OSError, subprocess.SubprocessError):
        return Finding(
            check=where,
            state=State.FAIL,
            value=f"{python} has no vLLM, or cannot be run",
            advice="name the python of an environment with vLLM; make test-vllm makes "
            "build/vllm/bin/python",
        )
    return _version(where, version, f"{python} has vLLM {version}")


def _version(where: str, version: str, value: str) -> Finding:
    return good_if(
        version.partition("+")[0] in TESTED,
        where,
        value,
        f"the connector was tested with {', '.join(TESTED)}: install that, or start vLLM with "
        '"allow_untested": true in kv_connector_extra_config',
        otherwise=State.FAIL,
    )


def _attached(where: str, pool: Pool, url: str, get: Get) -> list[Finding]:
    try:
        version = re.search(r'"version":\s*"([^"]+)"', get(f"{url}/version"))
        models, metrics = get(f"{url}/v1/models"), get(f"{url}/metrics")
        tokens = read_kv_tokens(metrics)
    except (httpx.HTTPError, ModelError) as error:
        return [
            Finding(
                check=where,
                state=State.FAIL,
                value=f"{url}: {error}",
                advice="start it as README says (How to add a vLLM cluster), on this machine",
            )
        ]
    told = version[1] if version else "of no version"
    block = re.search(r'[{,]block_size="(\d+)"', metrics)
    layout = f"blocks of {block[1]} tokens" if block else "blocks of no known size"
    served = f'"{NAME}"' in models
    return [
        _version(where, told, f"{url} runs vLLM {told}, {layout}"),
        good_if(
            served,
            f"{where}, its name",
            f"serves {NAME}" if served else f"does not serve {NAME}",
            f"start it with --served-model-name {NAME}",
            otherwise=State.FAIL,
        ),
        good_if(
            tokens >= pool.kv_tokens,
            f"{where}, its room",
            f"{tokens} tokens of KV; the pool wants {pool.kv_tokens}",
            f"only {tokens} are used: give vLLM more memory, or set kv_tokens to what it has",
        ),
    ]


def _shared_memory(where: str, topology: Topology, pool: Pool, facts: ModelFacts) -> Finding:
    wanted = pool.instances * pool.kv_tokens * facts.kv_bytes_in(topology.kv_dtype)
    vllm = pool.vllm
    folder = own_pools() if vllm is None or vllm.pools is None else Path(vllm.pools)
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    return good_if(
        free >= wanted,
        f"{where}, shared memory",
        f"{size(free)} free at {there}; {pool.kv_tokens} tokens of KV take {size(wanted)}",
        "lower kv_tokens, or give the container more (docker: --shm-size)",
        otherwise=State.FAIL,
    )
