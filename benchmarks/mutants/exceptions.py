"""Breaks that the seeds of `pdd bench faults` are not expected to notice, and why."""

# Of the gateway's core: the answer is right all the same, only later or dearer.
RECOVERY = "recovery makes up for it at a cost in time or work; unit tests notice (`make mutants`)"

_OWN = {
    "what comes before its start is dropped": (
        "feeds and orders to send KV are given again after a silence"
    ),
    "a feed with a gap is taken": (
        "what it samples then has another history and is not accepted; it is fed again"
    ),
    "the limit does not end a leg": (
        "the gateway accepts nothing past the limit and stops the leg"
    ),
    "a relay starts without law": ("the gateway takes index 0 from a prefill alone"),
    "a leg that ends keeps what still comes in": (
        "its source is stopped as well and ends the stream"
    ),
    "blocks of a running leg are given away": (
        "simulated KV is computed when it is read, so no block can be overwritten"
    ),
    "a receiver waits for ever for its sender": ("its leg is stopped, and the stream with it"),
    "a silent worker is never lost": ("the next stream brings no hello either, and loses it"),
    "a worker that came back is not said to be": (
        "what was missed is asked for after a second of silence"
    ),
    "starts are kept for a lost worker's next process": (
        "their stops are kept too and end them at once"
    ),
    "a post that failed keeps its place": (
        "it takes eight failed posts of one path, and a loss of the worker clears them"
    ),
    "a draining worker that comes up is not told of": (
        "the site must lapse while its worker restarts: rarer than the seeds tried"
    ),
    "the core is not told that a worker came back": (
        "what was missed is asked for after a second of silence"
    ),
}

_CORE = (
    "tokens within the law are not compared",
    "rank is not compared",
    "future runs are dropped",
    "future runs are kept without bound",
    "parked runs are not looked at again",
    "a late and different run is not fed again",
    "a run from the wrong worker counts",
    "main's first token leaves the hold",
    "a dead leg that decodes is left alone",
    "resume has the pause's number",
    "a paused relay never resumes",
    "an old paused is believed",
    "a paused relay keeps its slot",
    "a lost pause is not repeated",
    "a silent leg is asked but not fed",
    "no back-off",
    "a leg that speaks past a lost token is not asked",
    "a leg that speaks on deaf is not fed again",
    "feeds do not overlap",
    "a reconnected worker is not asked",
    "a prefill is asked for what comes after its token",
    "who refused is asked again at once",
    "a lost source is charged to who waits",
    "a failed source is tried again",
    "a relay is sent to a failed source",
    "main is tried for ever",
    "the relay that finishes is lost for good",
    "restarts without end",
    "a loss waits for the next look",
    "another relay is never tried",
    "main is fed only once it has landed",
    "anybody may give token 0",
    "main sets too little aside",
    "the relay sets too little aside",
    "the limit is one too many",
    "min_tokens is ignored",
    "a failure is told before tokens that are owed",
    "a useless relay is not stopped",
    "a relay that decodes is stopped",
    "the hold is freed when main has landed",
    "the relay's copy is never sent",
    "the KV of the law is not sent",
    "no deadline for prefill",
    "no deadline for KV",
    "no deadline for first tokens",
    "no deadline for silence",
    "no deadline for the cut",
    "no deadline for the queue",
    "no deadline for the request",
    "a deadline that is not later than now",
    "a late KV is not given to the relay",
    "cut before main was heard",
    "no pacing",
    "a token released early delays the next",
    "a second relay is slowed to main's pace",
    "law taken over counts as steps",
    "draining workers are chosen",
    "a hit at main is ignored",
    "the line's queue is ignored",
    "a forced route without room fails",
    "a dead pool fails new requests",
    "the queue has no end",
    "new requests overtake the queue",
    "a finished prefill keeps its slot",
    "a restarted worker keeps its legs",
    "the salt is ignored",
)

EXCEPTIONS = _OWN | dict.fromkeys(_CORE, RECOVERY)
