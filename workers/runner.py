"""The live legs, and what the engine is told to do for each."""

from workers import answers
from workers.api.messages import Role, Start
from workers.engines.base import Engine, NoRoom, SeqId, SequenceSpec
from workers.legs import Leg
from workers.outputs import Output


class Runner:
    """Keeps the engine's goals in line with what the legs want.

    `starved`: legs whose next token, or whose law, has no KV memory; they are tried again after
    each step, oldest first. The blocks of a running leg are never taken away.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.legs: dict[SeqId, Leg] = {}
        self._starved: dict[SeqId, None] = {}

    def open(self, start: Start, seq: SeqId) -> Leg:
        """Set a leg's memory aside. Raises NoRoom and leaves nothing behind then."""
        known = start.law_ids
        imports = start.role is not Role.PREFILL
        spec = SequenceSpec(
            tokens=(*start.prompt_ids, *(known[: start.cover] if imports else known)),
            prompt_len=len(start.prompt_ids),
            reserve=max(start.reserve, len(start.prompt_ids) + len(known) + 1),
            sampling=start.sampling,
            stop_ids=start.stop_ids,
            min_tokens=start.min_tokens,
            cache_salt=start.cache_salt,
        )
        found = self.engine.open(seq, spec, reuse=not imports)
        leg = self.legs[seq] = Leg.opened(start, seq, spec)
        leg.have = self.engine.open_import(seq, leg.import_tokens) if imports else found
        return leg

    def share(self, source: Leg, leg: Leg) -> None:
        """Give an importing leg the blocks of a source on this worker."""
        self.engine.share(source.seq, leg.seq, leg.import_tokens)

    def close(self, leg: Leg) -> None:
        """Give a leg's memory back."""
        self.engine.close(leg.seq)
        del self.legs[leg.seq]
        self._starved.pop(leg.seq, None)

    def aim(self, leg: Leg) -> list[Output]:
        """Tell the engine what the leg wants now; a pause that is reached takes effect."""
        out = answers.paused(leg) if leg.settle_pause() else []
        self._starved.pop(leg.seq, None)
        if not self._cut(leg):
            self._wait_for_room(leg)
            return out
        target = leg.target()
        if target is None and self._export_waits(leg):
            target = len(leg.own)
        if target is None:
            self._rest(leg)
            return out
        samples = target > len(leg.own)
        if not self._has_room(leg, leg.prompt_len + len(leg.own) + samples):
            self._wait_for_room(leg)
            return out
        if leg.applied < len(leg.own):
            self.engine.append(leg.seq, leg.own[leg.applied :])
            leg.applied = len(leg.own)
        leg.goal = min(leg.prompt_len + target, leg.reserved)
        self.engine.set_goal(leg.seq, leg.goal)
        return out

    def feed_starved(self) -> list[Output]:
        """Blocks may have come free: try the legs that wait for some again."""
        out: list[Output] = []
        for seq in list(self._starved):
            out += self.aim(self.legs[seq])
        return out

    def _wait_for_room(self, leg: Leg) -> None:
        self._starved[leg.seq] = None
        self._rest(leg)

    def _rest(self, leg: Leg) -> None:
        leg.goal = None
        self.engine.set_goal(leg.seq, None)

    def _cut(self, leg: Leg) -> bool:
        """Take back what own history lost; False: a shared block had to be copied, no room."""
        if leg.cut is None:
            return True
        try:
            self.engine.truncate(leg.seq, leg.prompt_len + leg.cut)
        except NoRoom:
            return False
        leg.cut = None
        return True

    def _export_waits(self, leg: Leg) -> bool:
        """Some export wants KV of own tokens that nobody would compute otherwise."""
        if not leg.landed or leg.export_stop <= leg.prompt_len:
            return False
        computed = self.engine.computed(leg.seq)
        return computed < min(leg.export_stop, leg.prompt_len + len(leg.own))

    def _has_room(self, leg: Leg, tokens: int) -> bool:
        if tokens <= leg.reserved:
            return True
        block = self.engine.info.block_size
        wanted = -(-tokens // block) * block
        try:
            self.engine.grow(leg.seq, wanted)
        except NoRoom:
            return False
        leg.reserved = wanted
        return True
