"""What befalls a replayed deployment, and when. Seconds of virtual time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFault:
    """Both ways of the line between two sites carry `factor` of their rate for a while; 0: cut."""

    between: tuple[str, str]
    at: float
    until: float
    factor: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.at < self.until and 0 <= self.factor < 1):
            raise ValueError(
                f"a line's fault from {self.at:g} to {self.until:g} s: {self.factor:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersLost:
    """The workers whose name is `name`, or begins with it and a slash (a site, a pool), die with
    all they have. New ones are there at `until`; None: never.
    """

    name: str
    at: float
    until: float | None = None

    def __post_init__(self) -> None:
        if self.at < 0 or (self.until is not None and self.until <= self.at):
            raise ValueError(f"{self.name} lost from {self.at:g} to {self.until} s")

    def hits(self, worker: str) -> bool:
        """Whether a worker is one of them."""
        return worker == self.name or worker.startswith(f"{self.name}/")


Fault = LineFault | WorkersLost
