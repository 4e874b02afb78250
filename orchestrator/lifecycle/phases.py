"""The phases of a request: two coupled tracks, tokens and KV, joined in one table."""

from enum import StrEnum


class Phase(StrEnum):
    """Where a request stands (PROTOCOL, "States")."""

    QUEUED = "queued"
    PREFILL = "prefill"
    RELAY = "relay"
    RACE = "race"
    CUT = "cut"
    MAIN_WAIT = "main wait"
    MAIN = "main"
    DONE = "done"


class TokenTrack(StrEnum):
    """Who brings the next token."""

    UNROUTED = "unrouted"
    EMPTY = "empty"  # no token yet
    RELAYING = "relaying"  # a relay decodes
    PAUSED = "paused"  # a relay was told to pause
    WAITING = "waiting"  # nobody decodes yet
    MAIN = "main"  # main has an accepted token
    ENDED = "ended"


class KVTrack(StrEnum):
    """Where the KV that main needs is."""

    ABSENT = "absent"  # no main leg
    MOVING = "moving"
    LANDED = "landed"


# Looking a member up in its enum takes longer than all else that a request does with it.
UNROUTED, EMPTY, RELAYING, PAUSED, WAITING, MAIN_BRINGS, ENDED = TokenTrack
ABSENT, MOVING, LANDED = KVTrack
RACE = Phase.RACE

JOINT: dict[tuple[TokenTrack, KVTrack], Phase] = {
    **{(TokenTrack.UNROUTED, kv): Phase.QUEUED for kv in KVTrack},
    **{(TokenTrack.EMPTY, kv): Phase.PREFILL for kv in KVTrack},
    (TokenTrack.RELAYING, KVTrack.ABSENT): Phase.RELAY,
    (TokenTrack.RELAYING, KVTrack.MOVING): Phase.RELAY,
    (TokenTrack.RELAYING, KVTrack.LANDED): Phase.RACE,
    # A paused relay without a landed main must be resumed: it counts as the relay phase.
    (TokenTrack.PAUSED, KVTrack.ABSENT): Phase.RELAY,
    (TokenTrack.PAUSED, KVTrack.MOVING): Phase.RELAY,
    (TokenTrack.PAUSED, KVTrack.LANDED): Phase.CUT,
    **{(TokenTrack.WAITING, kv): Phase.MAIN_WAIT for kv in KVTrack},
    **{(TokenTrack.MAIN, kv): Phase.MAIN for kv in KVTrack},
    **{(TokenTrack.ENDED, kv): Phase.DONE for kv in KVTrack},
}

# Every move a request may make; any other is a defect and raises IllegalMove.
_ANYWHERE = {Phase.DONE}
MOVES: dict[Phase, set[Phase]] = {
    Phase.QUEUED: {Phase.PREFILL} | _ANYWHERE,
    Phase.PREFILL: {Phase.QUEUED, Phase.RELAY, Phase.RACE, Phase.MAIN_WAIT, Phase.MAIN} | _ANYWHERE,
    Phase.RELAY: {Phase.RACE, Phase.MAIN_WAIT, Phase.MAIN} | _ANYWHERE,
    Phase.RACE: {Phase.RELAY, Phase.CUT, Phase.MAIN_WAIT, Phase.MAIN} | _ANYWHERE,
    Phase.CUT: {Phase.RELAY, Phase.MAIN_WAIT, Phase.MAIN} | _ANYWHERE,
    Phase.MAIN_WAIT: {Phase.RELAY, Phase.RACE, Phase.MAIN} | _ANYWHERE,
    Phase.MAIN: {Phase.MAIN_WAIT} | _ANYWHERE,
    Phase.DONE: set(),
}


class IllegalMove(Exception):
    """The core tried a move that the table does not have; the request keeps its phase."""

    def __init__(self, request: str, old: Phase, new: Phase) -> None:
        super().__init__(f"request {request}: no move from {old} to {new}")
