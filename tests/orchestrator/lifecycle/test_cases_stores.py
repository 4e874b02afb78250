"""What a site's store holds is as good as what a worker has: it need not be computed or sent."""

from collections.abc import Callable

from orchestrator.policy.prefixes import block_hashes
from orchestrator.state.events import Route, StoreHolds
from tests.orchestrator.lifecycle.machine_rig import PROMPT, MachineRig
from workers.api.messages import Role, Start

MakeRig = Callable[..., MachineRig]


def holds(rig: MachineRig, site: str, prompt: tuple[int, ...]) -> None:
    """Every pool of a site has a store, and they hold the blocks of a prompt."""
    pools = {w.up.pool for w in rig.machine.ctx.world.workers.values() if w.site == site}
    added = "".join(name[:8].hex() for name in block_hashes(prompt, ""))
    for pool in sorted(pools):
        rig.tell(StoreHolds(site=site, pool=pool, whole=True, added=added, removed=""))


def test_main_is_sent_what_its_site_lacks(rig: MachineRig) -> None:
    holds(rig, "shenzhen", PROMPT)
    rig.link(1e6)
    rig.arrive()
    link, main = rig.machine.ctx.world.link("hami", "shenzhen"), rig.req.main
    assert link is not None
    assert main is not None
    per_token = rig.machine.ctx.world.workers[main.worker].up.kv_bytes_per_token
    assert link.queued["a", main.epoch].nbytes == (len(PROMPT) - 16) * per_token


def test_a_prefill_goes_where_less_must_be_computed(make_rig: MakeRig) -> None:
    both, long = (Role.PREFILL, Role.MAIN), tuple(range(100, 1700))
    workers = [("a", "hami", both), ("b", "shenzhen", both)]
    for site, expected in (("hami", "a"), ("shenzhen", "b")):
        rig = make_rig(workers, route=Route.LOCAL)
        holds(rig, site, long)
        rig.arrive(prompt_ids=long)
        assert next(iter(rig.req.legs.values())).worker == expected


def test_another_tenants_salt_finds_nothing(rig: MachineRig) -> None:
    holds(rig, "shenzhen", PROMPT)
    rig.arrive(cache_salt="mine")
    assert rig.machine.ctx.prefixes.hits(rig.req.prefix, ["m0"]) == {}


def test_the_tenant_goes_with_every_leg(rig: MachineRig) -> None:
    actions = rig.arrive(tenant="acme", cache_salt="mine")
    starts = [a.message for a in actions if isinstance(getattr(a, "message", None), Start)]
    assert starts
    assert {(start.tenant, start.cache_salt) for start in starts} == {("acme", "mine")}
