"""Names of single tokens."""

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from orchestrator.live.openai.vocabulary import Vocabulary


def test_encoding_is_the_tokenizers_own(tokenizer):
    vocabulary = Vocabulary(tokenizer)
    for text in ("Hello, world", " 你好 👩‍🚀", "<|im_start|>user\nx<|im_end|>"):
        for special in (True, False):
            ids = vocabulary.encode(text, add_special_tokens=special)
            assert list(ids) == tokenizer.encode(text, add_special_tokens=special)


def test_encoding_is_never_truncated(tokenizer):
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.enable_truncation(4)
    core.enable_padding(length=64)
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=core))
    assert len(vocabulary.encode("one two three four five six", add_special_tokens=True)) == 6


def test_names_of_byte_level_tokens(tokenizer):
    vocabulary = Vocabulary(tokenizer)
    (hello,) = vocabulary.encode(" hello", add_special_tokens=False)
    assert vocabulary.name(hello) == (" hello", b" hello")
    assert vocabulary.name(tokenizer.eos_token_id) == ("<|im_end|>", b"<|im_end|>")
    ids = vocabulary.encode("你好 👩‍🚀", add_special_tokens=False)
    names = [vocabulary.name(id) for id in ids]
    assert b"".join(name.bytes for name in names).decode() == "你好 👩‍🚀"
    assert "bytes:\\xe4\\xbd" in {name.text for name in names}
    assert not any("\ufffd" in name.text for name in names)


def test_names_of_fallback_tokens_and_leading_spaces():
    names = ["<unk>", "▁Hello", "<0xE4>", "<0x41>"]
    core = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[]))
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=core))
    assert vocabulary.name(1) == (" Hello", b" Hello")
    assert vocabulary.name(2) == ("bytes:\\xe4", b"\xe4")
    assert vocabulary.name(3) == ("A", b"A")
    assert vocabulary.name(99) == ("", b"")
