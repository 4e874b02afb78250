"""When a modelled worker's legs speak.

A leg says its first token as it comes, and what it has whenever it stops, is asked, or its worker
dies; a relay also when it was silent for `report_s`, as main may be lost meanwhile. In between its
tokens are known to nobody, as nobody acts on them. Around a handover it says each token: see
`handing`.
"""

from collections import deque

from orchestrator.replay.batch import SLACK, Batch
from orchestrator.replay.leg import LegKey, ModelLeg
from orchestrator.virtual.schedule import Schedule
from workers.api.messages import RELAY, UpMessage


class Voice:
    """What a worker has to say: `up` waits to be sent. `aloud`: decoding legs that say each token.

    `every_step`: all do.
    """

    def __init__(
        self, schedule: Schedule, batch: Batch, *, report_s: float, every_step: bool
    ) -> None:
        self.up: list[UpMessage] = []
        self.aloud: dict[LegKey, ModelLeg] = {}
        self.every_step = every_step
        self._schedule = schedule
        self._batch = batch
        self._report_s = report_s
        self.reports: deque[tuple[float, ModelLeg]] = deque()  # when a relay speaks next

    def own(self, leg: ModelLeg) -> int:
        """A leg's output tokens, by the last step that has ended."""
        return leg.own if leg.leaves_at is None else leg.offset + self._batch.clock

    def speak(self, leg: ModelLeg) -> None:
        """A leg says what it has not said yet."""
        own = leg.own if leg.leaves_at is None else leg.offset + self._batch.clock
        if own > leg.said:
            self.up.append(leg.run(leg.said, own))
            leg.said = own

    def answer(self, leg: ModelLeg, start: int) -> None:
        """A leg says what it has from `start` on."""
        leg.said = own = self.own(leg)
        self.up.append(leg.run(min(start, own), own))

    def joined(self, leg: ModelLeg) -> None:
        """A leg begins to decode."""
        if leg.fresh or leg.racing or self.every_step:
            self.aloud[leg.key] = leg
        if leg.start.role is RELAY and not leg.reports:
            leg.reports = True
            self.reports.append((self._schedule.now + self._report_s, leg))

    def left(self, leg: ModelLeg) -> None:
        """It decodes no longer."""
        if self.aloud:
            self.aloud.pop(leg.key, None)

    def race(self, leg: ModelLeg) -> None:
        """From now on a leg says every token as it comes."""
        leg.racing = True
        if leg.leaves_at is not None:
            self.aloud[leg.key] = leg

    def calm(self, leg: ModelLeg) -> None:
        """It has no need to any more."""
        leg.racing = False
        if not leg.fresh and not self.every_step:
            self.aloud.pop(leg.key, None)

    def due(self) -> float | None:
        """When a relay has been silent for long enough."""
        reports = self.reports
        while reports and reports[0][1].leaves_at is None:
            reports.popleft()[1].reports = False
        return reports[0][0] if reports else None

    def after_step(self) -> None:
        """A step is over: who has to speaks."""
        if self.aloud:
            for key, leg in list(self.aloud.items()):
                self.speak(leg)
                leg.fresh = False
                if not (leg.racing or self.every_step):
                    del self.aloud[key]
        reports, now = self.reports, self._schedule.now
        while reports and reports[0][0] <= now + SLACK:
            leg = reports.popleft()[1]
            leg.reports = leg.leaves_at is not None
            if leg.reports:
                self.speak(leg)
                reports.append((now + self._report_s, leg))
