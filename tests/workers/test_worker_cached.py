"""What a prefill leg found in its worker's cache is told with its token."""

from tests.workers.worker_rig import PROMPT, Rig, start, stop
from workers.api.messages import Role, TokenRun


def cached(rig: Rig, request: str, **changes: object) -> int:
    """What the only token of a prefill leg tells."""
    rig.send(start(Role.PREFILL, request=request, **changes))
    (run,) = (m for m in rig.run() if isinstance(m, TokenRun))
    return run.cached


def test_whole_blocks_of_the_prompt_are_found_again() -> None:
    rig = Rig()
    assert cached(rig, "a") == 0
    assert cached(rig, "b") == 32  # of 40, in blocks of 16; still held by the first
    rig.send(stop(epoch=1))
    other = (*PROMPT[:20], *range(300, 320))
    assert cached(rig, "c", prompt_ids=other) == 16
    assert cached(rig, "d", cache_salt="mine") == 0


def test_choices_that_fork_share_the_blocks() -> None:
    """Four more of the same prompt take the memory of what they do not share only."""
    rig = Rig()
    cached(rig, "a")
    before = rig.engine.kv_held_tokens()
    for name in "bcde":
        cached(rig, name)
    assert rig.engine.kv_held_tokens() - before <= 4 * (before - 32)


def test_law_that_was_found_too_is_no_prompt() -> None:
    rig = Rig()
    law = tuple(range(200, 232))
    assert cached(rig, "a", prompt_ids=(*PROMPT, *law)) == 0
    assert cached(rig, "b", law_ids=law, limit=60) == len(PROMPT)
