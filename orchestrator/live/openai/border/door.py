"""Who may come in, and how often: API keys, their tenants, the tenants' rates; who may operate."""

import hmac
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

REQUESTS, TOKENS = "requests", "tokens"
TOLD = ("limit", "remaining", "reset")  # of each rate
RATE_HEADERS = tuple(f"x-ratelimit-{what}-{of}" for of in (REQUESTS, TOKENS) for what in TOLD)
DEFAULT_TENANT = "default"  # of keys that name none, and of everybody where there are no keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a tenant may use in a minute; None: as much as it likes."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Bucket:
    """A minute's allowance, full at first and filled evenly. What was used may exceed it."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = -math.inf

    def wait_s(self, least: float, now: float) -> float:
        """Seconds until `least` is there; 0: it is."""
        self._fill(now)
        return max(0.0, least - self._level) * 60 / self.per_minute

    def use(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def left(self, now: float) -> tuple[int, float]:
        """What is there, in whole ones, and the seconds until the bucket is full again."""
        self._fill(now)
        missing = self.per_minute - self._level
        return max(0, math.floor(self._level)), missing * 60 / self.per_minute

    def _fill(self, now: float) -> None:
        passed = now - self._at
        self._at = now
        self._level = min(float(self.per_minute), self._level + passed * self.per_minute / 60)


class Refused(NamedTuple):
    """Which rate is used up, and when there will be some of it again."""

    of: str
    per_minute: int
    wait_s: float


class Tenant:
    """One customer, however many keys it has.

    A request costs one, and its tokens when they are known: those of the prompt and of the answer.
    So a long answer is told to its end, and the tenant waits after it.
    """

    def __init__(self, name: str, rates: Rates) -> None:
        self.name = name
        given = {REQUESTS: rates.requests_per_minute, TOKENS: rates.tokens_per_minute}
        self._buckets = {of: Bucket(rate) for of, rate in given.items() if rate is not None}

    def admit(self, now: float) -> Refused | None:
        """Count a request; None: it may be served."""
        for of, bucket in self._buckets.items():
            if (wait_s := bucket.wait_s(1.0, now)) > 0:
                return Refused(of, bucket.per_minute, wait_s)
        self._use(REQUESTS, 1, now)
        return None

    def charge(self, tokens: int, now: float) -> None:
        """Count tokens in and out."""
        self._use(TOKENS, tokens, now)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """What is left of each rate, in OpenAI's headers; `reset` is when all of it is there."""
        told = []
        for of, bucket in self._buckets.items():
            remaining, reset_s = bucket.left(now)
            values = (str(bucket.per_minute), str(remaining), _duration(reset_s))
            for what, value in zip(TOLD, values, strict=True):
                told.append((f"x-ratelimit-{what}-{of}".encode(), value.encode()))
        return told

    def _use(self, of: str, amount: int, now: float) -> None:
        bucket = self._buckets.get(of)
        if bucket is not None:
            bucket.use(amount, now)


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 250ms, 59s, 6m0s; rounded up."""
    ms = math.ceil(round(seconds * 1e3, 3))  # of sums that are a hair too large
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(math.ceil(ms / 1e3), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class Door:
    """The keys and their tenants. Without keys everybody is the default tenant."""

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        rates: Mapping[str, Rates] | None = None,
        operators: Collection[str] | None = None,
    ) -> None:
        """`keys`: from a key to its tenant's name; None: no key is asked for. `operators`: keys
        that may change the deployment; None: everybody may where no key is asked for, else nobody.
        """
        rates = rates or {}
        names = {DEFAULT_TENANT} if keys is None else set(keys.values())
        tenants = {name: Tenant(name, rates.get(name, Rates())) for name in names}
        self._everybody = tenants[DEFAULT_TENANT] if keys is None else None
        self._operators = None if operators is None else [key.encode() for key in operators]
        self._keys = [(key.encode(), tenants[name]) for key, name in sorted((keys or {}).items())]

    def tenant(self, authorization: bytes) -> Tenant | None:
        """Whose the header's bearer key is; None: nobody's."""
        if self._everybody is not None:
            return self._everybody
        given, found = _bearer(authorization), None
        for key, tenant in self._keys:
            # Every key is compared, each in constant time: the time tells nothing about any.
            if hmac.compare_digest(given, key):
                found = tenant
        return found

    def operates(self, authorization: bytes) -> bool:
        """Whether the header's bearer may change the deployment."""
        if self._operators is None:
            return self._everybody is not None
        given, found = _bearer(authorization), False
        for key in self._operators:
            found |= hmac.compare_digest(given, key)
        return found


def _bearer(authorization: bytes) -> bytes:
    """The header's bearer key; no key is empty, so nobody's is."""
    scheme, _, given = authorization.partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else b""
