"""The modelled token ids: a function of the output index alone, so that every leg agrees."""

from workers.api.history import EMPTY_HISTORY, extend_history

FIRST_ID = 3

_ids: tuple[int, ...] = ()
_histories: list[int] = [EMPTY_HISTORY]


def ids(start: int, stop: int) -> tuple[int, ...]:
    """The ids at output indices [start, stop)."""
    if stop > len(_ids):
        _grow(stop)
    return _ids[start:stop]


def history(index: int) -> int:
    """The hash of the ids before `index`."""
    if index > len(_ids):
        _grow(index)
    return _histories[index]


def index_of(token: int) -> int:
    """The output index that has this id; negative: none has."""
    return token - FIRST_ID


def _grow(length: int) -> None:
    global _ids
    new = tuple(range(FIRST_ID + len(_ids), FIRST_ID + max(length, 2 * len(_ids), 1024)))
    for token in new:
        _histories.append(extend_history(_histories[-1], (token,)))
    _ids += new
