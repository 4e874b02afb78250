"""What the catalogue says of chips and models, and a worker's costs made of it by hand."""

import pytest
from pydantic import ValidationError

from orchestrator.catalogue import (
    Architecture,
    Chip,
    Figure,
    Grade,
    ModelFacts,
    kv_memory_bytes,
    load_catalogue,
    roofline,
)
from orchestrator.errors import UserError
from workers.costs import Chunk

MLA = {"deepseek-v3", "deepseek-r1", "kimi-k2"}


def figure(value: float) -> Figure:
    return Figure(value=value, grade=Grade.MEASURED, source="by hand")


CHIP = Chip(
    name="A chip",
    bf16_tflops=figure(100),
    memory_gb=figure(80),
    memory_tb_s=figure(2),
    link_gb_s=figure(100),
    mfu=figure(0.5),
    mbu=figure(0.8),
    serial=figure(0.1),
    overhead_s=figure(0.001),
    layer_s=figure(1e-5),
    link_mbu=figure(0.5),
    link_latency_s=figure(1e-5),
)
SHAPE = Architecture(
    layers=10, hidden=1000, heads=10, kv_heads=2, head_size=100, grade=Grade.MEASURED, source=""
)
MODEL = ModelFacts(
    name="A model",
    kv_bytes_per_token=figure(8000),
    params=figure(40e9),
    active_params=figure(40e9),
    architecture=SHAPE,
)


def test_one_chip_by_hand() -> None:
    costs = roofline(CHIP, MODEL)
    # 80 GB at 1.6 TB/s; 5e13 flop/s: 1.6 ms a token, a tenth of it unhidden; 1.1 ms of overhead.
    assert costs.step_s([], 1, 1000) == pytest.approx(0.0011 + 0.05 + 0.00016 + 8e6 / 1.6e12)
    # 1000 tokens: 8e13 flop for the weights, 2 x 10 x 1000 x 1e6 for attention.
    assert costs.step_s([Chunk(1000, 0)], 0, 0) == pytest.approx(0.0011 + 1.6 + 0.005 + 4e-4)


def test_four_chips_tell_each_other() -> None:
    costs = roofline(CHIP, MODEL, 4)
    # Of 20 all-reduces each sends 2 x 3/4 of 2000 bytes at 25 GB/s, and takes 10 us at least.
    assert costs.token_s == costs.sequence_s == pytest.approx(20 * 3000 / 25e9)
    assert costs.overhead_s == pytest.approx(0.0011 + 20e-5)
    assert costs.decode_line(1).per_context_s == pytest.approx(8000 / 6.4e12)


def test_a_mixture_and_what_is_only_looked_up() -> None:
    shape = SHAPE.model_copy(
        update={
            "experts": 8,
            "experts_per_token": 2,
            "shared_params": 8e9,
            "looked_up_params": 2e9,
        }
    )
    changes = {"architecture": shape, "active_params": figure(16e9)}
    costs = roofline(CHIP, MODEL.model_copy(update=changes))
    assert (costs.active_params, costs.weight_bytes, costs.shared_bytes) == (14e9, 76e9, 12e9)
    assert costs.touched_bytes(1) == pytest.approx(12e9 + 64e9 / 4)


def test_what_is_left_for_kv() -> None:
    assert kv_memory_bytes(CHIP, MODEL, 2) == pytest.approx(2 * 72e9 - 80e9)
    with pytest.raises(UserError, match=r"80 GB of weights.*1 x 80 GB.*are 72 GB; it needs 2 or"):
        kv_memory_bytes(CHIP, MODEL, 1)


def test_missing_figures_are_named() -> None:
    bare = CHIP.model_copy(update={"memory_tb_s": None, "link_gb_s": None})
    with pytest.raises(UserError, match=r"no memory_tb_s of A chip, and no link_gb_s of A chip"):
        roofline(bare, MODEL, 2)
    with pytest.raises(UserError, match="no architecture of A model"):
        roofline(CHIP, MODEL.model_copy(update={"architecture": None}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"experts": 4, "experts_per_token": 5, "shared_params": 1e9}, "5 of 4"),
        ({"experts": 4, "experts_per_token": 2}, "needs shared_params"),
    ],
)
def test_an_impossible_shape(change: dict[str, float], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Architecture.model_validate(SHAPE.model_dump() | change)


@pytest.mark.parametrize("name", sorted(load_catalogue().models))
def test_a_models_shape_agrees_with_its_other_figures(name: str) -> None:
    model = load_catalogue().models[name]
    shape = model.architecture
    assert shape is not None
    if name not in MLA:
        kv = 2 * shape.layers * shape.kv_heads * shape.head_size * 2
        assert model.kv_bytes_per_token.value == kv
    if shape.experts:
        # The rest of the parameters is in the experts, so a token's part of it is active.
        routed = model.params.value - shape.shared_params
        active = shape.shared_params + routed * shape.experts_per_token / shape.experts
        assert active == pytest.approx(model.active_params.value, rel=0.05)
    else:
        assert model.active_params.value == model.params.value
