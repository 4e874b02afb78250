"""What is promised, and the breaches found in a virtual deployment."""

import traceback
from dataclasses import dataclass
from enum import StrEnum


class Promise(StrEnum):
    """The promises that a run is held to."""

    IN_ORDER = "no token is missing or repeated"
    RIGHT_TOKENS = "every token is right"
    ENDS = "every request ends within its deadline"
    ENDS_ONCE = "nothing is told after the end"
    COUNTS = "the account fits the tokens"
    BOOKS = "the books hold nothing that no request stands for"
    INTACT = "KV arrives intact or not at all"
    KV_FREE = "no KV outlives its request or its lease"
    FREE_SOON = "in peace a request's KV is free within a second of its end"
    STREAMS_END = "no KV stream outlives its request"
    STOPPED = "every leg is started at most once and stopped"
    NO_STALL = "small accidents cost nobody a deadline"
    FLOWS = "small accidents stop no stream for long"
    RESUMES = "once the trouble is over nobody waits for long"
    KNOWN = "a gateway knows which process a worker is"
    NO_LOSS = "before any trouble nothing is lost"
    ROLES = "before any trouble a leg goes where its role and route belong"
    DRAINED = "a draining worker gets no new leg"
    LEASED = "a site whose lease has lapsed gets no new leg"
    NOT_OVERBOOKED = "no worker's memory is promised twice"
    FUTURE_DEADLINE = "every deadline lies in the future"
    PHASES = "the phase is what both tracks say"
    NO_DEFECT = "nothing raises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One broken promise: of whom (a request, a worker, a gateway), and what was seen when."""

    promise: Promise
    who: str
    at: float
    seen: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.who}: broken: {self.promise} ({self.seen})"


def defect(who: str, at: float, error: Exception) -> Breach:
    """Something of ours raised what nobody expects."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    seen = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
    return Breach(promise=Promise.NO_DEFECT, who=who, at=at, seen=seen)
