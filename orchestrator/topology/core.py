"""The core's standing orders, as a topology gives them."""

from orchestrator.state.config import CoreConfig, Deadlines
from orchestrator.state.events import HandoffMode, Route
from orchestrator.topology.schema import Topology


def core_config(topology: Topology, gateway: str) -> CoreConfig:
    """Those of a gateway with that name."""
    policy, given = topology.policy, topology.policy.deadlines
    return CoreConfig(
        gateway=gateway,
        gateway_site=topology.gateway.site,
        route=None if policy.route == "auto" else Route(policy.route),
        handoff=HandoffMode(policy.handoff),
        codec=policy.codec,
        handoff_bound_s=policy.handoff_bound_s,
        queue_limit=policy.queue_limit,
        site_bytes_per_s={name: site.rate_bytes_per_s for name, site in topology.sites.items()},
        deadlines=Deadlines(
            queue=given.queue_s,
            prefill=given.prefill_s,
            kv=given.kv_s,
            first_token=given.first_token_s,
            silence=given.silence_s,
            resync=given.resync_s,
            cut=given.cut_s,
            request=given.request_s,
        ),
    )
