"""What the tokens of a request must be: asked of the simulated model itself, without an engine."""

from array import array

from orchestrator.state.actions import Finish, FinishReason
from orchestrator.virtual.client import Client
from orchestrator.virtual.setup import Setup
from orchestrator.virtual.worker import model_of
from workers.engines.simulated.model import Wish, choose, grow_history, seed_word


def why_wrong(setup: Setup, client: Client) -> str | None:
    """What is wrong with a client's tokens, or with where they end; None: nothing is.

    Each token must be the one that an engine draws after exactly the tokens before it. Where
    numerics differ (`divergence`) any worker's choice is right at a near tie.
    """
    spec, ids = client.ask.arrived, client.ids
    if len(ids) > spec.limit:
        return f"{len(ids)} tokens, the limit is {spec.limit}"
    hashes: array[int] = array("Q")
    grow_history(hashes, [*spec.prompt_ids, *ids])
    first = len(spec.prompt_ids) - 1
    seed = seed_word(spec.sampling)
    wishes = [
        Wish(hashes[first + place], place, seed, spec.stop_ids, spec.min_tokens)
        for place in range(len(ids))
    ]
    models = [model_of(setup, salt) for salt in sorted({worker.salt for worker in setup.workers})]
    for place, (token, wish) in enumerate(zip(ids, wishes, strict=True)):
        right = {choose(model, wish).token for model in models}
        if token not in right:
            return f"token {place} is {token}, must be one of {sorted(right)}"
    return _why_wrong_end(client)


def _why_wrong_end(client: Client) -> str | None:
    """The first place at which the tokens complete an answer must be their end."""
    spec, ids = client.ask.arrived, client.ids
    stops = [tuple(int(part) for part in stop.split(",")) for stop in spec.stop_strings]
    for place in range(len(ids)):
        seen = ids[: place + 1]
        by_id = seen[-1] in spec.stop_ids and place >= spec.min_tokens
        by_text = any(tuple(seen[-len(stop) :]) == stop for stop in stops)
        if (by_id or by_text) and place + 1 < len(ids):
            return f"the answer was complete after {place + 1} tokens, {len(ids)} came"
        if place + 1 == len(ids) and isinstance(client.end, Finish):
            stopped = by_id or by_text
            if client.end.reason is FinishReason.LENGTH and len(ids) != spec.limit:
                return f"it ended by length after {len(ids)} of {spec.limit} tokens"
            if client.end.reason is FinishReason.STOP and not stopped:
                return "it ended by a stop that is not in its tokens"
    return None
