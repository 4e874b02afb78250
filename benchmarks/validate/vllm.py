"""vLLM's scheduler over the engine room's steps: who computes when, in one engine.

One step decodes a token for every running sequence first and prefills with what is left of the
budget, first come, first served, as long as there are slots and KV. The scheduler plans one step
ahead of the card: what comes, or leaves, while step k runs changes step k + 2. Where KV is full
the newest sequence gives its own back and computes all of it again later, before all who wait.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.replay.batch import Batch
from orchestrator.replay.leg import ModelLeg
from orchestrator.replay.memory import BLOCK
from orchestrator.replay.prompt import Prompt
from workers.api.messages import Role, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`budget`: tokens of one step; `slots`: running sequences; None: KV is never short."""

    budget: int
    slots: int
    kv_blocks: int | None = None


@dataclass(slots=True, kw_only=True)
class Timing:
    """One request: when it asked, and when its first and last token came."""

    asked_at: float
    output: int
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.asked_at

    @property
    def e2e_s(self) -> float:
        return self.last_at - self.asked_at

    @property
    def tpot_s(self) -> float:
        return (self.last_at - self.first_at) / (self.output - 1)


def new_leg(number: int, prompt: int, output: int) -> ModelLeg:
    """A request that computes its prompt and decodes where it did."""
    start = Start(
        request=str(number),
        epoch=0,
        gateway="",
        role=Role.MAIN,
        prompt_ids=Prompt(prompt),  # type: ignore[arg-type]
        limit=output,
        reserve=0,
    )
    leg = ModelLeg(start=start, key=(start.request, 0))
    leg.reserved = 0
    leg.todo = prompt
    return leg


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """What waits and what runs. `batch` and `queue` are those of the steps that it feeds."""

    limits: Limits
    batch: Batch
    queue: deque[ModelLeg]
    timings: dict[str, Timing] = field(default_factory=dict)
    waiting: deque[ModelLeg] = field(default_factory=deque)
    running: dict[str, ModelLeg] = field(default_factory=dict)  # in the order of admission
    free: int = 0  # blocks
    _next: list[ModelLeg] = field(default_factory=list)  # admitted to the step after the next

    def __post_init__(self) -> None:
        self.free = self.limits.kv_blocks or 0

    @property
    def load(self) -> int:
        """As vLLM weighs an engine when it spreads requests."""
        return 4 * len(self.waiting) + len(self.running)

    @property
    def changes(self) -> bool:
        """Whether the step after the next may be another than the next."""
        return bool(self._next) or bool(self.queue and self.waiting)

    def arrive(self, leg: ModelLeg) -> None:
        self.waiting.append(leg)

    def ended(self, left: Sequence[ModelLeg], computed: Sequence[ModelLeg], now: float) -> None:
        """A step is over. `left` have reached their goals, `computed` have a new token."""
        behind = []
        for leg in left:
            if leg.own >= leg.end:
                self._finish(leg, now)
            else:
                behind.append(leg)
        for leg in computed:
            leg.own += 1
            timing = self.timings[leg.key[0]]
            timing.first_at = timing.first_at or now
            if leg.own >= leg.end:
                self._finish(leg, now)
            else:
                behind.append(leg)
        order = {key: place for place, key in enumerate(self.running)} if len(behind) > 1 else {}
        for leg in sorted(behind, key=lambda leg: order.get(leg.key[0], 0)):
            self._go_on(leg)
        self.queue.extend(self._next)
        self._next = []
        if not self.batch.size and not self.queue:
            self._admit()
            self.queue.extend(self._next)
            self._next = []
        self._admit()

    def _admit(self) -> None:
        """Those who may begin in the step after the next."""
        rest, room, decoding = 0, self.limits.budget - self.batch.size, self.batch.size
        for leg in self.queue:
            taken = min(leg.todo, room)
            room -= taken
            rest += leg.todo - taken
            decoding += leg.todo == taken
        room = self.limits.budget - decoding
        while self.waiting and rest < room and len(self.running) < self.limits.slots:
            leg = self.waiting[0]
            if not self._reserve(leg, leg.prompt + leg.own):
                return
            self.waiting.popleft()
            self.running[leg.key[0]] = leg
            self._next.append(leg)
            rest += leg.todo

    def _reserve(self, leg: ModelLeg, tokens: int) -> bool:
        """KV for so many tokens in all; whether there is any."""
        if self.limits.kv_blocks is None:
            leg.reserved = leg.prompt + leg.end
            return True
        blocks = -(-(tokens - leg.reserved) // BLOCK)
        if blocks > self.free:
            return False
        self.free -= blocks
        leg.reserved += blocks * BLOCK
        return True

    def _go_on(self, leg: ModelLeg) -> None:
        """Decode, with a new block where the last one is full."""
        if leg.key[0] not in self.running:
            return  # it has just made room for another
        while leg.prompt + leg.own > leg.reserved:
            if self._reserve(leg, leg.prompt + leg.own):
                continue
            newest = next(reversed(self.running.values()))
            self._preempt(newest)
            if newest is leg:
                return
        goal = min(leg.end, leg.reserved - leg.prompt + 1)
        self.batch.join(leg, goal)

    def _preempt(self, leg: ModelLeg) -> None:
        if leg.leaves_at is not None:
            self.batch.leave(leg)
        elif leg in self.queue:
            self.queue.remove(leg)
        elif leg in self._next:
            self._next.remove(leg)
        self._give_back(leg)
        leg.todo = leg.prompt + leg.own
        self.waiting.appendleft(leg)

    def _finish(self, leg: ModelLeg, now: float) -> None:
        self.timings[leg.key[0]].last_at = now
        self._give_back(leg)

    def _give_back(self, leg: ModelLeg) -> None:
        del self.running[leg.key[0]]
        if self.limits.kv_blocks is not None:
            self.free += leg.reserved // BLOCK
        leg.reserved = 0
