"""Waiting times, and how likely they and decode steps are kept to. All times are seconds.

A load is per server, 1 when it is always busy. A `variation` is (ca2 + cs2) / 2, the mean of the
squared coefficients of variation of the times between arrivals and of the services.

G/G/k: the chance to wait is that of M/M/k (Erlang's C, 1917), the mean wait is Allen's and
Cunneen's (Allen, Probability, Statistics, and Queueing Theory, 1990, section 5.3),
C variation s / (k (1 - load)), and who waits does so for an exponential time. In M/M/k all three
are exact.
"""

from math import erf, exp, inf, sqrt


def erlang_c(servers: int, load: float) -> float:
    """The chance that an arrival waits for one of `servers`."""
    if load >= 1:
        return 1.0
    offered, blocked = servers * load, 1.0
    for n in range(1, servers + 1):  # Erlang's B, one server after the other
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - load * (1 - blocked))


def mean_wait_s(servers: int, load: float, service_s: float, variation: float) -> float:
    """Of all arrivals, those that do not wait too."""
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


def mean_residual_s(squares: float) -> float:
    """What is left, on average, of the service that an arrival at a single server finds.

    `squares`: s2 of services that come in a second, rate E[s2]. Over 1 - load it is the mean wait
    of M/G/1 (Pollaczek and Khinchine; Kleinrock, Queueing Systems I, 1975, section 5.7).
    """
    return squares / 2


def elasticity(batch: float, step_s: float, added_s: float) -> float:
    """By how many per cent a step is longer when its batch is one per cent larger, below 1.

    `added_s`: what one sequence more adds to the step.
    """
    return min(0.99, batch * added_s / step_s)


def step_variance(
    batch: float, added_s: float, elastic: float, workers: int, *, spread: float = 1.0
) -> float:
    """Of a decode step, in s2, when sequences come as they like.

    A batch of n ends its sequences at a rate that grows as n^(1 - e), so that n varies by
    n / (1 - e) about its mean (the linear noise approximation of a birth-death process: van Kampen,
    Stochastic Processes in Physics and Chemistry, chapter VIII); a router that looks for the
    smallest batch shares that among its workers. `spread`: E[x2] / E[x]2 of the contexts.
    """
    return batch * added_s * added_s * spread / (1 - elastic) / workers


def averaged(variance: float, spans: float) -> float:
    """Variance of a mean over so many correlation times, of exponential correlation.

    2 v (T - 1 + e^-T) / T2, the integral of v e^-|t - u| over t and u from 0 to T, by T2.
    """
    if spans < 1e-6:
        return variance
    return variance * 2 * (spans - 1 + exp(-spans)) / spans**2


def normal_below(limit: float, mean: float, deviation: float) -> float:
    """The chance that a normal value is below a limit."""
    if deviation <= 0:
        return 1.0 if mean <= limit else 0.0
    return 0.5 * (1 + erf((limit - mean) / deviation / sqrt(2)))
