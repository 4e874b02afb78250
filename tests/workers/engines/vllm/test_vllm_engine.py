"""The engine over a vLLM of a few lines, which computes what it is asked and checks its KV."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.engines.vllm.fake_vllm import BLOCK, LAYERS, engine, kv, say
from workers.api.info import Part
from workers.api.messages import Sampling
from workers.engines.base import EngineLost, GrammarRefused, NoRoom, SeqId, SequenceSpec, StepResult
from workers.engines.vllm.engine import LAG, VllmEngine

A, B, C = SeqId("a", 0), SeqId("b", 0), SeqId("c", 0)
PROMPT = list(range(20, 41))  # 21 tokens: no whole number of blocks


def spec(tokens: list[int], new: int = 30, **more: Any) -> SequenceSpec:
    values = {
        "tokens": tokens,
        "prompt_len": len(tokens),
        "reserve": len(tokens) + new,
        "sampling": Sampling(),
    }
    return SequenceSpec(**(values | more))


def turn(one: VllmEngine) -> StepResult | None:
    """One step; a sequence that has all it wanted is left alone, as a worker does."""
    step = one.begin()
    if step is None:
        return None
    result = one.finish(step)
    for sample in result.samples:
        goal = one._sequences[sample.seq].goal
        if goal is not None and one.length(sample.seq) >= goal:
            one.set_goal(sample.seq, None)
    return result


def run(one: VllmEngine, turns: int = 500) -> dict[SeqId, list[int]]:
    """Until nothing is left to do; what was sampled."""
    said: dict[SeqId, list[int]] = {}
    for _ in range(turns):
        result = turn(one)
        if result is None:
            return said
        assert not result.lost
        for sample in result.samples:
            said.setdefault(sample.seq, []).append(sample.token)
    raise AssertionError("still at work")


def decode(one: VllmEngine, seq: SeqId, tokens: list[int], new: int, **more: Any) -> list[int]:
    one.open(seq, spec(tokens, new, **more), reuse=False)
    one.set_goal(seq, len(tokens) + new)
    return run(one)[seq]


def hand_over(source: VllmEngine, one: VllmEngine, seq: SeqId, tokens: int) -> None:
    have = one.open_import(seq, tokens)
    for layer in range(LAYERS):
        for part in Part:
            one.put(seq, source.read(A, layer, part, have, tokens))
    one.commit_import(seq)


def kv_of(one: VllmEngine, seq: SeqId, count: int) -> np.ndarray:
    """[layers, 2, tokens, 1, 1]."""
    return np.stack(
        [
            np.stack([one.read(seq, layer, part, 0, count).data for part in Part])
            for layer in range(LAYERS)
        ]
    )


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 21])
def test_it_says_what_vllm_says_and_has_all_kv_but_the_last(
    tmp_path: Path, length: int, chunk: int
) -> None:
    one = engine(tmp_path, chunk=chunk)
    prompt = PROMPT[:length]
    said = decode(one, A, prompt, 10)
    assert said == say(prompt, 10)
    assert (one.length(A), one.computed(A)) == (length + 10, length + 9)
    expected = np.stack([kv(prompt + said, n) for n in range(length + 9)], axis=2)
    assert (kv_of(one, A, length + 9) == expected).all()
    assert len(one._server.asked) == 1
    one.close(A)
    run(one)
    assert one.kv_held_tokens() == 0


@pytest.mark.parametrize("emitted", [1, 2, 9])
def test_a_handoff_goes_on_as_if_there_was_none(tmp_path: Path, emitted: int) -> None:
    first, second = engine(tmp_path, name="a"), engine(tmp_path, name="b")
    said = decode(first, A, PROMPT, 12)
    second.open(A, spec(PROMPT + said[:emitted], prompt_len=21), reuse=False)
    hand_over(first, second, A, len(PROMPT))
    second.set_goal(A, 21 + 12)
    assert run(second)[A] == said[emitted:]
    params = second._server.asked[0]["kv_transfer_params"]["pdd"]
    assert params["have"] == 21
    assert second.computed(A) == 21 + 11


def test_layers_are_told_as_they_come(tmp_path: Path) -> None:
    one = engine(tmp_path, chunk=8)
    heard: list[tuple[SeqId, int, int, int]] = []
    one.on_kv = lambda *what: heard.append(what)
    decode(one, A, PROMPT, 2)
    for layer in range(LAYERS):
        ends = [(start, stop) for _, at, start, stop in heard if at == layer]
        assert ends == [(0, 8), (8, 16), (16, 21), (21, 22)]


def test_one_layer_ahead_of_the_others_can_be_read(tmp_path: Path) -> None:
    one = engine(tmp_path)
    server = one._server
    server.steps = False
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 30)
    turn(one)
    (request,) = server.requests.values()
    one._store.saved[request.run.row, 0] = 8
    result = turn(one)
    assert result is not None
    assert result.computed == {A: 0}
    assert one.read(A, 0, Part.KEY, 0, 8).data.shape == (8, 1, 1)
    with pytest.raises(ValueError, match="0 are there"):
        one.read(A, 1, Part.KEY, 0, 8)


def test_a_token_waits_for_the_kv_before_it(tmp_path: Path) -> None:
    """The answer may come by a quicker way than a slow rank's bytes."""
    one = engine(tmp_path, chunk=100)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 30)
    step = one.begin()
    server, pool = one._server, one._store
    assert step is not None
    server.steps = False
    server.step()
    (request,) = server.requests.values()
    pool.saved[request.run.row, 1] = 20
    assert one.finish(step).samples == ()
    pool.saved[request.run.row, 1] = 21
    result = turn(one)
    assert result is not None
    assert [sample.token for sample in result.samples] == say(PROMPT, 1)
    assert result.computed == {A: 21}


def test_many_at_once(tmp_path: Path) -> None:
    one = engine(tmp_path, rows=3)  # fewer rows than sequences
    seqs = [SeqId("r", n) for n in range(6)]
    for n, seq in enumerate(seqs):
        one.open(seq, spec(PROMPT[: 1 + 3 * n], 10), reuse=False)
        one.set_goal(seq, 1 + 3 * n + 10)
    said = run(one)
    assert said == {seq: say(PROMPT[: 1 + 3 * n], 10) for n, seq in enumerate(seqs)}


def test_only_kv_is_wanted(tmp_path: Path) -> None:
    """The goal is reached, and the last tokens have no KV yet: an export waits for it."""
    one = engine(tmp_path)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, len(PROMPT))
    assert run(one) == {}
    assert one.computed(A) == len(PROMPT) == one.length(A)


def test_what_was_computed_is_found_again_and_loaded(tmp_path: Path) -> None:
    one = engine(tmp_path)
    decode(one, A, PROMPT, 4)
    one.close(A)
    run(one)
    assert one.open(B, spec(PROMPT), reuse=True) == 16
    one.set_goal(B, 24)
    assert run(one)[B] == say(PROMPT, 3)
    assert one._server.asked[1]["kv_transfer_params"]["pdd"]["have"] == 16


# -------------------------------------------------------------------- the law


def test_a_run_goes_on_while_the_law_goes_its_way(tmp_path: Path) -> None:
    one = engine(tmp_path)
    law = say(PROMPT, 20)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 20)
    said: list[int] = []
    while len(said) < 3:
        result = turn(one)
        assert result is not None
        said += [sample.token for sample in result.samples]
    one.append(A, law[3:6])
    rest = run(one)[A]
    assert said + law[3:6] + rest == law
    assert len(one._server.asked) == 1


def test_a_run_gives_way_when_the_law_turns(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 20)
    while one.length(A) < 26:
        turn(one)
    one.truncate(A, 23)
    other = [*say(PROMPT, 2), 7, 8]
    one.append(A, other[2:])
    assert run(one)[A] == say(PROMPT + other, 16)
    assert len(one._server.asked) == 2
    assert one._server.asked[1]["prompt"] == PROMPT + other
    one.close(A)
    run(one)
    assert one.kv_held_tokens() == 0


def test_a_law_that_turned_where_the_run_was_not_yet_is_found_out(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 9)
    turn(one)
    one.append(A, [5, 6])  # not what it will say
    assert run(one)[A] == say([*PROMPT, 5, 6], 7)
    assert len(one._server.asked) == 2


def test_a_law_far_ahead_gets_an_extend(tmp_path: Path) -> None:
    one = engine(tmp_path)
    law = say(PROMPT, 29)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 29)
    while one.length(A) < 22:
        turn(one)
    one.append(A, law[1 : LAG + 3])
    assert run(one)[A] == law[LAG + 3 :]
    assert len(one._server.asked) == 2


def test_a_law_ahead_of_a_run_that_has_not_sampled_waits_for_its_first(tmp_path: Path) -> None:
    """Else a law that grows quicker than a run starts would never let one begin."""
    one = engine(tmp_path, chunk=1)
    law = say(PROMPT, 25)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 29)
    for n in range(15):
        turn(one)
        one.append(A, law[n : n + 1])
    assert len(one._server.asked) == 1
    assert run(one)[A] == say(PROMPT, 29)[15:]


def test_a_pause_and_a_resume(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 21 + 20)
    while one.length(A) < 25:
        turn(one)
    one.set_goal(A, None)
    assert run(one) == {}
    length = one.length(A)
    one.set_goal(A, length + 4)
    assert run(one)[A] == say(PROMPT, length - 21 + 4)[length - 21 :]
    assert one._server.asked[1]["kv_transfer_params"]["pdd"]["have"] >= 21 + 3


# -------------------------------------------------------------------- memory


def test_memory_is_free_only_when_the_running_step_is_over(tmp_path: Path) -> None:
    """A client leaves while vLLM computes: what that step writes must hit nobody else."""
    one = engine(tmp_path, tokens=32)
    server = one._server
    server.steps = False
    one.open(A, spec(PROMPT, 11), reuse=False)
    one.set_goal(A, 32)
    turn(one)
    work = server.begin_step()
    one.close(A)
    turn(one)
    assert one.kv_held_tokens() == 32
    with pytest.raises(NoRoom):
        one.open(B, spec(PROMPT, 11), reuse=False)
    server.end_step(work)
    assert run(one) == {}
    assert one.kv_held_tokens() == 0
    server.steps = True
    assert decode(one, B, PROMPT[::-1], 11) == say(PROMPT[::-1], 11)


def test_a_step_that_begins_later_writes_nothing_of_it(tmp_path: Path) -> None:
    one = engine(tmp_path, tokens=32)
    server = one._server
    server.steps = False
    one.open(A, spec(PROMPT, 11), reuse=False)
    one.set_goal(A, 32)
    turn(one)
    requests = dict(server.requests)
    one.close(A)
    assert run(one) == {}
    server.requests.update(requests)  # vLLM has not heard of it yet
    assert server.begin_step() == []


def test_a_cut_table_keeps_its_blocks_until_the_run_is_over(tmp_path: Path) -> None:
    one = engine(tmp_path, tokens=32)
    server = one._server
    one.open(A, spec(PROMPT, 11), reuse=False)
    one.set_goal(A, 32)
    while one.length(A) < 30:
        turn(one)
    server.steps = False
    work = server.begin_step()
    one.truncate(A, 10)
    one.set_goal(A, None)
    turn(one)
    held = len(one._sequences[A].table.blocks)
    server.end_step(work)
    run(one)
    assert held == 8
    assert len(one._sequences[A].table.blocks) == 3
    server.steps = True
    one.set_goal(A, 14)
    assert run(one)[A] == say(PROMPT[:10], 4)


def test_a_stopped_sequence_stops_at_once(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 50)
    turn(one)
    one.cancel(A)
    assert run(one) == {}
    assert one._server.requests == {}


def test_no_row_waits_for_one(tmp_path: Path) -> None:
    one = engine(tmp_path, rows=1)
    one.open(A, spec(PROMPT), reuse=False)
    one.open(B, spec(PROMPT), reuse=False)
    one.set_goal(A, 23)
    one.set_goal(B, 25)
    turn(one)
    assert len(one._server.asked) == 1
    assert run(one) == {A: say(PROMPT, 2), B: say(PROMPT, 4)}


# -------------------------------------------------------------------- what goes wrong


def test_a_request_that_vllm_refuses_is_lost_alone(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one._server.refuse = "vLLM answers 400: no"
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 25)
    result = turn(one)
    assert result is not None
    assert result.lost == ((A, "vLLM answers 400: no"),)
    assert turn(one) is not None
    one.close(A)
    assert run(one) == {}
    assert one.kv_held_tokens() == 0


def test_a_vllm_that_is_gone_is_said(tmp_path: Path) -> None:
    one = engine(tmp_path)
    heard: list[bool] = []
    one.on_lost = lambda: heard.append(True)
    one._server.lost = "vLLM has ended: killed"
    one.tell_lost()
    assert heard == [True]
    with pytest.raises(EngineLost, match="killed"):
        one.begin()


def test_a_connector_that_cannot_serve_the_pool_is_said(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one._store.report("two ranks, not one")
    with pytest.raises(EngineLost, match="two ranks"):
        one.begin()


def test_a_vllm_that_hangs_is_said(tmp_path: Path) -> None:
    one = engine(tmp_path)
    now = [0.0]
    one._clock = lambda: now[0]
    one._server.steps = False
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 25)
    turn(one)
    now[0] = 299.0
    turn(one)
    now[0] = 301.0
    with pytest.raises(EngineLost, match="no progress for 300 s"):
        one.begin()


def test_one_run_that_hangs_is_lost_alone(tmp_path: Path) -> None:
    one = engine(tmp_path, tokens=1024)
    now = [0.0]
    one._clock = lambda: now[0]
    for seq in (A, B):
        one.open(seq, spec(PROMPT, 300), reuse=False)
        one.set_goal(seq, 300)
    turn(one)
    server = one._server
    server.requests.pop(one._sequences[A].run.id)
    lost: tuple[tuple[SeqId, str], ...] = ()
    while not lost:
        now[0] += 10.0
        result = turn(one)
        assert result is not None
        lost = result.lost
    assert lost == ((A, "no news of it from vLLM for 300 s"),)
    assert now[0] == 310.0
    assert one.length(B) > len(PROMPT) + 25
    one.close(A)
    one.close(B)
    assert turn(one) is None
    assert one.kv_held_tokens() == 0


def test_it_takes_no_grammar(tmp_path: Path) -> None:
    one = engine(tmp_path)
    with pytest.raises(GrammarRefused):
        one.open(A, spec(PROMPT, sampling=Sampling(grammar='start: "a"')), reuse=False)


def test_a_look_without_news_is_no_step(tmp_path: Path) -> None:
    one = engine(tmp_path)
    now = [5.0]
    one._clock = lambda: now[0]
    one._server.steps = False
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 25)
    first = turn(one)
    now[0] = 7.0
    one._server.step()
    second = turn(one)
    assert first is not None
    assert second is not None
    assert first.took_s == 0.0
    assert second.took_s == 2.0
    assert second.prefill_tokens == 7


def test_a_steps_kv_and_its_token_are_one_step(tmp_path: Path) -> None:
    """A layer that is ahead is no step, nor is a token that comes after its KV."""
    one = engine(tmp_path, chunk=100)
    now = [5.0]
    one._clock = lambda: now[0]
    server, pool = one._server, one._store
    one.open(A, spec(PROMPT), reuse=False)
    one.set_goal(A, 25)
    step = one.begin()
    assert step is not None
    server.steps = False
    (request,) = server.requests.values()
    took = []
    for layers, at in ((1, 6.0), (3, 7.0)):
        pool.saved[request.run.row, :layers] = 21
        now[0] = at
        took.append(one.finish(step).took_s)
    server.step()
    now[0] = 7.5
    result = one.finish(step)
    assert (took, result.took_s, len(result.samples)) == ([0.0, 2.0], 0.0, 1)


def test_the_end_is_the_servers_too(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.shutdown()
    assert one._server.closed


@pytest.mark.parametrize("seed", [0, 9])
def test_a_seed_goes_along_and_margins_come_back(tmp_path: Path, seed: int) -> None:
    one = engine(tmp_path)
    sampling = Sampling(temperature=0.5, seed=seed, margins=True)
    one.open(A, spec(PROMPT, sampling=sampling), reuse=False)
    one.set_goal(A, 24)
    samples = []
    while (result := turn(one)) is not None:
        samples += result.samples
    assert [sample.token for sample in samples] == say(PROMPT, 3, seed)
    assert [sample.margin for sample in samples] == [1.0] * 3
    assert one.info.block_size == BLOCK


def test_a_request_that_has_lost_tokens_is_refused(tmp_path: Path) -> None:
    first, second = engine(tmp_path, name="a"), engine(tmp_path, name="b")
    decode(first, A, PROMPT, 2)
    second.open(B, spec(PROMPT), reuse=False)
    second.open_import(B, len(PROMPT))
    whole = first.read(A, 0, Part.KEY, 0, len(PROMPT))
    some = replace(whole, positions=whole.positions[1:], data=whole.data[1:])
    with pytest.raises(ValueError, match="tokens missing"):
        second.put(B, some)
