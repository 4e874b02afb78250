"""A step's tokens in one message, as far as they are no more than tokens."""

from collections import Counter
from collections.abc import Sequence

from workers.api.messages import Load, NextTokens, TokenRun, UpMessage


def packed(messages: Sequence[UpMessage]) -> list[UpMessage]:
    """The same, with runs of one plain token in columns, before all others.

    Of a request that says more than one run nothing is packed: its messages keep their order.
    """
    said = Counter(m.request for m in messages if not isinstance(m, Load | NextTokens))
    plain: list[TokenRun] = []
    rest: list[UpMessage] = []
    for message in messages:
        if isinstance(message, TokenRun) and _is_plain(message) and said[message.request] == 1:
            plain.append(message)
        else:
            rest.append(message)
    return [_columns(plain), *rest] if plain else rest


def unpacked(message: UpMessage) -> list[UpMessage]:
    """A step's columns as the runs that they stand for; another message as it is."""
    if not isinstance(message, NextTokens):
        return [message]
    m = message
    rows = zip(m.requests, m.epochs, m.indices, m.ids, m.hists, m.feds, strict=True)
    return [
        TokenRun(request=request, epoch=epoch, index=index, ids=(id,), hist=hist, fed=fed)
        for request, epoch, index, id, hist, fed in rows
    ]


def _is_plain(run: TokenRun) -> bool:
    return len(run.ids) == 1 and run.logprobs is None and run.margins is None and not run.cached


def _columns(runs: Sequence[TokenRun]) -> NextTokens:
    return NextTokens(
        requests=tuple(run.request for run in runs),
        epochs=tuple(run.epoch for run in runs),
        indices=tuple(run.index for run in runs),
        ids=tuple(run.ids[0] for run in runs),
        hists=tuple(run.hist for run in runs),
        feds=tuple(run.fed for run in runs),
    )
