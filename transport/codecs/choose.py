"""Which codec brings raw KV over fastest, from figures measured beforehand.

Free of compiled code, so that a file can be checked without loading any.
"""

from dataclasses import dataclass

LOSSLESS = "lossless"  # the fastest that keeps every bit
LOSSY = "lossy"  # the fastest of all

_UNMEASURED = "huffman"  # of a line not measured yet: exact, and one core fills 5 Gbps with it
_LEAST_CORES = 0.1  # a sender that is busy still sends
_WORTH_LOSS = 1.05  # so much faster something lossy must be


@dataclass(frozen=True, slots=True)
class Speed:
    """One core's: raw bytes per coded byte, and raw bytes per second."""

    lossless: bool
    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


# Measured with `pdd bench codec` on one core of an AMD EPYC (Zen 3), in the order of fidelity. A
# machine twice as fast would move the points where one codec overtakes another, not their order.
SPEEDS = {
    "raw": Speed(True, 1.00, 3700e6, 13500e6),
    "huffman": Speed(True, 1.51, 850e6, 1600e6),
    "zstd": Speed(True, 1.45, 320e6, 770e6),
    "int8": Speed(False, 1.97, 2600e6, 5000e6),
    "int8+zstd": Speed(False, 2.10, 450e6, 750e6),
    "k8v4": Speed(False, 2.58, 2000e6, 2500e6),
    "int4": Speed(False, 4.10, 450e6, 800e6),
}
POLICIES = (LOSSLESS, LOSSY, *SPEEDS)


def known_policy(name: str) -> bool:
    return name in POLICIES


def choose(policy: str, *, goodput_bytes_per_s: float | None, free_cores: float) -> str:
    """The codec for the next chunk. Raises ValueError for a policy that is not in POLICIES.

    A codec's own name always gives that codec. `goodput_bytes_per_s` is of coded bytes, None
    while nothing has been measured. `free_cores` are the sender's; the receiver is taken to have
    as many.
    """
    if policy in SPEEDS:
        return policy
    if policy not in POLICIES:
        raise ValueError(f"codec {policy!r}: known are {', '.join(POLICIES)}")
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
