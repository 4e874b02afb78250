"""What one client sees of its request."""

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.state.actions import Emit, Fail, Finish
from orchestrator.virtual.promises import Breach, Promise
from orchestrator.virtual.setup import Ask


@dataclass(slots=True, kw_only=True)
class Client:
    """A client from its request to its end. Times are real ones, seconds."""

    ask: Ask
    asked_at: float
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each token came
    end: Finish | Fail | None = None
    ended_at: float | None = None
    left: bool = False  # it went away by itself
    cut_off: bool = False  # its gateway died
    gateway: str | None = None  # which one took the request; None: none was there
    report: Callable[[Breach], None]
    on_end: Callable[[], None]  # it was told the end

    @property
    def name(self) -> str:
        return self.ask.arrived.request

    @property
    def waits(self) -> bool:
        """It still expects something."""
        return self.end is None and not self.left and not self.cut_off

    def take(self, action: Emit | Finish | Fail, now: float) -> None:
        """What its gateway sends it."""
        if self.end is not None:
            self._breach(Promise.ENDS_ONCE, now, type(action).__name__)
        elif isinstance(action, Emit):
            if action.start != len(self.ids) or not action.ids:
                seen = f"{len(action.ids)} tokens at {action.start}, {len(self.ids)} were there"
                self._breach(Promise.IN_ORDER, now, seen)
            self.ids.extend(action.ids)
            self.times.extend([now] * len(action.ids))
        else:
            self.end, self.ended_at = action, now
            self.on_end()

    def _breach(self, promise: Promise, now: float, seen: str) -> None:
        self.report(Breach(promise=promise, who=self.name, at=now, seen=seen))
