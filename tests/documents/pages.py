"""What README.md, the pages below examples and docs/*.md show: code blocks, quotations in running text, and tables. Read with
markdown-it-py, which Rich requires.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[2]
#: By their paths in the repository.
PAGES: Final = (
    "README.md",
    "examples/README.md",
    "packages/faststream-halfmq/README.md",
    *sorted(f"examples/{path.parent.name}/README.md" for path in (ROOT / "examples").glob("*/README.md")),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)


class Block(NamedTuple):
    page: str
    #: Of its first line of text, counted from 1.
    line: int
    #: As after the fence; empty for an indented block.
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which people and the table in ``blocks.py`` name it."""
        return self.text.partition("\n")[0]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Quote(NamedTuple):
    """``text`` in back quotes, outside of a block."""

    page: str
    line: int
    text: str


@cache
def _tokens(page: str) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8")))


def _line(token: Token) -> int:
    assert token.map is not None
    return token.map[0] + 1


@cache
def blocks(page: str) -> tuple[Block, ...]:
    return tuple(
        Block(page, _line(token) + (token.type == "fence"), token.info.strip(), token.content)
        for token in _tokens(page)
        if token.type in ("fence", "code_block")
    )


def quotes(page: str) -> Iterator[Quote]:
    for token in _tokens(page):
        line = _line(token) if token.map else 0
        for child in token.children or ():
            if child.type == "code_inline":
                yield Quote(page, line, child.content)


def links(page: str) -> list[str]:
    """Targets as they are written."""
    return [
        str(child.attrs["href"])
        for token in _tokens(page)
        for child in token.children or ()
        if child.type == "link_open"
    ]


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    tokens = _tokens(page)
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def table(page: str, heading: str, skip: int = 0) -> list[dict[str, str]]:
    """The rows of table ``skip`` below a heading, each by the titles of the columns, with the text of a cell as it is written."""
    tokens = _tokens(page)
    begin = next(
        at for at, token in enumerate(tokens) if token.type == "heading_open" and tokens[at + 1].content == heading
    )
    tables = [at for at in range(begin, len(tokens)) if tokens[at].type == "table_open"]
    rows: list[list[str]] = []
    for token, content in pairwise(tokens[tables[skip] :]):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(content.content)
        elif token.type == "table_close":
            break
    titles, *found = rows
    return [dict(zip(titles, row, strict=True)) for row in found]


def commands(block: Block) -> list[str]:
    """The commands of a block in the shell's language, without prompts, output and explanations.

    An explanation stands after two blanks or a ``#``; a line that ends with a backslash continues. If a block has prompts (``$``), only
    its lines with prompts are commands.
    """
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [
        command for line in lines if not line.startswith(" ") and (command := re.split(r" {2,}| #", line)[0].strip())
    ]


def output(block: Block) -> str:
    """What a block with prompts shows below them; all of a block without."""
    return "\n".join(line for line in block.text.splitlines() if not line.startswith("$ "))


def same(shown: str, said: str) -> bool:
    """Whether a page shows what a program said.

    In what is shown, ``...`` stands for any text, a number or a time for any number, a duration for any duration, ``DIR`` for any
    directory, and any blanks and line breaks for others. Everything else is literal.
    """
    return re.fullmatch(pattern(shown), " ".join(said.split())) is not None


#: Number, with what groups and divides its digits.
_NUMBER: Final = r"\d(?:[\d,.:]*\d)?"
#: A duration, whose unit depends on how long it is.
_DURATION: Final = rf"{_NUMBER} (?:ms|s|min|h|d)\b"


def pattern(shown: str) -> str:
    """``same`` as a regular expression for a text whose blanks are single."""
    words = re.split(rf"(\.\.\.|\bDIR\b|{_DURATION}|{_NUMBER})", " ".join(shown.split()))
    made = []
    for word in words:
        if word == "...":
            made.append(".*")
        elif word == "DIR":
            made.append(r"/\S*?")
        elif re.fullmatch(_DURATION, word):
            made.append(_DURATION)
        elif re.fullmatch(_NUMBER, word):
            made.append(_NUMBER)
        else:
            made.append(re.escape(word))
    return "".join(made)
