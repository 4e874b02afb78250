"""Chips and models: figures from `configs/catalogue/`, each with its source and grade."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML


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


class Chip(_Strict):
    """One accelerator, dense rates; None: not published or not applicable."""

    name: str
    bf16_tflops: Figure | None = None
    fp8_tflops: Figure | None = None
    int8_tops: Figure | None = None
    memory_gb: Figure | None = None
    memory_tb_s: Figure | None = None
    link_gb_s: Figure | None = None


class ModelFacts(_Strict):
    """One model: bfloat16 KV bytes per token, parameters, those active per token, weights."""

    name: str
    kv_bytes_per_token: Figure
    params: Figure
    active_params: Figure
    weights_gb: Figure | None = None


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
