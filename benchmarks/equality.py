"""DESIGN's rule for equal tokens: equal, or first different at a near tie."""

from collections.abc import Sequence
from enum import StrEnum

# Two best logits nearer than this may change places with the order of floating-point sums.
NEAR_TIE = 0.05


class Verdict(StrEnum):
    """How two runs of the same request compare."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    DIFFERENT = "different"


def compare(
    ids: Sequence[int], reference: Sequence[int], margins: Sequence[float] | None
) -> Verdict:
    """Compare output ids; `margins` are the reference's distances of its two best logits.

    Nothing is compared after the first difference.
    """
    for index, (mine, theirs) in enumerate(zip(ids, reference, strict=False)):
        if mine != theirs:
            near = margins is not None and any(m <= NEAR_TIE for m in margins[index : index + 1])
            return Verdict.NEAR_TIE if near else Verdict.DIFFERENT
    return Verdict.EQUAL if len(ids) == len(reference) else Verdict.DIFFERENT
