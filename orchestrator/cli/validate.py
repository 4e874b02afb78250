"""`pdd validate FILE`: every mistake in a topology file, or what the file describes."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.catalogue import Catalogue, load_catalogue
from orchestrator.cli.main import MISTAKEN
from orchestrator.cli.output import Format, FormatOption, print_json
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from orchestrator.topology.schema import Link, Pool, Topology
from orchestrator.topology.units import show_rate
from workers.api.messages import Role

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

SAMPLE_TOKENS = 1000  # a prompt's length to show what the line means for it


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One pool; `memory_gb` of all its chips, `price_per_h` of all of them, None: not known.

    `dram_bytes`, `nvme_bytes`: of its store of KV blocks; None: there is none.
    `planned`: the file leaves its roles to the planner, so they may be any.
    """

    site: str
    pool: str
    chip: str
    count: int
    instances: int
    parallel: int
    engine: str
    roles: list[str]
    planned: bool
    memory_gb: float | None
    dram_bytes: int | None
    nvme_bytes: int | None
    price_per_h: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSummary:
    """One link; `sample_s`: for 1000 tokens' KV, uncompressed, alone on it; None: not known."""

    between: tuple[str, str]
    delay_s: float
    rate_bytes_per_s: float
    jitter_s: float
    loss: float
    emulate: bool
    price_per_gb: float | None
    sample_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a good file describes."""

    file: str
    model: str
    kv_dtype: str
    kv_bytes_per_token: int | None  # None: not in the catalogue
    sites: dict[str, str]  # site -> launch
    pools: list[PoolSummary]
    links: list[LinkSummary]
    gateway: str
    route: str
    handoff: str
    codec: str
    ttft_s: float
    tpot_s: float
    second_token_s: float | None  # None: whenever it comes
    price_per_h: float | None  # None: not every pool has a price


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(help="The topology file.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Check a topology file and name every mistake in it."""
    try:
        topology = load_topology(file)
    except TopologyError as error:
        if output is not Format.JSON:
            raise
        print_json([asdict(mistake) for mistake in error.mistakes])
        raise typer.Exit(MISTAKEN) from None
    summary = summarize(str(file), topology, load_catalogue())
    if output is Format.JSON:
        print_json(summary)
    else:
        print(_text(summary))


def summarize(file: str, topology: Topology, catalogue: Catalogue) -> Summary:
    """The topology in the figures that one wants to check first."""
    facts = catalogue.models.get(topology.model)
    kv_bytes = facts.kv_bytes_in(topology.kv_dtype) if facts else None
    pools = [
        _pool(site, name, pool, catalogue)
        for site, place in topology.sites.items()
        for name, pool in place.pools.items()
    ]
    prices = [pool.price_per_h for pool in pools if pool.price_per_h is not None]
    gateway = topology.gateway
    return Summary(
        file=file,
        model=topology.model,
        kv_dtype=topology.kv_dtype,
        kv_bytes_per_token=kv_bytes,
        sites={name: site.launch for name, site in topology.sites.items()},
        pools=pools,
        links=[_link(link, kv_bytes) for link in topology.links],
        gateway=f"http://{gateway.host}:{gateway.port}/v1 in {gateway.site}",
        route=topology.policy.route,
        handoff=topology.policy.handoff,
        codec=topology.policy.codec,
        ttft_s=topology.slo.ttft_s,
        tpot_s=topology.slo.tpot_s,
        second_token_s=topology.slo.second_token_s,
        price_per_h=sum(prices) if len(prices) == len(pools) else None,
    )


def _pool(site: str, name: str, pool: Pool, catalogue: Catalogue) -> PoolSummary:
    memory, kept = catalogue.chips[pool.chip].memory_gb, pool.kv_store
    return PoolSummary(
        site=site,
        pool=name,
        chip=pool.chip,
        count=pool.count,
        instances=pool.instances,
        parallel=pool.parallel,
        engine=pool.engine,
        roles=[role.value for role in Role if role in pool.roles],
        planned=pool.open,
        memory_gb=memory.value * pool.count if memory else None,
        dram_bytes=None if kept is None else kept.dram_bytes,
        nvme_bytes=None if kept is None or kept.nvme is None else kept.nvme.size_bytes,
        price_per_h=pool.price_per_h * pool.count if pool.price_per_h is not None else None,
    )


def _link(link: Link, kv_bytes: int | None) -> LinkSummary:
    sample_s = None
    if kv_bytes is not None:
        sample_s = link.delay_s + SAMPLE_TOKENS * kv_bytes / link.rate_bytes_per_s
    return LinkSummary(
        between=link.between,
        delay_s=link.delay_s,
        rate_bytes_per_s=link.rate_bytes_per_s,
        jitter_s=link.jitter_s,
        loss=link.loss,
        emulate=link.emulate,
        price_per_gb=link.price_per_gb,
        sample_s=sample_s,
    )


# ------------------------------------------------------------------------------------------ text


def _text(summary: Summary) -> str:
    lines = [f"{summary.file}: good", _model_text(summary)]
    for site, launch in summary.sites.items():
        lines.append(f"site     {site}, launch {launch}")
        lines += [f"  pool   {_pool_text(pool)}" for pool in summary.pools if pool.site == site]
    lines += [f"link     {_link_text(link)}" for link in summary.links]
    lines.append(f"gateway  {summary.gateway}")
    lines.append(
        f"policy   route {summary.route}, handoff {summary.handoff}, codec {summary.codec}"
    )
    second_s = summary.second_token_s
    second = "" if second_s is None else f", second token {second_s:g} s"
    lines.append(f"slo      ttft {summary.ttft_s:g} s, tpot {_ms(summary.tpot_s)}{second}")
    if summary.price_per_h is not None:
        lines.append(f"price    {summary.price_per_h:.2f} an hour")
    return "\n".join(lines)


def _model_text(summary: Summary) -> str:
    if summary.kv_bytes_per_token is None:
        return f"model    {summary.model}"
    return (
        f"model    {summary.model}, {summary.kv_bytes_per_token} bytes of KV per token "
        f"({summary.kv_dtype})"
    )


def _pool_text(pool: PoolSummary) -> str:
    workers = f"{pool.instances} worker{'s' if pool.instances > 1 else ''}"
    shards = f" over {pool.parallel} chips each" if pool.parallel > 1 else ""
    memory = f" ({pool.memory_gb:g} GB)" if pool.memory_gb is not None else ""
    kept = "" if pool.dram_bytes is None else f"; keeps KV in {_gib(pool.dram_bytes)} of memory"
    kept += "" if pool.nvme_bytes is None else f" and {_gib(pool.nvme_bytes)} of files"
    return (
        f"{pool.pool}: {pool.count} x {pool.chip}{memory}, {workers}{shards}, {pool.engine}, "
        f"{'roles by plan' if pool.planned else ' and '.join(pool.roles)}{kept}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def _link_text(link: LinkSummary) -> str:
    text = (
        f"{link.between[0]} - {link.between[1]}: {_ms(link.delay_s)} one way, "
        f"{show_rate(link.rate_bytes_per_s)}, jitter {_ms(link.jitter_s)}, loss {link.loss:g}"
    )
    if link.price_per_gb is not None:
        text += f", {link.price_per_gb:g} a GB"
    if link.emulate:
        text += ", emulated"
    if link.sample_s is not None:
        text += f"; the KV of {SAMPLE_TOKENS} tokens needs {link.sample_s:.3g} s"
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
