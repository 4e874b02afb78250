"""What a request's `vllm_xargs` tell our sampler inside vLLM. Without vLLM."""

import json
from dataclasses import asdict, dataclass

from workers.api.messages import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to draw, where the output begins, and where to leave the margins."""

    sampling: Sampling
    prompt_len: int
    pool: str
    row: int
    run: int

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> "Wanted":
        """Raises ValueError for what `text` did not make."""
        try:
            fields = json.loads(text)
            sampling = fields.pop("sampling")
            bias = tuple((int(id), float(bias)) for id, bias in sampling.pop("logit_bias"))
            return cls(sampling=Sampling(logit_bias=bias, **sampling), **fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the sampler's parameters are unusable: {error!r}") from error
