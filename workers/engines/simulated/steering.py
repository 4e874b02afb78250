"""What biases and a grammar make of a simulated token."""

from collections.abc import Mapping

import numpy as np

from workers.engines.simulated.model import Choice, SimulatedModel, Wish

_FEW = 32  # a grammar's text would hardly ever end if every token it allows were as likely


def steer(
    model: SimulatedModel,
    wish: Wish,
    choice: Choice,
    bias: Mapping[int, float],
    allowed: np.ndarray | None,
) -> Choice:
    """The token that is best with `bias` added, among those `allowed`, [vocab] bool (None: all).

    The model's logits are level but for its choice, which leads by its margin. Under a grammar
    its choice is one of the lowest ids allowed (they are short), or the end where the text may
    end, which every second time it does.
    """
    if allowed is not None:
        choice = choice._replace(token=_keeping(wish, choice, allowed))
    if not bias:
        return choice
    barred = frozenset(wish.stop_ids) if wish.place < wish.min_tokens else frozenset()

    def possible(id: int) -> bool:
        return id not in barred if allowed is None else bool(allowed[id])

    logits = {id: value for id, value in bias.items() if possible(id)}
    logits[choice.token] = logits.get(choice.token, 0.0) + choice.margin
    level = next(  # one of all the others
        (
            id
            for step in range(1, model.vocab_size)
            if possible(id := (choice.token + step) % model.vocab_size)
            and id not in bias
            and id not in wish.stop_ids
        ),
        None,
    )
    if level is not None:
        logits[level] = 0.0
    best, *rest = sorted(logits, key=lambda id: (-logits[id], id))
    margin = logits[best] - logits[rest[0]] if rest else choice.margin
    return Choice(best, margin, choice.logprob)


def _keeping(wish: Wish, choice: Choice, allowed: np.ndarray) -> int:
    ids = np.flatnonzero(allowed)
    ends = np.isin(ids, wish.stop_ids)
    if ends.any() and (choice.token % 2 == 0 or ends.all()):
        return int(ids[ends][0])
    others = ids[~ends][:_FEW]
    return int(others[choice.token % len(others)])
