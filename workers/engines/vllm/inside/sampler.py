"""Our own sampler inside vLLM, so that a seed draws the same token on every engine.

Named in --logits-processors workers.engines.vllm.inside.sampler:PddSampler. A request takes part
whose `vllm_xargs` have a "pdd" (see `wanted`); vLLM must be told temperature 0 for it, and then
takes the one token that is left.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from workers.engines.sampler import draw
from workers.engines.vllm.inside.wanted import Wanted
from workers.engines.vllm.pool import MARGINS, PoolRefused, SharedPool


@dataclass(frozen=True, slots=True)
class _Row:
    """`output` is vLLM's own list, which grows."""

    wanted: Wanted
    pool: SharedPool | None
    prompt: list[int]
    output: list[int]


class PddSampler(LogitsProcessor):
    """See the module's docstring."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        transfer = vllm_config.kv_transfer_config
        folder = None if transfer is None else transfer.get_from_extra_config("pools", None)
        self._folder = Path(folder or "")
        self._rows: dict[int, _Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        text = (sampling_params.extra_args or {}).get("pdd")
        if text is not None:
            Wanted.of(text)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, row in self._rows.items():
            wanted, tokens = row.wanted, [*row.prompt, *row.output]
            values = logits[index].float().cpu().numpy()
            drawn = draw(values, wanted.sampling, tokens, wanted.prompt_len)
            logits[index] = float("-inf")
            logits[index, drawn.token] = 0.0
            wants = row.pool is not None and row.pool.wants(wanted.row, wanted.run)
            if drawn.margin is not None and wants:
                at = (len(tokens) - wanted.prompt_len) % MARGINS
                row.pool.margins[wanted.row, at] = drawn.margin
        return logits

    def _row(
        self, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> _Row | None:
        text = (params.extra_args or {}).get("pdd")
        if text is None:
            return None
        wanted = Wanted.of(text)
        pool = None
        if wanted.sampling.margins:
            try:
                pool = SharedPool.open(self._folder, wanted.pool)
            except PoolRefused:  # its worker is gone, and with it who would read them
                pool = None
        return _Row(wanted, pool, list(prompt or ()), output)
