"""What a pool keeps of its sequences, and when it takes back what it does not."""

from dataclasses import dataclass
from enum import StrEnum


class Heads(StrEnum):
    """Whether all heads of all layers keep the same tokens; see `triattention`."""

    UNION = "union"  # all the same, those that some head wants most
    SHARES = "shares"  # all the same, those that all heads together are to pay most attention
    PER_HEAD = "per-head"  # each KV head its own, the same in every layer
    PER_LAYER_HEAD = "per-layer-head"  # each KV head of each layer its own


WHOLE = frozenset({Heads.UNION, Heads.SHARES})  # tokens live or die as one, so that slots go free


class Reclaim(StrEnum):
    """How the memory of dead tokens comes back."""

    REPACK = "repack"
    NAIVE = "naive"  # a block only when all of its tokens are dead: what others do, to compare with


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A policy by its name in `policies.POLICIES`, its budget, and what it may never name.

    `budget`: below 1 a share of the sequence's tokens, from 1 on that many tokens. Tokens die as
    soon as `slack` more live than that, but never before the whole prompt is computed. The last
    `recent` and the `first` tokens live, and with `keep_prompt` all of the prompt. A repack waits
    until `waste` of a sequence's places is exceeded while less than `low` of the pool's blocks is
    to be had. `calibration`: the file that TriAttention scores by; None: the user's own of this
    model.
    """

    policy: str
    budget: float
    slack: int = 128
    recent: int = 128
    first: int = 4
    keep_prompt: bool = False
    heads: Heads = Heads.UNION
    waste: float = 0.25
    low: float = 0.5
    reclaim: Reclaim = Reclaim.REPACK
    calibration: str | None = None

    def __post_init__(self) -> None:
        if not self.budget > 0 or (self.budget >= 1 and self.budget != int(self.budget)):
            raise ValueError(
                f"budget: a share of the tokens below 1, or a whole number of them, "
                f"got {self.budget}"
            )
        for name, least in (("slack", 1), ("recent", 1), ("first", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: must be >= {least}, got {getattr(self, name)}")
        for name in ("waste", "low"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be within 0 and 1, got {getattr(self, name)}")
        if self.heads is not Heads.UNION and self.policy != "triattention":
            raise ValueError(f"heads: {self.heads} is for triattention, not for {self.policy}")

    def allowed(self, tokens: int, prompt: int) -> int:
        """Tokens of a sequence of `tokens` that live on when some have just died."""
        wanted = int(self.budget * tokens) if self.budget < 1 else int(self.budget)
        protected = self.recent + max(self.first, prompt if self.keep_prompt else 0)
        return min(tokens, max(wanted, protected))

    def most(self, tokens: int, prompt: int) -> int:
        """The most that live at a time while it grows to `tokens`, its prompt once computed."""
        return min(tokens, self.allowed(tokens, prompt) + self.slack)
