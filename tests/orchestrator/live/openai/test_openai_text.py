"""Incremental text: exact, never half a character, the same for any grouping."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from orchestrator.live.openai.text import (
    StopMatcher,
    StopWatch,
    TextStream,
    WindowDetokenizer,
    detokenizer,
)
from orchestrator.live.openai.vocabulary import Vocabulary

QUICK = settings(max_examples=150, deadline=None)


def fast(core: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


def sentencepiece_like(leading_spaces: int = 1) -> PreTrainedTokenizerFast:
    """Byte fallback, `▁` for spaces, the first space dropped: Llama 2's and Gemma's decoders."""
    words = ["<unk>", "<s>", "▁", "▁Hello", "▁wor", "ld", "lo", ".", "▁▁", "你", "\ufffd", "é"]
    names = words + [f"<0x{b:02X}>" for b in range(256)]
    core = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", leading_spaces, 0),
        ]
    )
    core.add_special_tokens([AddedToken("<s>", special=True)])
    return fast(core)


def byte_level() -> PreTrainedTokenizerFast:
    """One token per byte, GPT-2's spelling, and words added whole."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    core.add_tokens([AddedToken("<tool 工>", special=False)])
    return fast(core)


def greedy_strip() -> PreTrainedTokenizerFast:
    """A window that begins with a space token shows nothing of it, nor of the next one."""
    return sentencepiece_like(leading_spaces=3)


def metaspace() -> PreTrainedTokenizerFast:
    names = ["<unk>", "▁", "▁Hello", "▁wor", "ld", ".", "▁▁", "你"]
    core = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[]))
    core.decoder = decoders.Metaspace()
    return fast(core)


def word_piece() -> PreTrainedTokenizerFast:
    names = ["[UNK]", "hello", "wor", "##ld", ".", "'", "s", "n't", "do"]
    core = Tokenizer(models.WordPiece(vocab={n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece()
    return fast(core)


BUILT = {
    maker.__name__: maker()
    for maker in (sentencepiece_like, greedy_strip, byte_level, metaspace, word_piece)
}


def whole(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[list[str], str]:
    """The pieces and the rest; where there is a cheap way, it gives what the general one does."""
    stream = detokenizer(vocabulary)
    pieces, rest = [stream.push(id) for id in ids], stream.finish()
    assert stream.length == len("".join(pieces) + rest)
    general = WindowDetokenizer(vocabulary)
    assert "".join(map(general.push, ids)) + general.finish() == "".join(pieces) + rest
    return pieces, rest


def test_only_bytes_that_are_joined_as_they_are_go_the_cheap_way():
    cheap = {name for name, built in BUILT.items() if Vocabulary(built).joins_bytes}
    assert cheap == {"byte_level"}


@pytest.mark.parametrize("name", BUILT)
def test_any_tokens_give_the_text_of_all_of_them(name):
    tokenizer = BUILT[name]
    vocabulary = Vocabulary(tokenizer)

    @QUICK
    @given(st.lists(st.integers(0, len(tokenizer) + 1), max_size=80))
    def check(ids):
        pieces, rest = streamed(vocabulary, ids)
        assert "".join(pieces) + rest == whole(tokenizer, ids)

    check()


@pytest.mark.parametrize("name", ["sentencepiece_like", "greedy_strip", "metaspace"])
def test_runs_of_spaces_keep_their_length(name):
    tokenizer = BUILT[name]
    ids = tokenizer.convert_tokens_to_ids(["▁Hello", *["▁"] * 20, "▁wor", "ld"])
    pieces, rest = streamed(Vocabulary(tokenizer), ids)
    assert "".join(pieces) + rest == "Hello" + " " * 21 + "world"


def test_any_tokens_of_the_default_model(tokenizer):
    vocabulary = Vocabulary(tokenizer)

    @QUICK
    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=60))
    def check(ids):
        pieces, rest = streamed(vocabulary, ids)
        assert "".join(pieces) + rest == whole(tokenizer, ids)

    check()


@pytest.mark.parametrize("name", ["sentencepiece_like", "byte_level", "default"])
def test_whole_text_never_shows_half_a_character(name, tokenizer):
    tokenizer = BUILT.get(name, tokenizer)
    vocabulary = Vocabulary(tokenizer)

    @QUICK
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁")))
    def check(text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assume("\ufffd" not in whole(tokenizer, ids))  # some bytes are in no vocabulary
        pieces, rest = streamed(vocabulary, ids)
        assert "\ufffd" not in "".join(pieces) + rest

    check()


@pytest.mark.parametrize("text", ["你好，世界。", "👩‍🚀🇨🇳👍🏽 ok", "ŝ🙂🙃 x", "한국어 텍스트"])
def test_characters_split_over_tokens_come_as_soon_as_they_are_whole(tokenizer, text):
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert any("\ufffd" in tokenizer.decode([id]) for id in ids)
    raw = b""
    stream = detokenizer(vocabulary)
    given_out = ""
    for id in ids:
        raw += vocabulary.name(id).bytes
        given_out += stream.push(id)
        assert given_out == raw.decode(errors="ignore")
    assert stream.finish() == ""
    assert given_out == text


def test_endless_broken_bytes_are_given_out_at_bounded_cost():
    tokenizer = BUILT["byte_level"]
    stray = tokenizer.convert_tokens_to_ids(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é")[0][
            0
        ][1]
    )
    ids = [stray] * 1000
    stream = WindowDetokenizer(Vocabulary(tokenizer))
    text = "".join(map(stream.push, ids))
    assert len(text) == 999
    assert len(stream._window) <= 64
    assert text + stream.finish() == whole(tokenizer, ids)


def test_special_and_stop_tokens_are_no_text(tokenizer):
    full_stop = tokenizer.convert_tokens_to_ids(".")
    vocabulary = Vocabulary(tokenizer, [full_stop])
    ids = tokenizer.encode("A.<|im_end|> B", add_special_tokens=False)
    pieces, rest = streamed(vocabulary, ids)
    assert "".join(pieces) + rest == "A B"


# ---------------------------------------------------------------- stop strings


def matched(stops: Sequence[str], parts: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join(map(matcher.push, parts))
    return text + matcher.finish(), matcher.matched


def by_definition(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "parts", "text", "stop"),
    [
        (["END"], ["abc E", "N", "D def"], "abc ", "END"),  # over three chunks
        (["END"], ["abc E", "N", "d def"], "abc ENd def", None),
        (["ab", "abc"], ["xa", "bc"], "x", "ab"),  # one is the other's prefix
        (["bc", "abcd"], ["abc", "d"], "a", "bc"),  # the first that is complete
        (["c", "bc", "abc"], ["abc"], "", "abc"),  # several end together: the longest
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),  # a partial match that begins again
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", "\n\n"),
        (["x"], ["no stop"], "no stop", None),
    ],
)
def test_stop_strings(stops, parts, text, stop):
    assert matched(stops, parts) == (text, stop)


@QUICK
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_stop_strings_by_definition(stops, parts):
    assert matched(stops, parts) == by_definition(stops, "".join(parts))


def test_only_what_could_become_a_match_is_held_back():
    matcher = StopMatcher(["END", "\nUser:"])
    assert matcher.push("all of this E") == "all of this "
    assert matcher.push("ven so\n") == "Even so"
    assert matcher.push("Us") == ""
    assert matcher.push("ual") == "\nUsual"


def grouped(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(c for c in set(cuts) if c < len(ids)), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", ["sentencepiece_like", "byte_level", "metaspace"])
def test_watch_and_stream_agree_for_any_grouping(name):
    tokenizer = BUILT[name]
    vocabulary = Vocabulary(tokenizer)
    cuts = st.lists(st.integers(0, 40), max_size=10)

    @QUICK
    @given(
        st.lists(st.integers(0, min(len(tokenizer), 30) - 1), max_size=40),
        st.lists(st.text('ld. oH!"#', min_size=1, max_size=3), min_size=1, max_size=4),
        cuts,
        cuts,
    )
    def check(ids, stops, cuts_a, cuts_b):
        watch = StopWatch(vocabulary, stops)
        counts = [watch.push(run) for run in grouped(ids, cuts_a)]
        count = counts[-1]
        text = TextStream(vocabulary, stops)
        accepted = ids if count is None else ids[:count]
        pieces = [text.push(run) for run in grouped(accepted, cuts_b)]
        assert text.stopped_at == watch.matched
        if count is not None:
            before = TextStream(vocabulary, stops)
            before.push(ids[: count - 1])
            assert before.stopped_at is None
        told = "".join(pieces) + text.finish()
        if watch.matched is None:
            assert told == whole(tokenizer, ids)
        else:
            assert whole(tokenizer, accepted).startswith(told + watch.matched)
            assert not any(stop in told for stop in stops)

    check()


def test_watch_counts_all_tokens_ever_pushed(tokenizer):
    ids = tokenizer.encode("one two three four", add_special_tokens=False)
    watch = StopWatch(Vocabulary(tokenizer), ["three"])
    assert watch.push(ids[:1]) is None
    assert watch.push(ids[1:]) == 3
    assert watch.push(ids) == 3
    assert watch.matched == "three"
