"""What the connector refuses, in words that name the way out."""

from types import SimpleNamespace as Some
from typing import Any

import pytest

from workers.api.messages import Sampling
from workers.engines.vllm.inside.checks import Unsupported, check_config, check_version
from workers.engines.vllm.inside.wanted import Wanted


def config(groups: int = 1, **changes: Any) -> tuple[Any, Any]:
    parts = {
        "speculative": None,
        "context": 1,
        "policy": "recompute",
        "prefix_caching": False,
        "head_size_v": 64,
    } | changes
    vllm_config = Some(
        speculative_config=parts["speculative"],
        parallel_config=Some(
            decode_context_parallel_size=parts["context"], prefill_context_parallel_size=1
        ),
        kv_transfer_config=Some(kv_load_failure_policy=parts["policy"]),
        cache_config=Some(enable_prefix_caching=parts["prefix_caching"]),
    )
    spec = Some(num_kv_heads=3, head_size=64, head_size_v=parts["head_size_v"])
    return vllm_config, Some(kv_cache_groups=[Some(kv_cache_spec=spec)] * groups)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative": object()}, "speculative decoding"),
        ({"context": 2}, "context parallelism"),
        ({"policy": "fail"}, '"kv_load_failure_policy": "recompute"'),
        ({"groups": 2, "prefix_caching": True}, "--no-enable-prefix-caching"),
        ({"head_size_v": 128}, "plain K and V of one size"),
    ],
)
def test_what_cannot_travel_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        check_config(*config(**changes))


def test_what_can_travel_is_not() -> None:
    check_config(*config())
    check_config(*config(prefix_caching=True))
    check_config(*config(groups=2))


def test_only_tested_versions_are_taken() -> None:
    check_version("0.32.0", False)
    check_version("0.32.0+cpu", False)
    check_version("0.33.1", True)
    with pytest.raises(Unsupported, match=r"tested with 0\.32\.0 only.*allow_untested"):
        check_version("0.33.1", False)


def test_what_the_sampler_is_told_survives_the_way() -> None:
    sampling = Sampling(
        temperature=0.7, top_k=4, logit_bias=((3, -1.5), (9, 2.0)), seed=1 << 63, margins=True
    )
    wanted = Wanted(sampling=sampling, prompt_len=12, pool="a", row=1, run=77)
    assert Wanted.of(wanted.text) == wanted


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"sampling": {}}', "7"])
def test_what_no_worker_says_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Wanted.of(text)
