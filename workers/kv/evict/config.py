"""What a pool keeps of its sequences, and when it takes back what it does not."""

from dataclasses import dataclass
from enum import StrEnum

from workers.api.budget import Budget


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
class Eviction(Budget):
    """A policy by its name in `policies.POLICIES`, with its budget, and how memory comes back.

    A repack waits until `waste` of a sequence's places is exceeded while less than `low` of the
    pool's blocks is to be had. `calibration`: the file that TriAttention scores by; None: the
    user's own of this model.
    """

    policy: str
    heads: Heads = Heads.UNION
    waste: float = 0.25
    low: float = 0.5
    reclaim: Reclaim = Reclaim.REPACK
    calibration: str | None = None

    def __post_init__(self) -> None:
        Budget.__post_init__(self)
        for name in ("waste", "low"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be within 0 and 1, got {getattr(self, name)}")
        if self.heads is not Heads.UNION and self.policy != "triattention":
            raise ValueError(f"heads: {self.heads} is for triattention, not for {self.policy}")
