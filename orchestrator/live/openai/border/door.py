"""Who may come in, and how often: API keys, their tenants, and the tenants' rates."""

import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
        self._requests = _bucket(rates.requests_per_minute)
        self._tokens = _bucket(rates.tokens_per_minute)

    def admit(self, now: float) -> Refused | None:
        """Count a request; None: it may be served."""
        for of, bucket, least in (("requests", self._requests, 1.0), ("tokens", self._tokens, 1.0)):
            if bucket is not None and (wait_s := bucket.wait_s(least, now)) > 0:
                return Refused(of, bucket.per_minute, wait_s)
        if self._requests is not None:
            self._requests.use(1, now)
        return None

    def charge(self, tokens: int, now: float) -> None:
        """Count tokens in and out."""
        if self._tokens is not None:
            self._tokens.use(tokens, now)


def _bucket(per_minute: int | None) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute)


class Door:
    """The keys and their tenants. Without keys everybody is the default tenant."""

    def __init__(
        self, keys: Mapping[str, str] | None = None, rates: Mapping[str, Rates] | None = None
    ) -> None:
        """`keys`: from a key to its tenant's name; None: no key is asked for."""
        rates = rates or {}
        names = {DEFAULT_TENANT} if keys is None else set(keys.values())
        tenants = {name: Tenant(name, rates.get(name, Rates())) for name in names}
        self._everybody = tenants[DEFAULT_TENANT] if keys is None else None
        self._keys = [(key.encode(), tenants[name]) for key, name in sorted((keys or {}).items())]

    def tenant(self, authorization: bytes) -> Tenant | None:
        """Whose the header's bearer key is; None: nobody's."""
        if self._everybody is not None:
            return self._everybody
        scheme, _, given = authorization.partition(b" ")
        found = None
        for key, tenant in self._keys:
            # Every key is compared, each in constant time: the time tells nothing about any.
            if hmac.compare_digest(given.strip(), key):
                found = tenant
        return found if scheme.lower() == b"bearer" else None
