"""The short-lived helper that creates a deployment's agents.

    python -m orchestrator.live.create_agents ORDER RESULT

It is a process of its own so that the gateway's never loads Ray. Reads the order from one file
and writes the result to the other: `{"agents": {site: "host:port"}}` or `{"error": why}`.
"""

import json
import logging
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from pydantic import TypeAdapter
from ray.exceptions import RayError

from orchestrator.live.agent import SiteSpec
from orchestrator.live.ray_site import LABEL, NAMESPACE, AgentActor, refusal
from workers.service.config import StartFailed

JOIN_S = 30.0
AGENT_S = 60.0


def create_agents(specs: Sequence[SiteSpec], log_dir: str | None) -> dict[str, str]:
    """Create the agents on the connected cluster; their addresses by site.

    What no node can hold is refused at once. Raises StartFailed.
    """
    for spec in specs:
        refused = refusal(ray.nodes(), spec.site, len(spec.workers) + len(spec.stores))
        if refused is not None:
            raise StartFailed(refused)
    for spec in specs:
        _end(_name(spec))
    agents = {
        spec.site: AgentActor.options(
            name=_name(spec),
            namespace=NAMESPACE,
            lifetime="detached",
            label_selector={LABEL: spec.site},
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
        ).remote(spec, log_dir)
        for spec in specs
    }
    return {
        site: ray.get(agent.wait_ready.remote(), timeout=AGENT_S) for site, agent in agents.items()
    }


def _name(spec: SiteSpec) -> str:
    return f"agent {spec.site}"


def _end(name: str) -> None:
    """End an agent that somebody left behind in this cluster; the next one adopts its workers."""
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return
    ray.kill(agent, no_restart=True)


def main() -> int:
    """Create the agents that the order describes, once as many nodes as it says have joined."""
    order = json.loads(Path(sys.argv[1]).read_bytes())
    specs = TypeAdapter(list[SiteSpec]).validate_python(order["sites"])
    try:
        _wait_for_port(order["address"])
        ray.init(
            address=order["address"],
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        _wait_for_nodes(order["nodes"])
        result: dict[str, Any] = {"agents": create_agents(specs, order["log_dir"])}
    except (StartFailed, RayError, ConnectionError, TimeoutError) as error:
        result = {"error": (str(error).strip() or repr(error)).splitlines()[0]}
    Path(sys.argv[2]).write_text(json.dumps(result))
    return 0


def _wait_for_port(address: str) -> None:
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise StartFailed(f"Ray did not start: {error}") from error
            time.sleep(0.1)
        else:
            return


def _wait_for_nodes(count: int) -> None:
    deadline = time.monotonic() + JOIN_S
    while (alive := sum(node["Alive"] for node in ray.nodes())) < count:
        if time.monotonic() > deadline:
            raise StartFailed(f"{alive} of {count} Ray nodes have started within {JOIN_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
