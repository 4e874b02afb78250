"""How much of a sequence's KV a worker keeps: plain arithmetic, for engines and for whoever plans.

A worker without a budget keeps every token.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`budget`: below 1 a share of the sequence's tokens, from 1 on that many tokens.

    Tokens die as soon as `slack` more live than that, but never before the whole prompt is
    computed. The last `recent` and the `first` tokens live, and with `keep_prompt` all of the
    prompt.
    """

    budget: float
    slack: int = 128
    recent: int = 128
    first: int = 4
    keep_prompt: bool = False

    def __post_init__(self) -> None:
        if not self.budget > 0 or (self.budget >= 1 and self.budget != int(self.budget)):
            raise ValueError(
                f"budget: a share of the tokens below 1, or a whole number of them, "
                f"got {self.budget}"
            )
        for name, least in (("slack", 1), ("recent", 1), ("first", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: must be >= {least}, got {getattr(self, name)}")

    @property
    def plain(self) -> "Budget":
        """This much of what says more."""
        return Budget(**{field.name: getattr(self, field.name) for field in fields(Budget)})

    def allowed(self, tokens: int, prompt: int) -> int:
        """Tokens of a sequence of `tokens` that live on when some have just died."""
        wanted = int(self.budget * tokens) if self.budget < 1 else int(self.budget)
        protected = self.recent + max(self.first, prompt if self.keep_prompt else 0)
        return min(tokens, max(wanted, protected))

    def most(self, tokens: int, prompt: int) -> int:
        """The most that live at a time while it grows to `tokens`, its prompt once computed."""
        return min(tokens, self.allowed(tokens, prompt) + self.slack)

    def left(self, live: int, tokens: int, prompt: int) -> int:
        """How many of `live` live on once it has `tokens`, its prompt computed."""
        allowed = self.allowed(tokens, prompt)
        return allowed if live - allowed >= self.slack else live

    def prunes(self, prompt: int) -> bool:
        """Whether some of a prompt die as soon as all of it is computed."""
        return self.left(prompt, prompt, prompt) < prompt
