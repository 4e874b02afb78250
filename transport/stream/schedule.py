"""Whose piece goes next over the link: shortest remaining first, with ageing and weights."""

# Bytes of rank that a second of waiting is worth, as a share of the line's bytes per second.
# 0.004-0.012 is good. Chosen by the table of `pdd bench schedule --seeds 24`: P99 is at
# its best and flat from 0.004 to 0.006, whether sizes are much the same or far apart, and the more
# ageing, the shorter the longest transfer. Without any, transfers of much the same size end up a
# fifth worse at P99 than over a connection for each.
AGEING_SHARE = 0.005

# Until a line has been measured. Too low a guess only means less ageing for the first transfers.
UNMEASURED_LINE_BYTES_PER_S = 1e9 / 8


def ageing_bytes_per_s(line_bytes_per_s: float | None) -> float:
    """How fast waiting lowers a rank on a line of that goodput (None: not measured yet)."""
    if line_bytes_per_s is None:
        line_bytes_per_s = UNMEASURED_LINE_BYTES_PER_S
    return AGEING_SHARE * line_bytes_per_s


def rank(
    remaining_bytes: float, waited_s: float, weight: float, ageing_bytes_per_s: float
) -> float:
    """A transfer's place in the queue, in bytes; the lowest goes first.

    `remaining_bytes` are those not yet handed to a connection, `waited_s` the time since the
    transfer began, served or not. `weight`, above 0, makes a transfer count as if it were that
    many times smaller; it does not speed ageing. So all ranks fall at one speed and nobody
    starves: a transfer of R bytes is overtaken only by those that begin within R / (weight x
    ageing) seconds after it, whatever their weights. If weights sped ageing, a light transfer
    would be overtaken by heavier ones that began long after that.

    Between transfers that wait, the order never changes; serving one only lowers its rank. So
    ranks taken as of one moment, whichever (`waited_s` may be negative), can stay in a heap, and
    serving a transfer in pieces does not make two of them take turns. Equal ranks: the caller
    compares the beginning, then the name.
    """
    return remaining_bytes / weight - ageing_bytes_per_s * waited_s
