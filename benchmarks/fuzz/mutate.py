"""From good inputs to bad ones: JSON values, lines of text, bytes; all by a seeded `Random`."""

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

# Where readers' minds stop: ends of integers, floats that are none, texts that are code elsewhere.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1),
    *(0.5, -0.0, 1e308, -1e308, 1e-320, 10**30, float("inf"), float("nan")),
    *("", " ", "\x00", "a\nb", "😀", "é", "\ud800", "null", "true", "1e9", "-1", "0x10", "~"),
    *("{{ x }}", "${x}", "../../etc/passwd", "a/b/c", "%s%n", "x" * 300, "<|im_start|>", "9" * 400),
    *([], {}, [[]], [None], {"": None}, [0] * 300, {"kind": "start"}),
)
DEEP = (100, 980, 1010, 1030)  # nested so: below and beyond what parsers and printers bear
TEXTS = ("\t", "\n", "  ", ":", "- ", "[", "]", "{", "}", "&a ", "*a", "!!python/none ", "? ", "| ")
MORE_TEXTS = ("<<: *a", "#", '"', "'", "%YAML 9.9\n", "---\n", "...\n", "\x00", "\ufeff", "\u2028")


def odd(rng: random.Random) -> Any:
    """A value that stands where another is expected."""
    if rng.random() < 0.02:
        return f"@{rng.choice('[{')}{rng.choice(DEEP)}@"  # see `_dumped`
    value = rng.choice(ODD)
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def json_like(rng: random.Random, corpus: Sequence[Any]) -> bytes:
    """One of the values with up to four changes, as JSON; sometimes with bytes changed too."""
    value = json.loads(json.dumps(rng.choice(corpus)))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        value = _changed(rng, value, corpus)
    data = _dumped(value, ensure_ascii=rng.random() < 0.5)
    return some_bytes(rng, data, [data]) if rng.random() < 0.15 else data


def _dumped(value: Any, *, ensure_ascii: bool) -> bytes:
    """As JSON. What is nested deeper than Python prints is written by hand."""
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    if '"@' in text:
        text = re.sub(r'"@([{\[])([0-9]+)@"', _nested, text)
    return text.encode(errors="surrogatepass")


def _nested(told: re.Match[str]) -> str:
    deep = int(told[2])
    return "[" * deep + "1" + "]" * deep if told[1] == "[" else '{"a":' * deep + "1" + "}" * deep


def some_bytes(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Bits turned, bytes lost, inserted, repeated, cut off, or spliced with another's."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(6):
            case 0 if at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                del raw[at : at + rng.randrange(1, 9)]
            case 2:
                raw[at:at] = rng.choice((b"\x00", b"\xff", b'"', b"}", b"\n", rng.randbytes(4)))
            case 3:
                raw[at:at] = raw[at : at + rng.randrange(1, 60)] * rng.choice((1, 2, 40))
            case 4:
                del raw[at:]
            case _:
                other = rng.choice(corpus)
                raw[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(raw)


def text_like(rng: random.Random, corpus: Sequence[str]) -> bytes:
    """One of the texts with lines and words changed, as UTF-8; sometimes with bytes changed too."""
    lines = rng.choice(corpus).split("\n")
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        _LINES[rng.randrange(len(_LINES))](rng, lines, corpus)
        if not lines:
            lines = [""]
    data = "\n".join(lines).encode(errors="surrogatepass")
    return some_bytes(rng, data, [data]) if rng.random() < 0.1 else data


# ------------------------------------------------------------------------------------- JSON values


def _changed(rng: random.Random, value: Any, corpus: Sequence[Any]) -> Any:
    """The value with one of its parts changed, drawn by walking down from the top."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                del value[key]
            case 1:
                value[rng.choice(("", "x", key + "s", key.upper(), "kind"))] = odd(rng)
            case 2:
                value[_a_key(rng, corpus)] = value[key]
            case _:
                value[key] = _changed(rng, value[key], corpus)
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                del value[at]
            case 1:
                value.insert(at, odd(rng))
            case 2:
                value += value[at : at + 1] * rng.choice((1, 3, 200))
            case _:
                value[at] = _changed(rng, value[at], corpus)
        return value
    if isinstance(value, str) and rng.random() < 0.4:
        return value + rng.choice(("", "x", " ", "\n", "/0", value, "\x00", "é"))
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 1000, -1000))
    return odd(rng)


def _a_key(rng: random.Random, corpus: Sequence[Any]) -> str:
    other = rng.choice(corpus)
    return rng.choice(list(other)) if isinstance(other, dict) and other else "x"


# ------------------------------------------------------------------------------------------- lines


def _lose(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    del lines[rng.randrange(len(lines))]


def _repeat(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at:at] = [lines[at]] * rng.choice((1, 1, 2, 30))


def _borrow(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(rng.choice(corpus).split("\n")))


def _indent(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = " " * rng.randrange(1, 5) + lines[at] if rng.random() < 0.5 else lines[at].lstrip()


def _insert(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    at = rng.randrange(len(lines))
    place = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + rng.choice(TEXTS + MORE_TEXTS) + lines[at][place:]


def _reword(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    """One word, which is often a key or a value, becomes another."""
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    place = rng.randrange(len(words))
    tail = words[place][-1:] if words[place][-1:] in ":,]}" else ""
    value = odd(rng)
    if rng.random() < 0.4:
        other = rng.choice(rng.choice(corpus).split())
        words[place] = other
    else:
        words[place] = (value if isinstance(value, str) else json.dumps(value)) + tail
    lines[at] = " ".join(words)


def _nest(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    deep = rng.choice((3, 50, 400, 2000))
    key = rng.choice(("x: ", "model: ", ""))
    lines.append(key + rng.choice(("[", "{a: ", "- ", "? ")) * deep)


def _laugh(rng: random.Random, lines: list[str], corpus: Sequence[str]) -> None:
    """Aliases of aliases of aliases."""
    lines.append("l0: &l0 [x, x, x, x, x, x, x, x, x, x]")
    for level in range(1, rng.choice((2, 4, 9))):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]")


_LINES: tuple[Callable[[random.Random, list[str], Sequence[str]], None], ...] = (
    *([_lose, _repeat, _borrow, _indent] * 2),
    *([_insert] * 3),
    *([_reword] * 8),
    _nest,
    _laugh,
)
