"""How catch-up ends, routes, the queue: what the gateway's core chooses. Each rule broken once."""

from benchmarks.mutants.mutant import broken

L, P = "orchestrator.lifecycle.", "orchestrator.policy."

CHOICES = (
    # ------------------------------------------------ how catch-up ends
    broken(
        "handoff",
        "cut before main was heard",
        P + "handoff",
        ("if not view.main_heard:", "if False:"),
    ),
    broken(
        "handoff",
        "races that cannot be won",
        P + "handoff",
        ("RACE_RATIO = 0.9", "RACE_RATIO = 1.2"),
    ),
    broken(
        "handoff",
        "races without a bound",
        P + "handoff",
        ("return CUT if view.bound_passed else GO_ON", "return GO_ON"),
    ),
    broken(
        "handoff",
        "no pacing",
        L + "handover",
        ("    return handoff.pace_s(relay_step_s, main_step_s)\n", "    return None\n"),
    ),
    broken(
        "handoff",
        "a token released early delays the next",
        L + "release",
        ("on_time = now - pace < due_at <= now", "on_time = now - pace < due_at"),
    ),
    broken(
        "handoff",
        "a second relay is slowed to main's pace",
        L + "release",
        (
            "    if req.relay is not None:\n",
            "    if req.relay is not None and req.account.handoff_index is None:\n",
        ),
    ),
    broken(
        "handoff",
        "law taken over counts as steps",
        L + "request",
        (
            "if self.last_at is not None and start == self.last_end:",
            "if self.last_at is not None and end != start:",
        ),
    ),
    broken(
        "handoff",
        "an empty answer counts as a word",
        L + "accept",
        ("    if own:\n        leg.spoke_at", "    if True:\n        leg.spoke_at"),
    ),
    # ------------------------------------------------ routes, queue, workers
    broken(
        "route",
        "draining workers are chosen",
        P + "router",
        ("w.name not in ask.excluded and not w.draining]", "w.name not in ask.excluded]"),
    ),
    broken(
        "route",
        "a hit at main is ignored",
        P + "router",
        ("missing = ask.tokens - min(ask.hits.get(m.name, 0), ask.tokens)", "missing = ask.tokens"),
    ),
    broken(
        "route",
        "the line's queue is ignored",
        P + "router",
        ("max(0.0, link.waiting_bytes(now) / goodput - prefill.turn_s)", "0.0"),
    ),
    broken(
        "route",
        "a forced route without room fails",
        P + "router",
        ("found = found or list(", "_ = found or list("),
    ),
    broken(
        "route",
        "a dead pool fails new requests",
        L + "recover",
        ("if refusal is not None and (failed or pool_dead):", "if refusal is not None and failed:"),
    ),
    broken(
        "queue",
        "the queue has no end",
        L + "machine",
        ("if len(self._waiting) >= self.ctx.config.queue_limit:", "if False:"),
    ),
    broken(
        "queue",
        "new requests overtake the queue",
        L + "machine",
        ("refusal = Refusal.BUSY if self._waiting else None", "refusal = None"),
    ),
    broken(
        "queue",
        "a finished prefill keeps its slot",
        L + "accept",
        ("        ctx.free_slot(leg)\n", ""),
    ),
    broken(
        "queue",
        "a restarted worker keeps its legs",
        L + "machine",
        (
            "        if event.worker in self.ctx.world.workers:\n"
            "            self._drop_worker(event.worker, now)\n        self.ctx.world",
            "        self.ctx.world",
        ),
    ),
    broken("queue", "the salt is ignored", P + "prefixes", ("cache_salt, ids", '"", ids')),
)
