"""README.md and README.zh-CN.md say the same, as far as both languages write it alike.

Compared, in order: headings, code without its comments, rows of tables, and paragraphs by their
links, inline code and figures. The words between them are not.
"""

import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
# The line under the title that leads to the other language.
SWITCH = {ENGLISH: f"[简体中文]({CHINESE})", CHINESE: f"[English]({ENGLISH})"}

HEADING = re.compile(r"(#+) ")
ITEM = re.compile(r"(\*|[0-9]+\.) ")
COMMENT = re.compile(r"(?:^|\s+)#(?:\s.*)?$")
CELL = re.compile(r"(?<!\\)\|")  # `\|` is part of a cell
INLINE_CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"(?<=\]\()[^)\s]+")
# Digits inside a name (int8, H100) belong to the name.
FIGURE = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?:[.,][0-9]+)*(?:e-?[0-9]+)?")
HAN = re.compile("[\u4e00-\u9fff]")


class Part(NamedTuple):
    """A line of code, a row or a paragraph: where it begins, its text, what must be alike in it."""

    line: int
    text: str
    alike: dict[str, list[str]]


Section = dict[str, list[Part]]
KINDS = ("headings", "lines of code", "rows", "paragraphs")


def inline_code(text: str) -> list[str]:
    """Each once: a language may repeat a name where the other says "it"."""
    return sorted({" ".join(code.split()) for code in INLINE_CODE.findall(text)})


def prose(line: int, text: str, **alike: list[str]) -> Part:
    bare = INLINE_CODE.sub("", text)
    links = [target for target in LINK.findall(bare) if target not in SWITCH]
    figures = FIGURE.findall(LINK.sub("", bare))
    return Part(
        line, text, alike | {"links": links, "inline code": inline_code(text), "figures": figures}
    )


def row(line: int, text: str) -> Part:
    cells = CELL.split(text)[1:-1]
    return prose(line, text, columns=[str(len(cells))], first_column=inline_code(cells[0]))


def sections(text: str) -> list[Section]:
    """What stands from each heading to the next, by kind; the file begins with a heading."""
    found: list[Section] = []
    fenced, blocks, above = False, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.startswith("```")
        if fence or fenced or line.startswith("    "):
            kind, fenced = "lines of code", fenced != fence
            blocks += above != kind
            if code := COMMENT.sub("", line):
                found[-1][kind].append(Part(number, line, {f"code block {blocks}": [code]}))
        elif level := HEADING.match(line):
            kind = "headings"
            found.append({each: [] for each in KINDS})
            found[-1][kind].append(Part(number, line, {"level": [level[1]]}))
        elif line.startswith("|"):
            kind = "rows"
            found[-1][kind].append(row(number, line))
        elif line:
            kind = "paragraphs"
            item = ITEM.match(line)
            if above == kind and not item:
                begun = found[-1][kind].pop()
                found[-1][kind].append(prose(begun.line, f"{begun.text}\n{line}"))
            else:
                found[-1][kind].append(prose(number, line))
        else:
            kind = ""
        above = kind
    return found


def first_difference(kind: str, english: list[Part], chinese: list[Part]) -> list[str]:
    """None, or one that says what differs and where: after it the parts may no longer pair."""
    counts = "" if len(english) == len(chinese) else f" ({len(english)} and {len(chinese)} {kind})"
    for ours, theirs in zip_longest(english, chinese):
        if ours is None or theirs is None:
            name, part = (CHINESE, theirs) if ours is None else (ENGLISH, ours)
            return [f"only {name}:{part.line} has {part.text!r}{counts}"]
        for what in sorted({*ours.alike, *theirs.alike}):
            here, there = Counter(ours.alike.get(what)), Counter(theirs.alike.get(what))
            if here != there:
                return [
                    f"{what.replace('_', ' ')}: {ENGLISH}:{ours.line} has "
                    f"{[*(here - there).elements()]} where {CHINESE}:{theirs.line} has "
                    f"{[*(there - here).elements()]}{counts}"
                ]
    return []


def differences(english: str, chinese: str) -> list[str]:
    ours, theirs = sections(english), sections(chinese)
    headings = [
        [part for section in side for part in section["headings"]] for side in (ours, theirs)
    ]
    if found := first_difference("headings", *headings):
        return found
    return [
        message
        for here, there in zip(ours, theirs, strict=True)
        for kind in KINDS[1:]
        for message in first_difference(kind, here[kind], there[kind])
    ]


def untranslated(chinese: str) -> list[str]:
    """Headings and paragraphs without a Chinese word."""
    return [
        f"{CHINESE}:{part.line} is not in Chinese: {part.text!r}"
        for section in sections(chinese)
        for part in (*section["headings"], *section["paragraphs"])
        if not HAN.search(part.text) and part.text != SWITCH[CHINESE]
    ]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in SWITCH}


def test_both_languages_say_the_same(texts: dict[str, str]) -> None:
    found = differences(texts[ENGLISH], texts[CHINESE])
    assert not found, "\n".join(found)


def test_the_chinese_file_is_in_chinese(texts: dict[str, str]) -> None:
    found = untranslated(texts[CHINESE])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", SWITCH)
def test_the_other_language_is_linked_under_the_title(texts: dict[str, str], name: str) -> None:
    assert texts[name].splitlines()[1:4] == ["", SWITCH[name], ""]


# ------------------------------------------------------------------- can each comparison fail?

SMALL = f"""\
# Title

{SWITCH[ENGLISH]}

Run `pdd
serve`, see [the list](docs/list.md): 4,000 km and 1e-3 lost, on an H100.

    make serve     # starts it

## Keys

| key | what it does |
|---|---|
| `a \\| b` | 5 s, `c` |

```yaml
# a model
model: small            # or a path
```

* One.
* Two.
"""
KLEIN = f"""\
# 标题

{SWITCH[CHINESE]}

见[清单](docs/list.md)，运行 `pdd serve`（`pdd serve` 即可）：H100 上丢包 1e-3，4,000 km。

    make serve     # 启动

## 键

| 键 | 作用 |
|---|---|
| `a \\| b` | `c`，5 s |

```yaml
model: small            # 或路径
```

* 一。
* 二。
"""


def test_a_translation_that_is_in_step_has_no_differences() -> None:
    assert differences(SMALL, KLEIN) == []
    assert untranslated(KLEIN) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## 键", "### 键", "level: README.md:10 has ['##'] where README.zh-CN.md:9 has ['###']"),
        ("## 键\n", "", "only README.md:10 has '## Keys' (2 and 1 headings)"),
        (
            "make serve ",
            "make test ",
            "code block 1: README.md:8 has ['    make serve'] where README.zh-CN.md:7 has "
            "['    make test']",
        ),
        (
            "model: small",
            "model: large",
            "code block 2: README.md:18 has ['model: small'] where README.zh-CN.md:16 has "
            "['model: large']",
        ),
        ("```\n", "more: 1\n```\n", "code block 2: README.md:19 has ['```'] where"),
        ("| `a", "| `x", r"first column: README.md:14 has ['a \\| b'] where"),
        ("5 s |", "5 s | |", "columns: README.md:14 has ['2'] where README.zh-CN.md:13 has ['3']"),
        ("，5 s", "，6 s", "figures: README.md:14 has ['5'] where README.zh-CN.md:13 has ['6']"),
        ("5 s |\n", "5 s |\n| 多 | |\n", "only README.zh-CN.md:14 has '| 多 | |' (3 and 4 rows)"),
        ("docs/list", "docs/other", "links: README.md:5 has ['docs/list.md'] where"),
        ("`pdd serve`（", "（", "inline code: README.md:5"),
        ("1e-3", "1e-4", "figures: README.md:5 has ['1e-3'] where README.zh-CN.md:5 has ['1e-4']"),
        ("* 二。\n", "", "only README.md:22 has '* Two.' (2 and 1 paragraphs)"),
    ],
)
def test_a_difference_is_named_with_its_lines(old: str, new: str, message: str) -> None:
    changed = KLEIN.replace("（`pdd serve` 即可）", "（即可）").replace(old, new, 1)
    (found,) = differences(SMALL, changed)
    assert found.startswith(message)


def test_every_section_tells_its_first_difference() -> None:
    changed = KLEIN.replace("4,000", "4,001").replace("`c`", "`d`")
    assert [message.partition(":")[0] for message in differences(SMALL, changed)] == [
        "figures",
        "inline code",
    ]


@pytest.mark.parametrize(("old", "new"), [("标题", "Title"), ("* 一。", "* One.")])
def test_what_was_not_translated_is_named(old: str, new: str) -> None:
    (found,) = untranslated(KLEIN.replace(old, new))
    assert found.startswith(f"{CHINESE}:")
    assert new in found
