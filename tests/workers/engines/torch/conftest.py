"""The default model, loaded once, and tiny random models of other kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedConfig

from tests.workers.engines.torch.helpers import tiny_llama
from workers.engines.models import resolve_model
from workers.engines.torch.engine import TorchEngine
from workers.engines.torch.load import LoadedModel, build_engine, load_model


@pytest.fixture(scope="session")
def smollm_dir() -> Path:
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def smollm(smollm_dir: Path) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(smollm_dir)


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PreTrainedConfig], Path]:
    """Write a random model of a config, with a tokenizer, and return its directory."""

    def save(config: PreTrainedConfig) -> Path:
        path = tmp_path_factory.mktemp(config.model_type)
        torch.manual_seed(7)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        words = {f"w{i}": i for i in range(config.vocab_size)}
        Tokenizer(WordLevel(words, unk_token="w0")).save(str(path / "tokenizer.json"))
        return path

    return save


@pytest.fixture(scope="session")
def tiny(save_tiny: Callable[[PreTrainedConfig], Path]) -> LoadedModel:
    """A random Llama of four layers; wide initial weights make its logits differ clearly."""
    torch.set_num_threads(1)
    return load_model(save_tiny(tiny_llama()))


@pytest.fixture
def engine(tiny: LoadedModel) -> TorchEngine:
    return build_engine(tiny, kv_tokens=1024)
