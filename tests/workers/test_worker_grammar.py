"""A grammar on its way from leg to leg: it comes with the start and follows the law."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLParserLimits
from tokenizers import Tokenizer

from tests.workers.worker_rig import END, LIMIT, MODEL, PROMPT, Rig, continuation, feed, start
from workers.api.messages import Cause, Refused, Role, Sampling, TokenRun
from workers.engines.models import DEFAULT_MODEL, resolve_model

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"enum": [1]}}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
GRAMMAR = f"%llguidance {{}}\nstart: %json {json.dumps(SCHEMA)}\n"
# As large a vocabulary as the tokenizer's.
SIZED = replace(MODEL, vocab_size=49_152)
LONG = 400


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    return resolve_model(DEFAULT_MODEL) / "tokenizer.json"


def under(seed: int) -> Sampling:
    return Sampling(temperature=1.0, seed=seed, grammar=GRAMMAR)


def said(tokenizer: Path, seed: int, after: tuple[int, ...] = ()) -> tuple[int, ...]:
    """One engine's whole answer, with its end."""
    text = continuation(
        LONG, after, model=SIZED, sampling=under(seed), stop_ids=(END,), tokenizer=tokenizer
    )
    return text[: text.index(END) + 1]


def main_at(tokenizer: Path, seed: int, law: tuple[int, ...]) -> Rig:
    rig = Rig(model=SIZED, tokenizer=tokenizer)
    reserve = len(PROMPT) + LONG
    rig.send(start(Role.MAIN, law_ids=law, limit=LONG, sampling=under(seed), reserve=reserve))
    rig.land()
    return rig


def test_an_answer_is_what_the_schema_says(tokenizer: Path) -> None:
    text = Tokenizer.from_file(str(tokenizer))
    for seed in range(5):
        value = json.loads(text.decode(said(tokenizer, seed)[:-1]))
        assert set(value) == {"name", "sizes"}
        assert set(value["sizes"]) <= {1}


@pytest.mark.parametrize("at", [1, 4, 11])
def test_main_goes_on_in_the_middle_of_an_object(tokenizer: Path, at: int) -> None:
    """The same tokens as one engine alone, though main never saw the first ones sampled."""
    whole = said(tokenizer, 3)
    assert len(whole) > 12
    assert main_at(tokenizer, 3, whole[:at]).tokens() == whole[at:]


def test_a_law_that_differs_takes_the_grammar_back(tokenizer: Path) -> None:
    """Main ran ahead to its own end; the law then says something else from token 3 on."""
    mine = said(tokenizer, 3)
    law = (*mine[:3], *said(tokenizer, 4, mine[:3]))
    assert mine[:7] != law[:7]
    rig = main_at(tokenizer, 3, mine[:1])
    assert rig.tokens() == mine[1:]
    rig.send(feed(law[1:7], at=1))
    assert rig.tokens() == said(tokenizer, 3, law[:7])


def test_a_worker_that_takes_no_grammars_says_so_and_holds_nothing() -> None:
    rig = Rig()
    (refused,) = rig.send(start(Role.PREFILL, sampling=under(1)))
    assert isinstance(refused, Refused)
    assert refused.cause is Cause.GRAMMAR
    assert "grammar" in refused.reason
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


@pytest.mark.parametrize("role", [Role.PREFILL, Role.MAIN])
def test_a_grammar_that_runs_into_its_limits_ends_the_leg_and_says_so(
    tokenizer: Path, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never as if the text had ended: what there is of it is no object yet."""
    whole = said(tokenizer, 3)
    monkeypatch.setattr("workers.engines.grammar.LIMITS", LLParserLimits(max_lexer_states=40))
    rig = Rig(model=SIZED, tokenizer=tokenizer)
    law = whole[:12] if role is Role.PREFILL else whole[:1]
    reserve = len(PROMPT) + LONG
    rig.send(start(role, law_ids=law, limit=LONG, sampling=under(3), reserve=reserve))
    if role is Role.MAIN:
        rig.land()
    *before, refused = rig.run()
    told = sum((run.ids for run in before if isinstance(run, TokenRun)), ())
    assert told == (whole[1:4] if role is Role.MAIN else ())
    assert isinstance(refused, Refused)
    assert refused.cause is Cause.GRAMMAR
    assert "too many states" in refused.reason
    assert rig.worker.idle
    assert rig.engine.kv_held_tokens() == 0


def test_a_bias_on_what_is_no_token_is_refused() -> None:
    biased = Sampling(logit_bias=((MODEL.vocab_size, 1.0),))
    (refused,) = Rig().send(start(Role.PREFILL, limit=LIMIT, sampling=biased))
    assert isinstance(refused, Refused)
    assert refused.cause is Cause.SENSELESS
