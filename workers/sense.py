"""What no worker of this model could ever do."""

from workers.api.info import EngineInfo
from workers.api.messages import Start


def senseless(start: Start, info: EngineInfo) -> str | None:
    """Why no worker could take this leg; None: it makes sense."""
    prompt, law = len(start.prompt_ids), len(start.law_ids)
    if prompt == 0:
        return "the prompt is empty"
    if prompt + start.limit > info.max_context:
        return (
            f"{prompt} prompt tokens and {start.limit} output tokens exceed the context of "
            f"{info.max_context}"
        )
    if not 0 <= start.cover <= law <= start.limit:
        return f"cover {start.cover}, law {law} and limit {start.limit} must not decrease"
    biased = tuple(id for id, _ in start.sampling.logit_bias)
    if not all(in_vocabulary(ids, info) for ids in (start.prompt_ids, start.law_ids, biased)):
        return f"token ids must be within [0, {info.vocab_size})"
    return None


def in_vocabulary(ids: tuple[int, ...], info: EngineInfo) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) < info.vocab_size)
