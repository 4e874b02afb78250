"""Chips and models: figures from `configs/catalogue/`, each with its source and grade."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from math import floor
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ruamel.yaml import YAML

from orchestrator.errors import UserError
from workers.api.info import BYTES_PER_ELEMENT
from workers.costs import RooflineCosts

BYTES_PER_PARAM = 2  # bfloat16, where the catalogue does not say what the weights weigh
BYTES_PER_ACTIVATION = 2
MEMORY_USE = 0.9  # of a chip's memory; the rest is the engine's own


class Grade(StrEnum):
    """How far a figure can be trusted."""

    PUBLISHED = "P"  # by the maker, in a paper or in the model's own files
    SECONDARY = "S"  # from a summary
    MEASURED = "M"
    DISPUTED = "?"  # sources disagree


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Strict):
    """One number with where it comes from."""

    value: float = Field(gt=0)
    grade: Grade
    source: str


def _usual(value: float, source: str) -> Figure:
    """What is taken where nothing is known of a chip."""
    return Figure(value=value, grade=Grade.SECONDARY, source=source)


class Chip(_Strict):
    """One accelerator, dense rates; None: not published or not applicable.

    `mfu`, `mbu`: the parts of peak arithmetic and memory bandwidth that engines reach in prefill
    and in decode; `serial`: the part of the shorter of the two that the longer does not hide.
    `overhead_s`: of each step, and `layer_s` of each layer in it. `link_gb_s`: both directions
    together; `link_mbu` is the part of it that all-reduces reach and `link_latency_s` what each of
    them takes at least.
    """

    name: str
    bf16_tflops: Figure | None = None
    fp8_tflops: Figure | None = None
    int8_tops: Figure | None = None
    memory_gb: Figure | None = None
    memory_tb_s: Figure | None = None
    link_gb_s: Figure | None = None
    mfu: Figure = _usual(0.40, "usual of prefill: 0.38 to 0.45")
    mbu: Figure = _usual(0.70, "usual of decode: 0.6 to 0.8")
    serial: Figure = _usual(0.25, "decode's slopes in DistServe's fits of an A100")
    overhead_s: Figure = _usual(0.004, "usual of an engine's step")
    layer_s: Figure | None = None
    link_mbu: Figure = _usual(0.70, "usual of large all-reduces")
    link_latency_s: Figure = _usual(10e-6, "usual of small all-reduces")


class Architecture(_Strict):
    """A model's shape. `shared_params`: all that are not in routed experts. `looked_up_params`: of
    the input embedding, of which a token reads one row and multiplies nothing; 0 if it is the
    output's as well.

    `heads` x `head_size` is the width of a layer's attention; MLA's heads count as the mean of
    what they compare and what they carry.
    """

    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_size: int = Field(gt=0)
    experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)
    shared_params: float = Field(default=0, ge=0)
    looked_up_params: float = Field(default=0, ge=0)
    grade: Grade
    source: str

    @model_validator(mode="after")
    def _mixture(self) -> "Architecture":
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token is {self.experts_per_token} of {self.experts}")
        if self.experts and not self.shared_params:
            raise ValueError("a mixture of experts needs shared_params")
        return self


class ModelFacts(_Strict):
    """One model: bfloat16 KV bytes per token, parameters, those active per token, weights."""

    name: str
    kv_bytes_per_token: Figure
    params: Figure
    active_params: Figure
    weights_gb: Figure | None = None
    architecture: Architecture | None = None

    def kv_bytes_in(self, kv_dtype: str) -> int:
        """Of one token, kept in another dtype than bfloat16."""
        width = BYTES_PER_ELEMENT[kv_dtype] / BYTES_PER_ELEMENT["bfloat16"]
        return int(self.kv_bytes_per_token.value * width)

    @property
    def weight_bytes(self) -> float:
        """Of one copy."""
        if self.weights_gb is not None:
            return self.weights_gb.value * 1e9
        return self.params.value * BYTES_PER_PARAM


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every known chip and model, by the name that topologies use."""

    chips: dict[str, Chip]
    models: dict[str, ModelFacts]


@cache  # the files ship with the package: they do not change while it runs
def load_catalogue() -> Catalogue:
    """The packaged catalogue."""
    return Catalogue(
        chips={name: Chip.model_validate(raw) for name, raw in _read("chips.yaml").items()},
        models={name: ModelFacts.model_validate(raw) for name, raw in _read("models.yaml").items()},
    )


def _read(name: str) -> dict[str, Any]:
    text = resources.files("configs").joinpath("catalogue", name).read_text(encoding="utf-8")
    entries: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return entries


def kv_memory_bytes(chip: Chip, model: ModelFacts, parallel: int, use: float = MEMORY_USE) -> float:
    """What `parallel` chips have left for KV beside one copy of the weights.

    Raises UserError, with the numbers, where nothing is left, or the chip's memory is not known.
    """
    if chip.memory_gb is None:
        raise UserError(f"the catalogue has no memory_gb of {chip.name}")
    each = chip.memory_gb.value * 1e9 * use
    left = parallel * each - model.weight_bytes
    if left <= 0:
        raise UserError(
            f"{model.name} has {model.weight_bytes / 1e9:g} GB of weights, but {parallel} x "
            f"{chip.memory_gb.value:g} GB of {chip.name}, of which {use:.0%} can be used, are "
            f"{parallel * each / 1e9:g} GB; it needs {floor(model.weight_bytes / each) + 1} or more"
        )
    return left


def roofline(chip: Chip, model: ModelFacts, parallel: int = 1) -> RooflineCosts:
    """What a worker of `parallel` chips takes for its steps.

    Two all-reduces per layer are the price of being parallel: of p chips each sends and receives
    2 (p - 1) / p of a token's activations. Raises UserError that names every missing figure.
    """
    shape = model.architecture
    needed = {
        f"bf16_tflops of {chip.name}": chip.bf16_tflops,
        f"memory_tb_s of {chip.name}": chip.memory_tb_s,
        f"architecture of {model.name}": shape,
    }
    if parallel > 1:
        needed[f"link_gb_s of {chip.name}"] = chip.link_gb_s
    missing = [name for name, figure in needed.items() if figure is None]
    if missing:
        raise UserError(f"the catalogue has no {', and no '.join(missing)}")
    assert chip.bf16_tflops is not None
    assert chip.memory_tb_s is not None
    assert shape is not None
    overhead_s, token_s = chip.overhead_s.value, 0.0
    if chip.layer_s is not None:
        overhead_s += shape.layers * chip.layer_s.value
    if parallel > 1:
        assert chip.link_gb_s is not None
        each_way = chip.link_gb_s.value * 1e9 / 2 * chip.link_mbu.value
        sent = 2 * (parallel - 1) / parallel * shape.hidden * BYTES_PER_ACTIVATION
        overhead_s += 2 * shape.layers * chip.link_latency_s.value
        token_s = 2 * shape.layers * sent / each_way
    per_param = model.weight_bytes / model.params.value
    looked_up = shape.looked_up_params
    return RooflineCosts(
        flops=chip.bf16_tflops.value * 1e12 * chip.mfu.value * parallel,
        memory_bytes_per_s=chip.memory_tb_s.value * 1e12 * chip.mbu.value * parallel,
        active_params=model.active_params.value - looked_up,
        attention_width=shape.layers * shape.heads * shape.head_size,
        kv_bytes_per_token=model.kv_bytes_per_token.value,
        weight_bytes=model.weight_bytes - looked_up * per_param,
        shared_bytes=(shape.shared_params - looked_up) * per_param if shape.experts else 0.0,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        overhead_s=overhead_s,
        token_s=token_s,
        sequence_s=token_s,
        serial=chip.serial.value,
    )
