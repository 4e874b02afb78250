"""What workers and agents say of themselves, read strictly."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from orchestrator.membership.standing import Standing, read_standing
from workers.api.budget import Budget
from workers.api.messages import Role
from workers.api.wire import WireError, shown

ADDRESS = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}")
NAMES = re.compile(r"(?:[0-9a-f]{16})*")  # of KV blocks, their first eight bytes

T = TypeVar("T")


class LeaseRefused(Exception):
    """An agent's report that makes no sense, or comes too late; the text is one line."""


class WorkerState(StrEnum):
    """What an agent knows of a worker."""

    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"
    DRAINED = "drained"


# Nothing runs; a worker leaves these only by another process in its place.
FINAL = frozenset({WorkerState.FAILED, WorkerState.DRAINED})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker as its agent tells of it; `http` and `kv` are "host:port"."""

    name: str
    pool: str
    roles: frozenset[Role]
    state: WorkerState
    reason: str | None
    http: str
    kv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What a pool's store tells: what came and went since version `since`; see `StoreHolds`.

    Versions are the store's business; here they are equal or not.

    `account` is its counters; None: it is away.
    """

    pool: str
    since: str
    version: str
    whole: bool
    added: str
    removed: str
    account: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent posts with each renewal of its site's lease; `standing` as it was told."""

    site: str
    agent_epoch: int
    workers: dict[str, WorkerReport]
    stores: tuple[StoreReport, ...] = ()
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a worker's process says of itself when its token stream opens.

    `incarnation` is drawn anew by every process; pids come again, in containers always the same.
    `fingerprint` is for people to compare; None: it did not tell.
    """

    worker: str
    incarnation: str
    pid: int
    slots: int
    max_context: int
    kv_total_tokens: int
    kv_bytes_per_token: int
    block_size: int = 1  # tokens of one KV block
    fingerprint: dict[str, Any] | None = None
    keeps: Budget | None = None  # of a sequence's KV; None: all


def read_hello(body: Any) -> Hello:
    """The hello in a stream's first line. Raises WireError."""
    try:
        info = body["info"]
        hello = Hello(
            worker=body["worker"],
            incarnation=body["incarnation"],
            pid=body["pid"],
            slots=body["slots"],
            max_context=info["max_context"],
            kv_total_tokens=info["kv_total_tokens"],
            kv_bytes_per_token=body["kv_bytes_per_token"],
            block_size=info.get("block_size", 1),
            fingerprint=info.get("fingerprint"),
            keeps=None if body.get("keeps") is None else Budget(**body["keeps"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"not a hello: {type(error).__name__} {str(error)[:60]}") from error
    sizes = (hello.max_context, hello.kv_total_tokens, hello.block_size)
    numbers = (hello.pid, hello.slots, *sizes)
    if not all(type(n) is int and n > 0 for n in (*numbers, hello.kv_bytes_per_token)):
        raise WireError("not a hello: its numbers must be whole and above 0")
    if type(hello.incarnation) is not str or not hello.incarnation:
        raise WireError("not a hello: its incarnation must be text")
    return hello


def read_report(body: Any) -> Report:
    """An agent's report from JSON. Raises LeaseRefused, whose text names the field."""
    site, epoch = _field(body, "site", str), _field(body, "agent_epoch", int)
    workers = [_read_worker(worker) for worker in _field(body, "workers", list)]
    for worker in workers:
        if not worker.name.startswith(f"{site}/{worker.pool}/"):
            raise LeaseRefused(
                f"name: {shown(worker.name)} is no worker of {shown(f'{site}/{worker.pool}')}"
            )
    stores = body.get("stores", [])
    if type(stores) is not list:
        raise LeaseRefused("stores: not a list")
    return Report(
        site=site,
        agent_epoch=epoch,
        workers={w.name: w for w in workers},
        stores=tuple(map(_read_store, stores)),
        standing=_standing(body),
    )


def _standing(body: Any) -> Standing:
    try:
        return read_standing(body["standing"]) if "standing" in body else Standing()
    except ValueError as error:
        raise LeaseRefused(str(error)) from error


def _read_store(body: Any) -> StoreReport:
    account = body.get("account") if isinstance(body, dict) else None
    return StoreReport(
        pool=_field(body, "pool", str),
        since=_field(body, "since", str),
        version=_field(body, "version", str),
        whole=_field(body, "whole", bool),
        added=_names(body, "added"),
        removed=_names(body, "removed"),
        account=None if account is None else _account(account),
    )


def _account(body: Any) -> dict[str, Any]:
    """As `BlockStore.account` gives it; what it says beyond what is shown is nobody's business."""
    counts, tiers = _field(body, "counts", dict), _field(body, "tiers", dict)
    return {
        "counts": {name: _count(counts, name) for name in counts},
        "tiers": {
            tier: {of: _count(there, of) for of in ("bytes", "capacity_bytes")}
            for tier, there in tiers.items()
        },
        "unwritten_bytes": _count(body, "unwritten_bytes"),
    }


def _count(body: Any, key: str) -> int:
    count = _field(body, key, int)
    if count < 0:
        raise LeaseRefused(f"account: {shown(key)} is {count}, below 0")
    return count


def _names(body: Any, key: str) -> str:
    names = _field(body, key, str)
    if not NAMES.fullmatch(names):
        raise LeaseRefused(f"{key}: no names of blocks")
    return names


def _read_worker(body: Any) -> WorkerReport:
    reason = body.get("reason") if isinstance(body, dict) else None
    try:
        roles = frozenset(map(_role, _field(body, "roles", list)))
        state = WorkerState(_field(body, "state", str))
    except ValueError as error:
        raise LeaseRefused(f"workers: {shown(str(error))}") from error
    return WorkerReport(
        name=_field(body, "name", str),
        pool=_field(body, "pool", str),
        roles=roles,
        state=state,
        reason=reason if isinstance(reason, str) else None,
        http=_address(body, "http"),
        kv=_address(body, "kv"),
    )


def _role(told: Any) -> Role:
    if type(told) is not str:
        raise LeaseRefused(f"roles: {shown(told)} is no role")
    return Role(told)


def _field(body: Any, key: str, kind: type[T]) -> T:
    value = body.get(key) if isinstance(body, dict) else None
    if type(value) is not kind:
        raise LeaseRefused(f"{shown(key)[1:-1]}: missing, or not of type {kind.__name__}")
    return value


def _address(body: Any, key: str) -> str:
    address = _field(body, key, str)
    if not ADDRESS.fullmatch(address):
        raise LeaseRefused(f"{key}: {shown(address)} is not host:port")
    return address
