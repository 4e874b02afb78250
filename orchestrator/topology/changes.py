"""What a running deployment takes on of a changed file: pools, and what it is planned for."""

from collections.abc import Iterator

from orchestrator.errors import UserError
from orchestrator.topology.schema import Pool, Strict, Topology

PLANNED_FOR = ("slo", "plan")  # no worker is told of them


def changes(before: Topology, after: Topology) -> list[str]:
    """A line for each difference, in the order of the new file.

    Raises UserError that names what cannot be taken on, and then nothing of it should be.
    """
    fixed = list(_fixed(before, after))
    if fixed:
        raise UserError(f"{'; '.join(fixed)}: cannot change while it runs")
    lines = []
    for site, place in after.sites.items():
        old = before.sites[site].pools
        for name, pool in place.pools.items():
            where = f"sites.{site}.pools.{name}"
            if name not in old:
                lines.append(f"{where}: added, {_workers(pool)}")
            elif pool != old[name]:
                lines.append(f"{where}: {_differences(old[name], pool)}")
        gone = (name for name in old if name not in place.pools)
        lines += [f"sites.{site}.pools.{n}: removed, {_workers(old[n])}" for n in gone]
    for key in PLANNED_FOR:
        if getattr(before, key) != getattr(after, key):
            lines.append(f"{key}: changed")
    return lines


def _fixed(before: Topology, after: Topology) -> Iterator[str]:
    """Where they differ and may not."""
    for key in _differing(before, after):
        if key not in ("sites", *PLANNED_FOR):
            yield key
    for site in {**before.sites, **after.sites}:
        if site not in before.sites or site not in after.sites:
            yield f"sites.{site}"
            continue
        old, new = before.sites[site], after.sites[site]
        yield from (f"sites.{site}.{key}" for key in _differing(old, new) if key != "pools")
        for name in {**old.pools, **new.pools}:
            stores = [
                pools[name].kv_store if name in pools else None for pools in (old.pools, new.pools)
            ]
            if stores[0] != stores[1]:
                yield f"sites.{site}.pools.{name}.kv_store"


def _differing(a: Strict, b: Strict) -> list[str]:
    """Keys, as a file has them."""
    fields = type(a).model_fields
    differ = (name for name in fields if getattr(a, name) != getattr(b, name))
    return [fields[name].alias or name for name in differ]


def _differences(old: Pool, new: Pool) -> str:
    if old.open != new.open:
        return "roles by plan" if new.open else f"roles {_roles(new)}"
    values = []
    for name, field in Pool.model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            values.append(f"{field.alias or name} {_text(before)} > {_text(after)}")
    return ", ".join(values)


def _text(value: object) -> str:
    if isinstance(value, frozenset):
        return " and ".join(sorted(map(str, value)))
    if isinstance(value, dict):
        return " and ".join(sorted(value)) or "none"  # what stands there may be secret
    if isinstance(value, Strict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value)
    return "none" if value is None else str(value)


def _roles(pool: Pool) -> str:
    return _text(pool.roles)


def _workers(pool: Pool) -> str:
    count = f"{pool.instances} worker{'s' if pool.instances > 1 else ''}"
    return f"{count}, {'roles by plan' if pool.open else _roles(pool)}"
