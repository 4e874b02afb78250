"""What must hold between the parts of a topology.

The rules run over a draft, which holds whatever could be read, so that one bad value does not
hide the mistakes beside it. `None` in a draft means: could not be read, say nothing about it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.topology.addresses import ports_needed
from orchestrator.topology.mistakes import Path, path_text, unknown
from orchestrator.topology.schema import Pool
from transport.codecs.choose import may_lose
from workers.api.messages import Role

Found = tuple[Path, str]  # where, and what is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Ports of a host that something declares to listen on; `path` says what."""

    path: Path
    host: str
    ports: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The names, roles and ports that the rules compare."""

    roles: dict[str, dict[str, frozenset[Role] | None]]  # site -> pool -> roles
    pools: dict[tuple[str, str], Pool]  # (site, pool), only the well-formed ones
    ends: tuple[tuple[str, str] | None, ...]  # per link
    listeners: tuple[Listener, ...]  # of sites that declare ports, and of the gateway
    elsewhere: frozenset[str]  # sites that are on machines of their own
    gateway_site: str | None
    route: str | None
    codec: str | None
    kv_dtype: object = "bfloat16"

    def sites_with(self, role: Role) -> list[str]:
        """Sites in which some pool may take the role."""
        return [
            site
            for site, pools in self.roles.items()
            if any(roles is not None and role in roles for roles in pools.values())
        ]

    def linked(self, a: str, b: str) -> bool:
        """Whether a link joins two sites."""
        return any(ends is not None and set(ends) == {a, b} for ends in self.ends)

    @property
    def complete(self) -> bool:
        """Whether every pool's roles and every link's ends are known."""
        known = all(roles is not None for pools in self.roles.values() for roles in pools.values())
        return known and None not in self.ends


def broken_rules(draft: Draft) -> Iterator[Found]:
    """Every rule that the draft breaks."""
    for (site, name), pool in draft.pools.items():
        yield from _pool_rules(("sites", site, "pools", name), pool)
    yield from _kv_store_rules(draft)
    yield from _evict_rules(draft)
    yield from _codec_rules(draft)
    yield from _dtype_rules(draft)
    yield from _site_rules(draft)
    yield from _port_rules(draft)
    links_good = True
    for found in _link_rules(draft):
        links_good = False
        yield found
    if draft.complete and links_good:
        yield from _role_rules(draft)


def _pool_rules(path: Path, pool: Pool) -> Iterator[Found]:
    if not pool.roles:
        yield (*path, "roles"), NO_ROLES
    needed = pool.instances * pool.parallel
    if needed > pool.count:
        key = "parallel" if pool.parallel > 1 else "instances"
        yield (
            (*path, key),
            f"{pool.instances} instances x {pool.parallel} parallel need {needed} chips, "
            f"but count is {pool.count}",
        )
    if pool.scale_up is not None and pool.parallel > pool.scale_up:
        yield (
            (*path, "parallel"),
            f"{pool.parallel} chips do not fit one scale-up domain of {pool.scale_up}",
        )
    if pool.kv_tokens % pool.block_size:
        yield (
            (*path, "kv_tokens"),
            f"must be a multiple of block_size ({pool.block_size}), got {pool.kv_tokens}",
        )
    if pool.simulate is not None and pool.engine != "simulated":
        yield (*path, "simulate"), f"only with engine: simulated, but engine is {pool.engine}"
    yield from _vllm_rules(path, pool)


def _vllm_rules(path: Path, pool: Pool) -> Iterator[Found]:
    vllm = pool.vllm
    if (vllm is None) == (pool.engine == "vllm"):
        if vllm is None:
            yield (*path, "engine"), f"vllm needs a section vllm beside it: {ONE_VLLM}"
        else:
            yield (*path, "vllm"), f"only with engine: vllm, but engine is {pool.engine}"
    if vllm is None:
        return
    if (vllm.python is None) == (vllm.attach is None):
        yield (*path, "vllm"), f"needs one of the two: {ONE_VLLM}"
    elif vllm.attach is not None:
        if vllm.pools is None:
            yield (*path, "vllm"), "attach needs pools: the folder that vLLM was started with"
        if vllm.args or vllm.env:
            yield (*path, "vllm"), "args and env are for a vLLM that is started, not attached"
        if pool.instances > 1:
            yield (*path, "instances"), "workers that attach need a vLLM each: one pool for each"
    elif vllm.pools is not None:
        yield (*path, "vllm", "pools"), "only with attach: what is started is told by itself"


ONE_VLLM = "python (of an environment that has vLLM) or attach (the url of one that runs)"
NO_ROLES = "give at least one of prefill, relay, main, or leave roles out: then they are planned"


def _kv_store_rules(draft: Draft) -> Iterator[Found]:
    first: dict[tuple[str | None, str], tuple[str, str]] = {}
    for (site, name), pool in draft.pools.items():
        if pool.kv_store is None or pool.kv_store.nvme is None:
            continue
        machine = site if site in draft.elsewhere else None  # all others are on this one
        other = first.setdefault((machine, pool.kv_store.nvme.path), (site, name))
        if other != (site, name):
            yield (
                ("sites", site, "pools", name, "kv_store", "nvme", "path"),
                f"{'.'.join(other)} keeps its blocks there already",
            )


def _evict_rules(draft: Draft) -> Iterator[Found]:
    pruning = {at: pool for at, pool in draft.pools.items() if pool.evict is not None}
    whole = [at for at, pool in draft.pools.items() if pool.engine == "vllm"]
    for site, name in pruning if whole else ():
        yield (
            ("sites", site, "pools", name, "evict"),
            f"{'.'.join(whole[0])} could be sent what is left of a request, and its engine, vllm, "
            "takes requests with all of their tokens only",
        )


def _codec_rules(draft: Draft) -> Iterator[Found]:
    simulated = [name for name, pool in draft.pools.items() if pool.engine == "simulated"]
    if simulated and draft.codec is not None and may_lose(draft.codec):
        site, pool = simulated[0]
        yield (
            ("policy", "codec"),
            f"{draft.codec} may round KV, and the simulated engine of {site}.{pool} takes no other "
            "bits than its own: lossless, or engine: torch",
        )


def _dtype_rules(draft: Draft) -> Iterator[Found]:
    simulated = [name for name, pool in draft.pools.items() if pool.engine == "simulated"]
    if simulated and draft.kv_dtype in ("float16", "float32"):
        site, pool = simulated[0]
        yield (
            ("kv_dtype",),
            f"the simulated engine of {site}.{pool} keeps KV in bfloat16: leave it out, or "
            "engine: torch",
        )


def _site_rules(draft: Draft) -> Iterator[Found]:
    if not draft.roles:
        yield ("sites",), "at least one site is needed"
    elif draft.gateway_site is not None and draft.gateway_site not in draft.roles:
        yield ("gateway", "site"), unknown("site", draft.gateway_site, list(draft.roles))


def _port_rules(draft: Draft) -> Iterator[Found]:
    for number, one in enumerate(draft.listeners):
        if one.path[0] == "sites":
            yield from _room_rules(draft, one)
        for other in draft.listeners[:number]:
            first, last = max(one.ports[0], other.ports[0]), min(one.ports[-1], other.ports[-1])
            if one.host == other.host and first <= last:
                yield one.path, f"port {first} of {one.host} is {path_text(other.path)} already"
                break


def _room_rules(draft: Draft, site: Listener) -> Iterator[Found]:
    workers = sum(p.instances for (name, _), p in draft.pools.items() if name == site.path[1])
    needed = ports_needed(workers)
    if len(site.ports) < needed:
        yield (
            site.path,
            f"the agent needs one port and each of {workers} workers two: {needed}, "
            f"but there are {len(site.ports)}",
        )


def _link_rules(draft: Draft) -> Iterator[Found]:
    first: dict[frozenset[str], int] = {}
    for i, ends in enumerate(draft.ends):
        if ends is None:
            continue
        path: Path = ("links", i, "between")
        strangers = [(end, site) for end, site in enumerate(ends) if site not in draft.roles]
        for end, site in strangers:
            yield (*path, end), unknown("site", site, list(draft.roles))
        if strangers:
            continue
        if ends[0] == ends[1]:
            yield path, f"a link joins two sites, but both ends are {ends[0]!r}"
        elif frozenset(ends) in first:
            earlier = first[frozenset(ends)]
            yield path, f"{ends[0]} and {ends[1]} are joined already, by links[{earlier}]"
        else:
            first[frozenset(ends)] = i


def _role_rules(draft: Draft) -> Iterator[Found]:
    prefill, main = draft.sites_with(Role.PREFILL), draft.sites_with(Role.MAIN)
    if not prefill:
        yield ("sites",), "no pool can prefill: give one the role prefill"
    if not main:
        yield ("sites",), "no pool can decode: give one the role main"
    if not prefill or not main:
        return
    yield from _reach_rules(draft, prefill, main)
    match draft.route:
        case "local":
            if not set(prefill) & set(main):
                yield (
                    ("policy", "route"),
                    "route local needs a site with both prefill and main; there is none",
                )
        case "direct" | "relay":
            yield from _remote_rules(draft, prefill, main)


def _reach_rules(draft: Draft, prefill: list[str], main: list[str]) -> Iterator[Found]:
    for site in prefill:
        if site not in main and not any(draft.linked(site, other) for other in main):
            yield ("sites", site), f"no link joins it to a site with the role main: {_list(main)}"
    for site in main:
        if site not in prefill and not any(draft.linked(site, other) for other in prefill):
            yield (
                ("sites", site),
                f"no link joins it to a site with the role prefill: {_list(prefill)}",
            )
    home = draft.gateway_site
    if home not in draft.roles:
        return
    reached = _reachable(draft, home)
    for site, pools in draft.roles.items():
        if pools and site not in reached:
            yield ("sites", site), f"no path of links joins it to the gateway's site {home!r}"


def _reachable(draft: Draft, home: str) -> set[str]:
    reached, new = {home}, [home]
    while new:
        here = new.pop()
        for site in draft.roles:
            if site not in reached and draft.linked(here, site):
                reached.add(site)
                new.append(site)
    return reached


def _remote_rules(draft: Draft, prefill: list[str], main: list[str]) -> Iterator[Found]:
    path: Path = ("policy", "route")
    senders = [s for s in prefill if any(draft.linked(s, other) for other in main if other != s)]
    if not senders:
        yield (
            path,
            f"route {draft.route} needs a link from a site with prefill to another with main",
        )
    elif draft.route == "relay" and not set(senders) & set(draft.sites_with(Role.RELAY)):
        yield (
            path,
            f"route relay needs a pool with the role relay beside the prefill: in {_list(senders)}",
        )


def _list(sites: list[str]) -> str:
    return " or ".join(sites)
