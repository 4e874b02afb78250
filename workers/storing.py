"""Legs and the site's stores: who waits for blocks from there, and what is to be kept there. Pure.

A prefill leg that finds less than its prompt in the engine's cache first asks the stores for the
rest; so does a main leg, before its source is told what is missing. Whoever loads has until what
it replaces would have taken: then the leg goes on with what has come.
"""

from workers.api.messages import Role
from workers.engines.base import SeqId
from workers.kv.prefix import CANONICAL_TOKENS
from workers.legs import Leg
from workers.meter import StepMeter
from workers.outputs import LoadBlocks, Output, SaveBlocks
from workers.runner import Runner

LEAST_S, MOST_S = 0.1, 10.0
UNKNOWN_S = 2.0  # before the first prefill has been measured


class Storing:
    """See the module's docstring."""

    def __init__(self, runner: Runner, meter: StepMeter) -> None:
        self._runner = runner
        self._meter = meter
        self._until: dict[SeqId, float] = {}

    def begin(self, leg: Leg, now: float) -> list[Output]:
        """A leg has opened: what it lacks is asked for, if it is a block or more."""
        start, engine = leg.start, self._runner.engine
        if start.role is Role.RELAY:
            return []  # its source is in its site, and sends while it computes
        prefills = start.role is Role.PREFILL
        known = engine.length(leg.seq) - 1 if prefills else leg.import_tokens
        stop = known // CANONICAL_TOKENS * CANONICAL_TOKENS
        if stop - leg.have < CANONICAL_TOKENS:
            return []
        if prefills:
            leg.have = engine.open_import(leg.seq, stop)
            leg.landed = False
        leg.loading = True
        rate = self._meter.prefill_tokens_per_s
        limit_s = UNKNOWN_S if rate is None else (stop - leg.have) / rate
        limit_s = min(max(limit_s, LEAST_S), MOST_S)
        self._until[leg.seq] = now + limit_s
        order = LoadBlocks(
            seq=leg.seq,
            tokens=(*start.prompt_ids, *start.law_ids)[:stop],
            cache_salt=start.cache_salt,
            have=leg.have,
            prefill_tokens_per_s=rate if prefills else None,
            sent_otherwise=not prefills,
            limit_s=limit_s,
        )
        return [order]

    def done(self, seq: SeqId) -> Leg | None:
        """This leg takes over what has come; None: it does not wait for anything."""
        self._until.pop(seq, None)
        leg = self._runner.legs.get(seq)
        if leg is None or not leg.loading:
            return None
        leg.loading = False
        if leg.landed:  # somebody on this worker shared all of it meanwhile
            return None
        engine = self._runner.engine
        if leg.start.role is Role.PREFILL:
            leg.have = engine.keep_import(seq)
            leg.landed = True
        else:
            leg.have = engine.imported(seq)
        return leg

    def overdue(self, now: float) -> list[SeqId]:
        """Legs that have waited long enough."""
        return [seq for seq, until in self._until.items() if until <= now]

    def next_deadline(self) -> float | None:
        return min(self._until.values(), default=None)

    def keep(self, leg: Leg) -> list[Output]:
        """Whole blocks of a leg's computed tokens are worth keeping."""
        if not leg.landed:
            return []
        computed = self._runner.engine.computed(leg.seq)
        stop = computed // CANONICAL_TOKENS * CANONICAL_TOKENS
        if stop == 0:
            return []
        start = leg.start
        tokens = (*start.prompt_ids, *leg.own)[:stop]
        return [SaveBlocks(tokens=tokens, cache_salt=start.cache_salt, tenant=start.tenant)]
