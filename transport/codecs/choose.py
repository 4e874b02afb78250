"""Which codec brings raw KV over fastest, from figures measured beforehand.

Free of compiled code, so that a file can be checked without loading any.
"""

from dataclasses import dataclass

LOSSLESS = "lossless"  # the fastest that keeps every bit
LOSSY = "lossy"  # the fastest of all

_UNMEASURED = "huffman"  # of a line not measured yet: exact, and one core fills 3 Gbps with it
_LEAST_CORES = 0.1  # a sender that is busy still sends
_WORTH_LOSS = 1.05  # so much faster something lossy must be


@dataclass(frozen=True, slots=True)
class Speed:
    """One core's: raw bytes per coded byte, and raw bytes per second."""

    lossless: bool
    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


# What `pdd bench codec` measures, pieces of 256 tokens, one core of an AMD EPYC (Zen 3) that others
# used too: an idle one is up to twice as fast. In the order of fidelity, which decides ties.
SPEEDS = {
    "raw": Speed(True, 1.00, 4350e6, 11700e6),
    "huffman": Speed(True, 1.50, 712e6, 1300e6),
    "zstd": Speed(True, 1.46, 219e6, 673e6),
    "int8": Speed(False, 1.97, 1990e6, 2620e6),
    "int8+zstd": Speed(False, 2.10, 634e6, 1020e6),
    "k8v4": Speed(False, 2.53, 957e6, 902e6),
    "int4": Speed(False, 3.83, 380e6, 605e6),
}
POLICIES = (LOSSLESS, LOSSY, *SPEEDS)


def check_policy(policy: str) -> None:
    """Raises ValueError for one that is not in POLICIES."""
    if policy not in POLICIES:
        raise ValueError(f"codec {policy!r}: known are {', '.join(POLICIES)}")


def may_lose(policy: str) -> bool:
    """Whether KV may arrive rounded under a policy that is in POLICIES."""
    return policy == LOSSY or (policy in SPEEDS and not SPEEDS[policy].lossless)


def choose(policy: str, *, goodput_bytes_per_s: float | None, free_cores: float) -> str:
    """The codec for the next chunk. Raises ValueError for a policy that is not in POLICIES.

    A codec's own name always gives that codec. `goodput_bytes_per_s` is of coded bytes, None
    while nothing has been measured. `free_cores` are the sender's; the receiver is taken to have
    as many.
    """
    check_policy(policy)
    if policy in SPEEDS:
        return policy
    if goodput_bytes_per_s is None:
        return _UNMEASURED
    cores = max(free_cores, _LEAST_CORES)
    rates = {
        name: min(
            goodput_bytes_per_s * speed.ratio,
            cores * speed.encode_bytes_per_s,
            cores * speed.decode_bytes_per_s,
        )
        for name, speed in SPEEDS.items()
    }
    exact = max((name for name in rates if SPEEDS[name].lossless), key=rates.__getitem__)
    if policy == LOSSLESS:
        return exact
    best = max(rates, key=rates.__getitem__)
    return best if rates[best] > _WORTH_LOSS * rates[exact] else exact
