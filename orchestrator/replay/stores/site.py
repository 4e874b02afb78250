"""A pool's way to its site's stores: what a leg loads, by the workers' own choice."""

from collections.abc import Callable, Sequence

from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.memory import Memory
from orchestrator.replay.prompt import blocks_of
from orchestrator.replay.setup import ModelSpec
from orchestrator.replay.stores.tiers import ModelStore, key
from workers.api.messages import PREFILL, RELAY
from workers.storing import MOST_S
from workers.tiers.blocks import Tier
from workers.tiers.choice import Place, spared_s, worth_loading


class PoolStores:
    """The stores of a worker's site, its pool's own first; at least one.

    `line_bytes_per_s`: of the best line to another site; None: there is none.
    """

    def __init__(
        self, stores: Sequence[ModelStore], spec: ModelSpec, line_bytes_per_s: float | None
    ) -> None:
        self._stores = stores
        self._spec = spec
        self._line_bytes_per_s = line_bytes_per_s

    def load(self, leg: ModelLeg, memory: Memory, now: float) -> bool:
        """Let a new leg's blocks come, as far as that is worth it; whether it asks at all.

        They are here at `leg.loaded_at`: then a prefill computes what is left. Of main's KV what
        is still lacking is sent. See `workers.storing`.
        """
        names, prefills = memory.lacking(leg), leg.start.role is PREFILL
        line = self._line_bytes_per_s
        if not names or leg.start.role is RELAY or not (prefills or line):
            return False
        tokens, costs = memory.block_tokens, self._spec.costs

        def otherwise_s(blocks: int) -> float:
            if prefills or line is None:
                return spared_s(costs, leg.prompt + leg.law - leg.hit, leg.hit, blocks * tokens)
            return blocks * tokens * self._spec.kv_bytes_per_token / line

        taken, leg.loaded_at = self._take(
            [key(name) for name in names],
            tokens * self._spec.kv_bytes_per_token,
            now,
            otherwise_s,
        )
        memory.load(leg, sum(taken.values()))
        leg.from_memory, leg.from_files = (taken[tier] * tokens for tier in Tier)
        return True

    def keep(self, leg: ModelLeg) -> None:
        """All KV of a leg's prompt is here: what no store has of it goes to the pool's own.

        A relay's source is in its site, and does that.
        """
        if leg.start.role is not RELAY:
            keys = [key(name) for name in blocks_of(leg.start.prompt_ids)]
            places = self._places(keys)
            self._stores[0].put([k for k, place in zip(keys, places, strict=True) if not place])

    def _take(
        self,
        keys: Sequence[bytes],
        block_bytes: int,
        now: float,
        otherwise_s: Callable[[int], float],
    ) -> tuple[dict[Tier, int], float]:
        """How many of the leading blocks come from each tier, and when all of them are here.

        A store gives one load after the other, and who has to wait for it counts that too.
        """
        places = self._places(keys)
        rates = _Rates(self._stores, now)
        depth = worth_loading(places, block_bytes, rates, now, otherwise_s, limit_s=MOST_S)
        at = now + max(store.spec.answer_s for store in self._stores)
        taken = dict.fromkeys(Tier, 0)
        for number, store in enumerate(self._stores):
            wanted = [
                (name, place.tier)
                for name, place in zip(keys[:depth], places, strict=False)
                if place is not None and place.store == number
            ]
            if not wanted:
                continue
            at = max(at, store.free_at)
            for _, tier in wanted:
                at += block_bytes / store.spec.bytes_per_s(tier)
                taken[tier] += 1
            store.free_at = at
            store.loaded([name for name, _ in wanted])
        return taken, at

    def _places(self, keys: Sequence[bytes]) -> list[Place | None]:
        places: list[Place | None] = [None] * len(keys)
        for number, store in enumerate(self._stores):
            lacking = [n for n, place in enumerate(places) if place is None]
            for n, tier in zip(lacking, store.find([keys[n] for n in lacking]), strict=True):
                places[n] = None if tier is None else Place(number, tier)
        return places


class _Rates:
    """What loading takes now: known, not measured."""

    def __init__(self, stores: Sequence[ModelStore], now: float) -> None:
        self._stores = stores
        self._now = now

    def latency_s(self, store: int) -> float:
        model = self._stores[store]
        return max(model.spec.answer_s, model.free_at - self._now)

    def bytes_per_s(self, place: Place, now: float) -> float:
        return self._stores[place.store].spec.bytes_per_s(place.tier)
