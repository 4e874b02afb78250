"""A running service whose sites keep what they computed: hits, and hits again after a restart.

Two sites with simulated engines, and memory for one prompt: what a worker still knows of an
earlier prompt it has from its site's store.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML

from benchmarks.service import Served, serving
from orchestrator.topology.packaged import packaged_topology
from tests.orchestrator.live.live_service import SECRET, prompts, until
from workers.service.config import SECRET_ENV

pytestmark = pytest.mark.timeout(400)

PROMPT, BLOCKS = 330, 20  # whole blocks before the last token
PREFILL, MAIN = "hami/compute", "shenzhen/memory"


def topology(folder: Path) -> Path:
    """The shipped one of simulated engines, with a store beside prefill and one beside main."""
    yaml = YAML()
    content = yaml.load(packaged_topology("laptop-simulated"))
    for number, where in enumerate((PREFILL, MAIN)):
        site, name = where.split("/")
        pool = content["sites"][site]["pools"][name]
        pool["kv_tokens"] = 512  # a prompt and its answer, and not two prompts
        pool["simulate"] = {"prefill_tokens_per_s": 500.0, "step": "20ms"}  # loading pays anywhere
        nvme = {"path": str(folder / f"blocks{number}"), "size": "256MiB"}
        pool["kv_store"] = {"dram": "64MiB", "nvme": nvme}
    content["policy"]["route"] = "direct"
    path = folder / "topology.yaml"
    yaml.dump(content, path)
    return path


@contextlib.contextmanager
def service(path: Path) -> Iterator[Served]:
    with serving(path, environment={SECRET_ENV: SECRET}) as served:
        yield served


def ask(served: Served, prompt: list[int]) -> tuple[str, int]:
    """What is answered, and how many tokens of the prompt were found."""
    body = {"model": served.model, "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
    answered = httpx.post(f"{served.url}/completions", json=body | {"temperature": 0}, timeout=90)
    answered.raise_for_status()
    told = answered.json()
    details = told["usage"].get("prompt_tokens_details") or {}
    return told["choices"][0]["text"], details.get("cached_tokens", 0)


def counted(served: Served, family: str, **labels: str) -> float:
    """A counter of the stores, as the gateway's metrics tell it; 0: there is none yet."""
    told = httpx.get(served.url.replace("/v1", "/metrics"), timeout=30).text
    total = 0.0
    for line in told.splitlines():
        if line.startswith(f"pdd_store_{family}{{"):
            there = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if labels.items() <= there.items():
                total += float(line.rsplit(" ", 1)[1])
    return total


def test_what_was_computed_once_is_found_after_a_restart(tmp_path: Path) -> None:
    path = topology(tmp_path)
    first, *others = prompts(4, PROMPT)
    with service(path) as served:
        text, found = ask(served, first)
        assert found == 0
        for other in others:
            ask(served, other)
        until(
            lambda: counted(served, "written_total", site="hami", tier="dram") >= 4 * BLOCKS,
            "saved",
        )
        assert counted(served, "up") == 2
        assert ask(served, first) == (text, 16 * BLOCKS)
        until(lambda: counted(served, "hits_total", site="hami") >= BLOCKS, "a hit is counted")
    # It ended in order: what waited for its file was written.
    files = [file for file in (tmp_path / "blocks0").rglob("*") if file.is_file()]
    assert len(files) >= 4 * BLOCKS
    assert not [file for file in files if file.name.endswith(".part")]
    with service(path) as served:
        until(lambda: counted(served, "held_bytes", site="hami", tier="nvme") > 0, "told")
        assert ask(served, first) == (text, 16 * BLOCKS)
        until(
            lambda: counted(served, "hits_total", site="hami", tier="nvme") >= BLOCKS, "from files"
        )
        assert counted(served, "defects_total") == 0
