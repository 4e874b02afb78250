"""`ray start` for nodes on the loopback: `python -m orchestrator.live.ray_node start ...`.

Ray turns 127.0.0.1 into an address that others can reach and then listens on all of the machine's,
unless it is told that a cluster has one node only; and then it refuses to start a second. Here a
second may start, and stays on the loopback as the first does.
"""

from ray._private import ray_constants, services
from ray.scripts import scripts


def main() -> None:
    """As Ray's own command."""
    services.resolve_ip_for_localhost = lambda host: host
    ray_constants.ENABLE_RAY_CLUSTER = True
    scripts.main()


if __name__ == "__main__":
    main()
