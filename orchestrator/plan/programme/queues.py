"""Waiting times and how likely they are kept to. All times are seconds.

M/G/k with a wait that is 0 or exponential: the chance to wait is Erlang's C, the mean that of
Allen and Cunneen, C (ca2 + cs2) s / (2 k (1 - load)).
"""

from math import erf, exp, inf, sqrt


def erlang_c(servers: int, load: float) -> float:
    """The chance that an arrival waits for one of `servers`; `load` per server, below 1."""
    if load >= 1:
        return 1.0
    offered, blocked = servers * load, 1.0
    for n in range(1, servers + 1):  # Erlang's B, one server after the other
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - load * (1 - blocked))


def mean_wait_s(servers: int, load: float, service_s: float, variation: float) -> float:
    """`variation`: the mean of the squared cvs of arrivals and of services."""
    if load >= 1:
        return inf
    return erlang_c(servers, load) * variation * service_s / (servers * (1 - load))


def chance_within(
    limit_s: float, servers: int, load: float, service_s: float, variation: float
) -> float:
    """That a wait is at most `limit_s`."""
    if limit_s < 0 or load >= 1:
        return 0.0
    waits = erlang_c(servers, load)
    mean_s = variation * service_s / (servers * (1 - load))
    return 1 - waits * exp(-limit_s / mean_s) if mean_s else 1.0


def normal_below(limit: float, mean: float, deviation: float) -> float:
    """The chance that a normal value is below a limit."""
    if deviation <= 0:
        return 1.0 if mean <= limit else 0.0
    return 0.5 * (1 + erf((limit - mean) / deviation / sqrt(2)))


def averaged(variance: float, spans: float) -> float:
    """Variance of a mean over so many correlation times, of exponential correlation."""
    if spans < 1e-6:
        return variance
    return variance * 2 * (spans - 1 + exp(-spans)) / spans**2
