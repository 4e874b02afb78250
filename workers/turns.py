"""Whose prompt a worker computes next: shortest remaining first, with ageing.

Time is counted in prompt tokens that the worker has computed, so the order needs no clock: the
engines and the replay's modelled workers ask the same question and get the same answer.
"""

# Of so many tokens that the worker computes while a prompt waits, one counts as computed of it.
# The less this is, the longer a prompt keeps out those that come late in its wait: beside short
# ones that load the worker by r, the last L / (1 + AGEING (1 - r)) of its L tokens are computed
# without a break. The more it is, the longer it can wait.
AGEING = 16


def turn(remaining: int, came: int) -> int:
    """A prompt's place; the lowest goes first, of equal ones the one that came first.

    `remaining`: its tokens that are not computed; `came`: what the worker had begun to compute of
    all prompts, in tokens, when this one came.

    Between prompts that wait the order never changes, and computing one only lowers its place, so
    two never take turns. Nobody starves: a prompt of L tokens is overtaken only by those that come
    while the worker computes AGEING x L tokens.
    """
    return AGEING * remaining + came
