"""A real vLLM with the default model: handoffs, clients that leave, room that runs out.

Its own KV is made so small that eight requests do not fit: some are preempted and come back.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pydoc_data.topics import topics
from time import monotonic, sleep

import httpx
import pytest
from tokenizers import Tokenizer

from tests.workers.engines.vllm.live_rig import (
    ENV,
    check_equal,
    client_of,
    metric,
    run,
    spec,
    uninterrupted,
    vllm_python,
)
from workers.api.info import Part
from workers.api.messages import Sampling
from workers.engines.base import SeqId
from workers.engines.models import resolve_model
from workers.engines.vllm.engine import VllmEngine
from workers.engines.vllm.load import load_engine
from workers.engines.vllm.settings import VllmSettings

LENGTHS = (1, 15, 16, 17, 127, 128, 129, 1000)
CUTS = (1, 2, 50)
NEW = 56
WAYS = {"greedy": Sampling(), "seeded": Sampling(temperature=0.8, top_p=0.95, seed=11)}
KV_BLOCKS = 18  # of 128 tokens; block 0 is nobody's
_epochs = count()

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    python = vllm_python()
    small = (
        "--enforce-eager",
        f"--num-gpu-blocks-override={KV_BLOCKS}",
        "--max-model-len=2048",
        "--max-num-batched-tokens=256",
        "--max-num-seqs=16",
    )
    made = load_engine(
        resolve_model("smollm2-135m"),
        VllmSettings(python=python, args=small, env=ENV),
        name="test-vllm-live",
        dtype="float32",
        kv_tokens=8192,
        block_size=16,
        slots=16,
        ranks=1,
    )
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def vllm(engine: VllmEngine) -> Iterator[httpx.Client]:
    with client_of(engine) as client:
        yield client


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prose of the lengths, no two beginning alike, so that no cache joins them."""
    tokenizer = Tokenizer.from_file(str(resolve_model("smollm2-135m") / "tokenizer.json"))
    ids = tokenizer.encode(" ".join(topics[key] for key in sorted(topics))).ids
    return [ids[700 * n : 700 * n + length] for n, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def references(vllm: httpx.Client, prompts: list[list[int]]) -> dict[str, list[list[int]]]:
    return {way: uninterrupted(vllm, prompts, NEW, wanted) for way, wanted in WAYS.items()}


def settle(engine: VllmEngine, vllm: httpx.Client) -> float:
    """Seconds until nothing is held here or in vLLM."""
    begun = monotonic()
    while engine.begin() is not None or metric(vllm, "vllm:kv_cache_usage_perc"):
        step = engine.begin()
        if step is not None:
            engine.finish(step)
        assert monotonic() - begun < 30, "KV stays held"
        sleep(0.01)
    assert engine.kv_held_tokens() == 0
    assert metric(vllm, "vllm:num_requests_running") == 0
    return monotonic() - begun


@pytest.fixture(autouse=True)
def _nothing_left(engine: VllmEngine) -> Iterator[None]:
    yield
    for seq in list(engine._sequences):
        engine.close(seq)


def test_it_has_the_room_that_vllm_has(engine: VllmEngine) -> None:
    assert engine.info.kv_total_tokens == (KV_BLOCKS - 1) * 128
    assert engine.info.max_context == 2048


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_run_equals_vllms_own(
    engine: VllmEngine, vllm: httpx.Client, prompts: list[list[int]], references, way: str
) -> None:
    sampling = replace(WAYS[way], margins=True)
    seqs = [SeqId("whole", next(_epochs)) for _ in prompts]
    for seq, prompt in zip(seqs, prompts, strict=True):
        engine.open(seq, spec(prompt, len(prompt), NEW, sampling), reuse=False)
    goals = {s: len(p) + NEW for s, p in zip(seqs, prompts, strict=True)}
    heard = run(engine, goals)
    ties = sum(check_equal(heard[s], ref) for s, ref in zip(seqs, references[way], strict=True))
    for seq in seqs:
        engine.close(seq)
    print(f"near ties: {ties} of {len(seqs)}; settled after {settle(engine, vllm):.3f} s")
    assert ties <= 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", CUTS)
def test_eight_handoffs_at_once(
    engine: VllmEngine, vllm: httpx.Client, prompts: list[list[int]], references, way: str, cut: int
) -> None:
    """Prefill legs, the prompts' KV over to other sequences, and these go on after `cut` tokens."""
    sampling, references_now = replace(WAYS[way], margins=True), references[way]
    parts = [(n, part) for n in range(engine.info.fingerprint.layers) for part in Part]
    prompts_kv = []
    for prompt in prompts:
        source = SeqId("from", next(_epochs))
        engine.open(source, spec(prompt, len(prompt), 1, sampling), reuse=False)
        run(engine, {source: len(prompt) + 1})
        prompts_kv.append([engine.read(source, n, part, 0, len(prompt)) for n, part in parts])
        engine.close(source)
    settle(engine, vllm)
    targets = [SeqId("to", next(_epochs)) for _ in prompts]
    for target, prompt, kv, said in zip(targets, prompts, prompts_kv, references_now, strict=True):
        new = spec(prompt + said[:cut], len(prompt), NEW, sampling)
        engine.open(target, replace(new, cache_salt=f"{way}{cut}"), reuse=False)
        assert engine.open_import(target, len(prompt)) == 0
        for piece in kv:
            engine.put(target, piece)
        engine.commit_import(target)
    goals = {t: len(p) + NEW for t, p in zip(targets, prompts, strict=True)}
    heard = run(engine, goals)
    ties = sum(
        check_equal(heard[target], reference[cut:])
        for target, reference in zip(targets, references_now, strict=True)
    )
    for target in targets:
        engine.close(target)
    print(f"near ties: {ties} of {len(targets)}; settled after {settle(engine, vllm):.3f} s")
    assert ties <= 2


def test_some_of_all_this_was_preempted(vllm: httpx.Client, references) -> None:
    assert metric(vllm, "vllm:num_preemptions_total") > 0


@pytest.mark.parametrize("turns", [0, 1, 30, 400])
def test_a_client_that_leaves_takes_its_kv_along(
    engine: VllmEngine, vllm: httpx.Client, prompts: list[list[int]], turns: int
) -> None:
    """At once, waiting, in prefill, in decode."""
    seqs = [SeqId("leaves", next(_epochs)) for _ in prompts]
    for seq, prompt in zip(seqs, prompts, strict=True):
        salted = replace(spec(prompt, len(prompt), NEW, Sampling()), cache_salt=f"leaves{turns}")
        engine.open(seq, salted, reuse=False)
        engine.set_goal(seq, len(prompt) + NEW)
    for _ in range(turns):
        step = engine.begin()
        if step is not None:
            engine.finish(step)
    for seq in seqs:
        engine.close(seq)
    print(f"settled after {settle(engine, vllm):.3f} s")


def test_kv_that_left_vllm_comes_back_from_the_pool(
    engine: VllmEngine, vllm: httpx.Client, prompts: list[list[int]]
) -> None:
    """What vLLM's own cache has lost a later request loads through the connector."""
    prompt = prompts[-1]
    first, later = SeqId("pool", next(_epochs)), SeqId("pool", next(_epochs))
    engine.open(first, spec(prompt, len(prompt), 8, Sampling(margins=True)), reuse=False)
    expected = run(engine, {first: len(prompt) + 8})[first].tokens
    engine.close(first)
    uninterrupted(vllm, [prompts[-1][::-1], prompts[-2] * 9], 2, Sampling())  # others' KV goes in
    before = metric(vllm, "vllm:external_prefix_cache_hits_total")
    found = engine.open(later, spec(prompt, len(prompt), 8, Sampling(margins=True)), reuse=True)
    heard = run(engine, {later: len(prompt) + 8})[later]
    engine.close(later)
    assert found == 992
    assert metric(vllm, "vllm:external_prefix_cache_hits_total") > before
    check_equal(heard, expected)
    settle(engine, vllm)
