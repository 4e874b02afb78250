"""A grammar's place in a sequence: forwards, back, and from a leg's law."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from workers.engines.base import GrammarLost, GrammarRefused
from workers.engines.grammar import Grammars
from workers.engines.models import DEFAULT_MODEL, resolve_model

VOCAB, END = 49_152, 2
OBJECT = '%llguidance {}\nstart: %json {"type": "object"}\n'
COLOURS = '%llguidance {}\nstart: "red" | "green" | "grey"\n'


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model(DEFAULT_MODEL) / "tokenizer.json"


@pytest.fixture(scope="module")
def grammars(path: Path) -> Grammars:
    return Grammars(path, VOCAB, (END,))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def ids(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask).tolist())


def test_only_what_the_grammar_goes_on_with_is_allowed(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    prompt = [7, 8, 9]  # not part of the text
    mask = grammars.constraint(COLOURS).allowed(prompt, len(prompt))
    assert mask.shape == (VOCAB,)
    words = {tokenizer.decode([id]) for id in ids(mask)}
    assert {"r", "red", "g", "gr", "green"} <= words
    assert all(any(c.startswith(word) for c in ("red", "green", "grey")) for word in words)
    assert END not in ids(mask)


def test_at_its_end_only_the_end_is_left(grammars: Grammars, tokenizer: Tokenizer) -> None:
    red = tokenizer.encode("red", add_special_tokens=False).ids
    constraint = grammars.constraint(COLOURS)
    assert ids(constraint.allowed(red, 0)) == {END}
    assert ids(constraint.allowed([*red, END], 0)) == {END}


def test_what_it_does_not_take_is_no_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(COLOURS)
    with pytest.raises(GrammarLost, match=r"after 1 tokens: .*satisfy"):
        constraint.allowed(tokenizer.encode("gr!", add_special_tokens=False).ids, 0)


@pytest.mark.parametrize("cut", range(12))
def test_a_cut_takes_it_back(grammars: Grammars, tokenizer: Tokenizer, cut: int) -> None:
    """After a cut it allows what a fresh one allows, also past an end that was guessed."""
    text = '{"a": [1, {"b": "}"}], "c": null}'
    said = [*tokenizer.encode(text, add_special_tokens=False).ids, END]
    constraint = grammars.constraint(OBJECT)
    for count in range(len(said) + 1):
        constraint.allowed(said[:count], 0)
    constraint.cut(cut)
    fresh = grammars.constraint(OBJECT)
    for count in range(cut, len(said)):
        here = constraint.allowed(said[:count], 0)
        assert (here == fresh.allowed(said[:count], 0)).all()
        assert here[said[count]]


def test_sequences_of_one_grammar_do_not_disturb_one_another(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    one, other = grammars.constraint(COLOURS), grammars.constraint(COLOURS)
    g = tokenizer.encode("g", add_special_tokens=False).ids
    before = other.allowed([], 0)
    assert (one.allowed(g, 0) != before).any()
    assert (other.allowed([], 0) == before).all()


def test_a_grammar_that_is_none_is_refused(grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="the grammar is not understood"):
        grammars.constraint("start: nowhere")


def test_a_model_without_a_tokenizer_or_an_end_takes_none(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text(json.dumps({"model": {}}))
    for tokenizer, ends in ((None, (END,)), (path, ()), (broken, (END,))):
        with pytest.raises(GrammarRefused, match="this model takes no grammar"):
            Grammars(tokenizer, VOCAB, ends).constraint(COLOURS)
