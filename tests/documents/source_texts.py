"""Whether a text that a page quotes is one that the code can say: a message of an exception, a line of the log, output of a command.

The strings of the source are patterns: what an f-string or a ``%`` inserts is a gap. A quotation is found if it is a part of such a string
whose gaps contain only what stands for something else (a number, a word in capital letters, ``...``, a path, a name of the
examples), what the operating system says, or, again, strings of the source.
"""

import ast
import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.documents.pages import ROOT

#: What is inserted into a string.
Gap = None
#: The parts of a string, gaps between them.
Text = tuple[str | None, ...]

#: Names that the pages use in messages, of topics, groups and the like.
EXAMPLES: Final = frozenset({"orders", "archive", "ada", "shop", "reminder"})
_PERCENT: Final = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
#: Of the words of a quotation, how many must be in one string.
_LITERAL_SHARE: Final = 0.5
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
#: Digits and the like; words in capital letters, also with a path behind them; paths; ellipses; units and punctuation.
_STANDS_FOR: Final = re.compile(
    r"(?:/\S+|[A-Z][A-Z0-9_]*(?:/\S*)?(?::[A-Z]+)?|\.\.\.|[\d.,:+-]+|[^\w\s]+|\s+|(?:UTC|MiB|GiB|days|min|h|s|ms)\b)*"
)


def _strings(tree: ast.AST) -> Iterator[Text]:
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents | inside:
            yield _with_gaps([node.value])
        elif isinstance(node, ast.JoinedStr):
            yield _with_gaps([part.value if isinstance(part, ast.Constant) else Gap for part in node.values])


def _with_gaps(parts: list[str | None]) -> Text:
    """Places of ``%`` are gaps, blanks are single."""
    made: list[str | None] = []
    for part in parts:
        if part is Gap:
            made.append(Gap)
            continue
        for at, text in enumerate(_PERCENT.split(part)):
            made += [Gap, text] if at else [text]
    return tuple(part if part is Gap else re.sub(r"\s+", " ", part) for part in made if part != "")


@cache
def source_texts() -> tuple[Text, ...]:
    found = {
        text
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in _strings(ast.parse(path.read_text(encoding="utf-8")))
        if any(part and _WORD.search(part) for part in text)
    }
    said = {os.strerror(number) for number in errno.errorcode} | {"Name or service not known"}
    return (*found, *((text,) for text in said), *((text[0].lower() + text[1:],) for text in said))


@cache
def _of_word() -> dict[str, list[Text]]:
    found: dict[str, list[Text]] = {}
    for text in source_texts():
        for word in {word for part in text if part for word in _WORD.findall(part)}:
            found.setdefault(word, []).append(text)
    return found


def is_said(quotation: str) -> bool:
    """Whether the code can say it. The quotation may leave out something at its ends, and at each ``...``."""
    text = " ".join(quotation.split()).removeprefix("halfmq: ")
    parts = [part.strip() for part in text.split("...") if _WORD.search(part)]
    return all(map(_is_part, parts)) or _is_joined(text)


def _is_part(text: str) -> bool:
    return any(
        all(_stands_for_something(gap) for gap in gaps)
        for source in _likely(text)
        for gaps in _gaps(text, source, whole=False)
    )


@cache
def _stands_for_something(gap: str) -> bool:
    """Of what is inserted: a placeholder, or a whole string of the source in whose gaps are such."""
    gap = re.sub(r"^\[Errno \d+\] ", "", gap.strip())
    if _STANDS_FOR.fullmatch(gap) or gap in EXAMPLES:
        return True
    return any(
        all(one != gap and _stands_for_something(one) for one in gaps)
        for source in _likely(gap)
        for gaps in _gaps(gap, source, whole=True)
    )


def _is_joined(text: str) -> bool:
    """A message and its hint in parentheses (``HalfmqError``), or a message and its reason behind a colon."""
    joints = [(match.start(), match.end(), text.endswith(")")) for match in re.finditer(r" \(", text)]
    joints = [joint for joint in joints if joint[2]] + [
        (match.start(), match.end(), False) for match in re.finditer(": ", text)
    ]
    return any(
        _stands_for_something(text[:end]) and _stands_for_something(text[start : len(text) - in_parentheses])
        for end, start, in_parentheses in joints
    )


def _likely(text: str) -> list[Text]:
    """The strings of the source that have most of the words of ``text``, other than those that stand for something."""
    words = {word for word in _WORD.findall(text) if not word.isupper()} - EXAMPLES
    counted = Counter(id(source) for word in words for source in _of_word().get(word, ()))
    by_id = {id(source): source for word in words for source in _of_word().get(word, ())}
    return [by_id[one] for one, count in counted.most_common() if count >= _LITERAL_SHARE * len(words)]


def _gaps(text: str, source: Text, *, whole: bool) -> Iterator[list[str]]:
    """What ``text`` has in the gaps of ``source``, for each way in which it is the whole of it, or a part of it."""
    if whole:
        yield from _rest(text, 0, source, 0, 0, [], whole)
        return
    for number, part in enumerate(source):
        if part is Gap:
            yield from _rest(text, 0, source, number, 0, [], whole)
            continue
        for offset in range(len(part)):
            if part[offset] == text[0] and not _is_inside_a_word(part, offset):
                yield from _rest(text, 0, source, number, offset, [], whole)


def _is_inside_a_word(text: str, at: int) -> bool:
    return text[max(0, at - 1) : at].isalnum() and text[at : at + 1].isalnum()


def _rest(
    text: str, at: int, source: Text, number: int, offset: int, gaps: list[str], whole: bool
) -> Iterator[list[str]]:
    if number == len(source):
        if at == len(text):
            yield gaps
    elif (part := source[number]) is not Gap:
        literal = part[offset:]
        if text.startswith(literal, at):
            yield from _rest(text, at + len(literal), source, number + 1, 0, gaps, whole)
        elif not whole and literal.startswith(text[at:]) and not _is_inside_a_word(literal, len(text) - at):
            yield gaps
    elif number + 1 == len(source):
        yield [*gaps, text[at:]]
    else:
        following = source[number + 1]
        for end in range(at, len(text) + 1):
            if end == len(text) and not whole:
                yield [*gaps, text[at:]]
            elif following is Gap or text.startswith(following[:1], end):
                yield from _rest(text, end, source, number + 1, 0, [*gaps, text[at:end]], whole)
