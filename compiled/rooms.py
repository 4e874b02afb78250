"""What is compiled: the pure modules that a replay and a gateway run for every event.

Left as they are: what only checks what comes in or writes what goes out (`state.wire`,
`lifecycle.parity`), and `replay.prompt`, whose prompts are tuples with a length of their own.
"""

ROOMS = {
    "workers": "costs",
    "workers.api": "messages history",
    "workers.kv": "prefix",
    "orchestrator.state": "actions config events law links views",
    "orchestrator.policy": "handoff prefixes router",
    "orchestrator.lifecycle": "accept context deadlines ending handover machine phases recover "
    "release request spoken waiting",
    "orchestrator.virtual": "schedule",
    "orchestrator.replay": "batch caches driver faults handing leg memory outcome setup steps "
    "timelines tokens voice worker",
    "orchestrator.replay.lines": "account line model ramp reports shares",
}
MODULES = tuple(f"{room}.{name}" for room, names in ROOMS.items() for name in names.split())

# Compiled classes from which interpreted ones derive.
OPEN = frozenset({"BlockNames"})
