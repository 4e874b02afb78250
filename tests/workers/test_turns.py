"""Whose prompt is computed next: neither short nor long ones starve behind the others."""

from tests.workers.engines.simulated.simulated_rig import engine, spec
from workers.engines.base import SeqId
from workers.engines.simulated.engine import SimulatedEngine
from workers.turns import AGEING, turn

LONG = 1000
MEMORY = 4096
CHUNK = 32


def ask(of: SimulatedEngine, name: str, tokens: int) -> None:
    of.open(SeqId(name, 1), spec((7,) * tokens, reserve=tokens + 1), reuse=False)
    of.set_goal(SeqId(name, 1), tokens + 1)


def step(of: SimulatedEngine) -> list[str]:
    """Who got its token; it is closed."""
    begun = of.begin()
    assert begun is not None
    done = [sample.seq for sample in of.finish(begun).samples]
    for seq in done:
        of.close(seq)
    return [seq.request for seq in done]


def big() -> SimulatedEngine:
    return engine(kv_total_tokens=MEMORY, chunk_tokens=CHUNK)


def test_a_short_prompt_is_in_the_step_after_it_came() -> None:
    busy = big()
    ask(busy, "long", LONG)
    step(busy)
    ask(busy, "short", 16)
    assert step(busy) == ["short"]
    steps = 0
    while step(busy) != ["long"]:
        steps += 1
    assert steps < LONG // CHUNK, "the rest of the short one's chunk was the long one's"


def test_a_long_prompt_that_is_nearly_done_is_not_broken_off_for_a_shorter_one() -> None:
    busy = big()
    ask(busy, "long", 100)
    step(busy)
    step(busy)
    ask(busy, "other", 40)  # 36 are left of the long one
    assert step(busy) == []
    assert step(busy) == ["long"]


def test_a_long_prompt_is_done_though_short_ones_never_end() -> None:
    """They come at twice what the worker can do: so many overtake it as come in AGEING
    times its length, and of them no more wait than there is memory for.
    """
    busy = big()
    ask(busy, "long", LONG)
    steps, told = 0, []
    while "long" not in told:
        for number in range(2):
            if busy.kv_free_tokens() > 512:
                ask(busy, f"short-{steps}-{number}", CHUNK)
        told += step(busy)
        steps += 1
    assert LONG // CHUNK < steps <= ((AGEING + 1) * LONG + MEMORY) // CHUNK


def test_what_waits_keeps_its_order_whatever_is_computed() -> None:
    waits = [(300, 0), (20, 4000), (300, 10)]
    assert sorted(waits, key=lambda one: turn(*one)) == [(20, 4000), (300, 0), (300, 10)]
    assert turn(299, 10) < turn(300, 10), "what is computed of it only brings it forward"
