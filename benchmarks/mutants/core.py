"""PROTOCOL's numbered rules of the gateway's core, each broken once. Rule 3 is the worker's."""

from benchmarks.mutants.mutant import broken

L, S, P = "orchestrator.lifecycle.", "orchestrator.state.", "orchestrator.policy."


CORE = (
    # ------------------------------------------------ 1: which tokens become law
    broken(
        "1",
        "history is not compared",
        S + "law",
        ("if self.history(index) != history:", "if False:"),
    ),
    broken(
        "1",
        "tokens within the law are not compared",
        S + "law",
        ("return list(ids[: len(known)]) == known", "return True"),
    ),
    broken(
        "1",
        "rank is not compared",
        L + "accept",
        ("if authority is not None and leg.rank < authority.rank:", "if False:"),
    ),
    broken(
        "1",
        "future runs are dropped",
        L + "accept",
        (
            "    if run.index > length:\n        _park(leg, run)\n",
            "    if run.index > length:\n",
        ),
    ),
    broken(
        "1",
        "future runs are kept without bound",
        L + "accept",
        ("if len(leg.parked) > PARKED_RUNS:", "if False:"),
    ),
    broken(
        "1",
        "parked runs are not looked at again",
        L + "accept",
        ("    moved = True\n", "    moved = False\n"),
    ),
    broken(
        "1",
        "a late and different run is not fed again",
        L + "accept",
        ("    if leg.deaf:\n        leg.sent = leg.fed\n", ""),
    ),
    broken(
        "1",
        "what is known already is accepted again",
        L + "accept",
        ("ids = run.ids[skip:]", "ids = run.ids"),
    ),
    broken(
        "1",
        "a run from the wrong worker counts",
        L + "machine",
        ("if worker != leg.worker and not _source_tells(req, worker, message):", "if False:"),
    ),
    broken(
        "1",
        "the history of a main that is alone is not compared",
        L + "accept",
        ("if law.history(index) != hist:", "if False:"),
    ),
    broken(
        "1",
        "a main that is alone tells end-of-text like any other token",
        L + "accept",
        (" or token in spec.stop_ids:", ":"),
    ),
    broken(
        "1",
        "a main that is alone goes on beyond the limit",
        L + "accept",
        (" or end >= spec.limit", ""),
    ),
    # ------------------------------------------------ 2: one authority
    broken(
        "2",
        "main's first token stops nobody",
        L + "accept",
        ("if first and leg.role is MAIN:", "if False:"),
    ),
    broken(
        "2",
        "main's first token leaves the hold",
        L + "accept",
        ("if o is not leg]:", "if o is not leg and o.role is RELAY]:"),
    ),
    # ------------------------------------------------ 4: epochs and dead legs
    broken(
        "4",
        "epochs are used again",
        L + "context",
        ("req.next_epoch += 1", "req.next_epoch = len(req.legs) + 1"),
    ),
    broken(
        "4",
        "a dead leg that decodes is left alone",
        L + "machine",
        ("if not isinstance(message, TokenRun | Landed) or", "if True or"),
    ),
    broken(
        "4",
        "a lost leg is not stopped",
        L + "context",
        ("        self.send(leg.worker, Stop(request=req.name, epoch=leg.epoch))\n", ""),
    ),
    # ------------------------------------------------ 5: pause and resume
    broken(
        "5",
        "resume has the pause's number",
        L + "recover",
        ("    relay.pause_seq += 1\n", ""),
    ),
    broken(
        "5",
        "a paused relay never resumes",
        L + "recover",
        ("if relay is None or not relay.paused or", "if True or"),
    ),
    broken(
        "5",
        "an old paused is believed",
        L + "spoken",
        ("if not leg.paused or message.seq != leg.pause_seq:", "if not leg.paused:"),
    ),
    broken(
        "5",
        "a paused relay keeps its slot",
        L + "spoken",
        ("    ctx.free_slot(leg)\n", ""),
    ),
    broken(
        "5",
        "a lost pause is not repeated",
        L + "deadlines",
        ("if relay.pause_at is None else inf", "if False else inf"),
    ),
    # ------------------------------------------------ 6: silence
    broken(
        "6",
        "a silent leg is asked but not fed",
        L + "deadlines",
        ("if leg.role is not PREFILL and leg.fed < len(req.law.ids):", "if False:"),
    ),
    broken(
        "6",
        "no back-off",
        L + "deadlines",
        ("min(2 * leg.resync_wait, RESYNC_MOST_S)", "leg.resync_wait"),
    ),
    broken(
        "6",
        "a leg that speaks past a lost token is not asked",
        L + "request",
        ("return leg.deaf or (bool(leg.parked) and self._alone(leg))", "return leg.deaf"),
    ),
    broken(
        "6",
        "a leg that speaks on deaf is not fed again",
        L + "request",
        (
            "return leg.deaf or (bool(leg.parked) and self._alone(leg))",
            "return bool(leg.parked) and self._alone(leg)",
        ),
    ),
    broken(
        "6",
        "feeds do not overlap",
        L + "machine",
        ("max(leg.fed, leg.sent - FEED_OVERLAP)", "leg.sent"),
    ),
    broken(
        "6",
        "a reconnected worker is not asked",
        L + "machine",
        (
            "                deadlines.ask_again(self.ctx, req, leg, now)\n",
            "                pass\n",
        ),
    ),
    broken(
        "6",
        "a prefill is asked for what comes after its token",
        L + "deadlines",
        (
            "start = leg.base if leg.role is PREFILL else len(req.law.ids)",
            "start = len(req.law.ids)",
        ),
    ),
    # ------------------------------------------------ 7: recovery
    broken(
        "7",
        "a refusal is charged",
        L + "spoken",
        (
            "    req.refused = True\n    ctx.stop_leg(req, leg)\n",
            "    lose_leg(ctx, req, leg, exclude=True)\n",
        ),
    ),
    broken(
        "7",
        "who refused is asked again at once",
        L + "spoken",
        ("    req.excluded.add(leg.worker)\n", ""),
    ),
    broken(
        "7",
        "a lost source is charged to who waits",
        L + "recover",
        (
            "        ctx.stop_leg(req, leg)  # nothing can reach it; uncharged\n",
            "        lose_leg(ctx, req, leg, exclude=False)\n",
        ),
    ),
    broken(
        "7",
        "a failed source is tried again",
        L + "recover",
        (" and leg.epoch not in req.failed_sources:", ":"),
    ),
    broken(
        "7",
        "a relay is sent to a failed source",
        L + "recover",
        ("        or prefill.epoch in req.failed_sources\n", ""),
    ),
    broken(
        "7",
        "main is tried for ever",
        L + "recover",
        ("return req.lost[MAIN] < ctx.config.attempts.main", "return True"),
    ),
    broken(
        "7",
        "the relay that finishes is lost for good",
        L + "context",
        ("            req.relay_finishes = False\n", ""),
    ),
    broken(
        "7",
        "restarts without end",
        L + "recover",
        ("if req.restarts >= ctx.config.attempts.restarts:", "if False:"),
    ),
    broken(
        "7",
        "a restart forgets the law",
        L + "context",
        ("law_ids=tuple(req.law.ids),", "law_ids=(),"),
    ),
    broken(
        "7",
        "a loss waits for the next look",
        L + "recover",
        ("    req.retry_at = None  # all that is missing is looked at anew\n", ""),
    ),
    broken(
        "7",
        "another relay is never tried",
        L + "recover",
        ("< RELAY_WORTH_S", "< 1e9"),
    ),
    # ------------------------------------------------ 8: token 0 and armed legs
    broken(
        "8",
        "main is fed only once it has landed",
        L + "machine",
        (
            "if leg.role is not PREFILL and leg.sent < law:",
            "if leg.landed and leg.sent < law:",
        ),
    ),
    broken(
        "8",
        "anybody may give token 0",
        L + "accept",
        ("if not length and leg.role is not PREFILL:", "if False:"),
    ),
    # ------------------------------------------------ 9: memory set aside, refusals
    broken(
        "9",
        "main sets too little aside",
        L + "context",
        ("            return req.prompt + req.limit\n", "            return have\n"),
    ),
    broken(
        "9",
        "the relay sets too little aside",
        L + "context",
        ("have + min(req.remaining, 2 * max(likely, 16))", "have"),
    ),
    broken(
        "9",
        "a worker without room is chosen",
        P + "router",
        ("w.room if only_with_room else w.up.kv_total_tokens", "w.up.kv_total_tokens"),
    ),
    broken(
        "9",
        "bookings are not returned",
        L + "context",
        ("view.unbook(leg.key)", "view.bookings"),
    ),
    # ------------------------------------------------ 10: the end
    broken(
        "10",
        "max_tokens=1 starts a main",
        L + "recover",
        ("    if req.remaining > 1:\n", "    if True:\n"),
    ),
    broken(
        "10",
        "the limit is one too many",
        L + "accept",
        ("keep = min(len(ids), spec.limit - base)", "keep = min(len(ids), spec.limit + 1 - base)"),
    ),
    broken(
        "10",
        "min_tokens is ignored",
        L + "accept",
        (" and base + i >= spec.min_tokens:", ":"),
    ),
    broken(
        "10",
        "tokens after a stop string are billed",
        L + "accept",
        (
            "keep, reason = complete - base, FinishReason.STOP",
            "reason = FinishReason.STOP",
        ),
    ),
    broken(
        "10",
        "a failure is told before tokens that are owed",
        L + "machine",
        (
            "        release(ctx, req, now)\n        if req.over:\n",
            "        if req.failed is None:\n            release(ctx, req, now)\n"
            "        if req.over:\n",
        ),
    ),
    # ------------------------------------------------ 11: KV before the relay
    broken(
        "11",
        "a useless relay is not stopped",
        L + "spoken",
        ("if relay is not None and not relay.landed and not relay.accepted:", "if False:"),
    ),
    broken(
        "11",
        "a relay that decodes is stopped",
        L + "spoken",
        (
            "if relay is not None and not relay.landed and not relay.accepted:",
            "if relay is not None:",
        ),
    ),
    # ------------------------------------------------ 12: the hold and its copies
    broken(
        "12",
        "the hold is freed when main has landed",
        L + "recover",
        (
            "    if not req.relay_finishes or prefill is None or not prefill.produced:\n",
            "    if prefill is None or not prefill.produced:\n",
        ),
    ),
    broken(
        "12",
        "the relay's copy is never sent",
        L + "recover",
        ("relay if relay is not target and relay and relay.landed else None", "None"),
    ),
    broken(
        "12",
        "the KV of the law is not sent",
        L + "context",
        ("stop=stop,", "stop=prompt,"),
    ),
    # ------------------------------------------------ 13: deadlines
    broken("13", "no deadline for prefill", L + "deadlines", ("+ limits.prefill,", "+ 1e9,")),
    broken("13", "no deadline for KV", L + "deadlines", ("+ limits.kv,", "+ 1e9,")),
    broken(
        "13", "no deadline for first tokens", L + "deadlines", ("+ limits.first_token", "+ 1e9")
    ),
    broken("13", "no deadline for silence", L + "deadlines", ("+ limits.silence", "+ 1e9")),
    broken(
        "13", "no deadline for the cut", L + "deadlines", ("+ ctx.config.deadlines.cut,", "+ 1e9,")
    ),
    broken("13", "no deadline for the queue", L + "deadlines", ("+ limits.queue,", "+ 1e9,")),
    broken("13", "no deadline for the request", L + "deadlines", ("+ limits.request,", "+ 1e9,")),
    broken(
        "13",
        "a deadline that is not later than now",
        L + "deadlines",
        ("    leg.resync_after = now\n", ""),
    ),
    broken(
        "13",
        "a late KV is not given to the relay",
        L + "deadlines",
        ("        req.relay_finishes = True\n", "        pass\n"),
    ),
)
