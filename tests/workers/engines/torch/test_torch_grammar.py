"""The default model under a grammar: valid JSON, and the same after a handoff."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from tests.workers.engines.torch.helpers import complete, near_ties
from workers.api.messages import Sampling
from workers.engines.torch.load import LoadedModel, build_engine

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "old": {"type": "boolean"}},
    "required": ["city", "old"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"%llguidance {{}}\nstart: %json {json.dumps(SCHEMA)}\n"
NEW = 18


def test_an_object_goes_on_at_another_engine(smollm: LoadedModel, smollm_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm_dir / "tokenizer.json"))
    prompt = tokenizer.encode("France as JSON:").ids
    sampling = Sampling(temperature=0.9, seed=5, grammar=GRAMMAR, margins=True)
    how = {"sampling": sampling, "stop_ids": smollm.stop_ids}
    whole = complete(build_engine(smollm, kv_tokens=1024), [prompt], NEW, **how)[0]
    length = whole.tokens.index(smollm.stop_ids[0])
    value = json.loads(tokenizer.decode(whole.tokens[:length]))
    assert len(value["city"]) <= 4
    assert isinstance(value["old"], bool)
    middle = length // 2
    law = prompt + whole.tokens[:middle]
    other = build_engine(smollm, kv_tokens=1024, block_size=24)
    rest = complete(other, [law], NEW - middle, prompt_len=len(prompt), **how)[0]
    assert near_ties(rest, whole.tokens[middle:]) == 0


def test_a_bias_rules_a_token_out(smollm: LoadedModel, smollm_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm_dir / "tokenizer.json"))
    prompt = tokenizer.encode("Once upon a").ids
    engine = build_engine(smollm, kv_tokens=1024)
    first = complete(engine, [prompt], 1)[0].tokens[0]
    sampling = Sampling(margins=True, logit_bias=((first, -100.0),))
    assert first not in complete(engine, [prompt], 3, sampling=sampling)[0].tokens
