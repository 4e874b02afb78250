"""Requests as the page shows them: those that are open, the last that ended, the last failures."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.lifecycle.request import Request
from orchestrator.lifecycle.timeline import LegTimes, Timeline, timeline
from orchestrator.live.openai.errors import scrub
from orchestrator.metrics.requests import CANCELLED
from orchestrator.state.actions import Fail, Finish

OPEN_SHOWN = 120
KEPT = 60
FAILURES_KEPT = 30


@dataclass(slots=True, kw_only=True)
class _Ended:
    """Described when somebody asks, and once."""

    told: Timeline
    outcome: str
    at: float
    described: dict[str, Any] | None = None

    def describe(self, now: float) -> dict[str, Any]:
        if self.described is None:
            self.described = describe(self.told) | {"outcome": self.outcome}
        return self.described | {"ended_s_ago": round(now - self.at, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    cause: str
    message: str
    request: str
    at: float


class Recent:
    """The last `KEPT` requests that ended and the last `FAILURES_KEPT` failures, no more.

    It watches the driver. `clock`: the gateway's, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[_Ended] = deque(maxlen=KEPT)
        self._failed: deque[_Failed] = deque(maxlen=FAILURES_KEPT)
        self.count = 0  # of all that ended
        self.tokens = 0  # of theirs

    def ended(self, told: Timeline | None, end: Finish | Fail | None, trace: str | None) -> None:
        """A request's end; see `driver.Watcher`."""
        now = self._clock()
        self.count += 1
        if isinstance(end, Fail):
            message = scrub(end.message)
            failed = _Failed(cause=end.failure, message=message, request=end.request, at=now)
            self._failed.append(failed)
        if told is not None:
            outcome = CANCELLED if end is None else _outcome(end)
            self.tokens += told.summary.completion_tokens
            self._ended.append(_Ended(told=told, outcome=outcome, at=now))

    def describe(self) -> dict[str, Any]:
        """JSON values, the newest first; ages in seconds."""
        now = self._clock()
        return {
            "kept": KEPT,
            "recent": [one.describe(now) for one in reversed(self._ended)],
            "failures": [
                {
                    "cause": one.cause,
                    "message": one.message,
                    "request": one.request,
                    "s_ago": round(now - one.at, 1),
                }
                for one in reversed(self._failed)
            ],
        }


def describe_open(requests: Iterable[Request], now: float) -> list[dict[str, Any]]:
    """The oldest `OPEN_SHOWN` of them."""
    shown = list(requests)[:OPEN_SHOWN]  # they are kept in the order in which they came
    return [describe(timeline(request, now)) | {"outcome": None} for request in shown]


def describe(told: Timeline) -> dict[str, Any]:
    """A timeline as JSON values; seconds since the request came. No token and no text is in it."""
    since = _Since(told.arrived_at)
    summary = told.summary
    return {
        "request": told.request,
        "route": told.route,
        "phase": told.phase,
        "age_s": since(told.now),
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "tokens": summary.completion_tokens,
        "routed_s": since(told.routed_at),
        "first_token_s": since(told.first_token_at),
        "handoff": summary.handoff,
        "handoff_index": summary.handoff_index,
        "handoff_gap_s": summary.handoff_gap_s,
        "kv_bytes_raw": summary.kv_bytes_raw,
        "kv_bytes_wire": summary.kv_bytes_wire,
        "recoveries": summary.recoveries,
        "legs": [_leg(leg, since) for leg in told.legs],
    }


def _leg(leg: LegTimes, since: "_Since") -> dict[str, Any]:
    return {
        "role": leg.role,
        "worker": leg.worker,
        "site": leg.site,
        "opened_s": since(leg.opened_at),
        "kv_from": leg.kv_from,
        "kv_s": since(leg.kv_at),
        "landed_s": since(leg.landed_at),
        "first_s": since(leg.first_at),
        "first_index": leg.first_index,
        "tokens": leg.tokens,
        "last_s": since(leg.last_at),
        "ended_s": since(leg.ended_at),
        "lost": leg.lost,
    }


class _Since:
    """Seconds since a moment, to a tenth of a millisecond."""

    def __init__(self, at: float) -> None:
        self._at = at

    def __call__(self, at: float | None) -> float | None:
        return None if at is None else round(at - self._at, 4)


def _outcome(end: Finish | Fail) -> str:
    return end.reason if isinstance(end, Finish) else end.failure
