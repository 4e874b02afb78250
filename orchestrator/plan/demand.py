"""What is asked, as a few classes of requests that are alike."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.api.record import record

ROUNDS = 30  # of moving centres; they hardly move after ten


class Asked(NamedTuple):
    """One request: when it came (s), its tokens, and how many of the prompt's are known already."""

    at: float
    prompt: int
    output: int
    hit: int


@record
class RequestClass:
    """Requests that are alike, by their means. `rate`: requests/s.

    `hit`, `main_hit`: leading prompt tokens that prefill and main find in a cache that never
    forgets.
    """

    name: str
    rate: float
    prompt: float
    output: float
    hit: float = 0.0
    main_hit: float = 0.0


def classes_of(requests: Iterable[Asked], most: int) -> list[RequestClass]:
    """At most so many classes, the most frequent first; empty for no requests.

    `requests` are in the order in which they came. They are clustered by the logarithms of prompt,
    output and of the tokens that are missing (k-means, Lloyd 1982; centres begin evenly along the
    first principal axis, so the same requests give the same classes). Means of a class are those of
    its requests, so that the sum of tokens is kept.
    """
    asked = list(requests)
    if not asked:
        return []
    span = asked[-1].at - asked[0].at
    # N requests have N - 1 gaps; a single one has no rate of its own.
    per_request = (len(asked) - 1) / span / len(asked) if span > 0 else 1.0
    figures = np.array([(a.prompt, a.output, a.hit) for a in asked], float)
    places = np.log(
        np.column_stack((figures[:, 0], figures[:, 1], figures[:, 0] - figures[:, 2] + 1))
    )
    labels = _clusters(places, most)
    groups = [figures[labels == label] for label in np.unique(labels)]
    groups.sort(key=lambda group: (-len(group), *group.mean(axis=0)))
    return [_class(number, group, per_request) for number, group in enumerate(groups)]


def total_rate(classes: Sequence[RequestClass]) -> float:
    """Requests/s of all classes together."""
    return sum(requests.rate for requests in classes)


def _class(number: int, group: NDArray[np.float64], per_request: float) -> RequestClass:
    prompt, output, hit = (float(mean) for mean in group.mean(axis=0))
    return RequestClass(
        name=f"{_round(prompt)} in, {_round(output)} out, {_round(hit)} known ({number})",
        rate=per_request * len(group),
        prompt=prompt,
        output=output,
        hit=hit,
        main_hit=hit,
    )


def _round(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens < 1000 else f"{tokens / 1000:.3g}K"


def _clusters(places: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """[n, d] -> [n] labels from 0 on, at most `most` of them; some may have no member."""
    centred = places - places.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axis = axes[:, -1] * np.sign(axes[np.abs(axes[:, -1]).argmax(), -1])
    along = centred @ axis
    if np.ptp(along) < 1e-9:
        return np.zeros(len(places), int)
    order = np.argsort(along, kind="stable")
    count = min(most, len(np.unique(places, axis=0)))
    centres = np.array([part.mean(axis=0) for part in np.array_split(places[order], count)])
    labels = np.zeros(len(places), int)
    for _ in range(ROUNDS):
        apart = ((places[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        new = apart.argmin(axis=1)
        if (new == labels).all():
            break
        labels = new
        for label in range(count):
            members = places[labels == label]
            if len(members):
                centres[label] = members.mean(axis=0)
    return labels
