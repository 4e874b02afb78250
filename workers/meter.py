"""Moving averages of what a worker's steps take."""

from dataclasses import dataclass

_WEIGHT = 0.1  # of the newest step


@dataclass(slots=True)
class StepMeter:
    """Seconds per decode step and prefill tokens per second; None: not yet known."""

    step_s: float | None = None
    prefill_tokens_per_s: float | None = None

    def measure(self, took_s: float, prefill_tokens: int, *, decodes: bool) -> None:
        """Learn from one step; of a mixed one, what decoding takes is not counted as prefill."""
        if took_s <= 0:
            return
        if prefill_tokens == 0:
            self.step_s = _average(self.step_s, took_s)
            return
        decode_s = min(self.step_s or 0.0, took_s / 2) if decodes else 0.0
        rate = prefill_tokens / (took_s - decode_s)
        self.prefill_tokens_per_s = _average(self.prefill_tokens_per_s, rate)


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
