"""What of a vLLM the connector was made for, and what it refuses. Without vLLM."""

from collections.abc import Iterator
from typing import Any

TESTED = ("0.32.0",)


class Unsupported(ValueError):
    """This vLLM, or what it was told, is not what the connector can serve; one line."""


def check_version(version: str, allow_untested: bool) -> None:
    """Raise Unsupported for a vLLM that this was not tested with, unless told otherwise."""
    if version.partition("+")[0] not in TESTED and not allow_untested:
        raise Unsupported(
            f"vLLM {version}: PddConnector was tested with {', '.join(TESTED)} only, and vLLM's "
            "interface for connectors changes; to try it all the same put "
            '"allow_untested": true into kv_connector_extra_config'
        )


def check_config(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raise Unsupported for what vLLM was told that the connector cannot go along with."""
    for why in _troubles(vllm_config, kv_cache_config):
        raise Unsupported(f"PddConnector: {why}")


def _troubles(vllm_config: Any, kv_cache_config: Any) -> Iterator[str]:
    parallel = vllm_config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    if vllm_config.speculative_config is not None:
        yield "speculative decoding computes KV of tokens that are then dropped; leave it out"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism splits a layer's tokens over ranks; leave it out"
    if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
        yield 'set "kv_load_failure_policy": "recompute"'
    if len(groups) > 1 and vllm_config.cache_config.enable_prefix_caching:
        yield (
            "a model with sliding windows needs --no-enable-prefix-caching: the prefix cache "
            "forgets what is outside of a window; the workers' pool keeps prefixes instead"
        )
    for group in groups:
        spec = group.kv_cache_spec
        if not hasattr(spec, "num_kv_heads") or getattr(spec, "head_size_v", None) not in (
            None,
            spec.head_size,
        ):
            yield f"{type(spec).__name__}: only layers with plain K and V of one size can travel"
