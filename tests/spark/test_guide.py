"""The Python blocks of docs/spark.md, pasted in order into one prompt, against a broker; what the page says they print is compared.

A prompt takes line by line: after an indented block it needs an empty line, and inside of one there must be none. What can be pasted so is
a program as well. A block ```text directly after a block ```python is its output; "..." in it stands for any text.
"""

import code
import contextlib
import doctest
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.support.served import Served

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "spark.md"
#: The addresses that the page names; the test has its own.
_URL: Final = "rocketmq://127.0.0.1:9876"
_WORK: Final = "/tmp/guide"
_BLOCK: Final = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    #: Of its first line of code, in the page.
    line: int
    code: str
    #: None: the page shows none.
    output: str | None


def blocks(page: str) -> list[Block]:
    return [
        Block(page.count("\n", 0, match.start("code")) + 1, match["code"], match["output"])
        for match in _BLOCK.finditer(page)
    ]


class Prompt(code.InteractiveConsole):
    """Python's prompt. Errors are raised, and no value of an expression is shown: a program shows none either."""

    def paste(self, text: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, sys, "displayhook", sys.displayhook)
            sys.displayhook = lambda value: None
            for line in (*text.splitlines(), ""):
                self.push(line)

    def runcode(self, code: Any) -> None:
        exec(code, self.locals)

    def showsyntaxerror(self, filename: str | None = None, **_: Any) -> None:
        raise

    def showtraceback(self) -> None:
        raise


class Listener(Prompt):
    """Only compiles."""

    def runcode(self, code: Any) -> None:
        pass


def run(block: Block, names: dict[str, Any]) -> str:
    """What it prints, pasted into a prompt."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        Prompt(names, f"{PAGE.name}, line {block.line}").paste(block.code)
    return printed.getvalue()


def difference(block: Block, printed: str) -> str:
    """Empty if the page shows what was printed."""
    shown = doctest.Example(block.code, _trimmed(block.output or ""))
    checker, options = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_UDIFF
    if checker.check_output(shown.want, _trimmed(printed), options):
        return ""
    return f"{PAGE.name}, line {block.line}: {checker.output_difference(shown, _trimmed(printed), options)}"


def _trimmed(text: str) -> str:
    """``show`` ends with an empty line, which Markdown need not have."""
    return re.sub(r"\n{2,}", "\n", f"{text.strip()}\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("guide")
    served = Served(work / "data", work / "broker.log")
    served.start()
    yield served
    served.stop()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_guide_prints_what_it_shows(spark: Any, broker: Served) -> None:
    page = PAGE.read_text()
    assert page.count("```python") == len(blocks(page)) > 12
    page = page.replace(_URL, broker.url).replace(_WORK, str(broker.data.parent))
    names: dict[str, Any] = {}
    try:
        differences = [difference(block, run(block, names)) for block in blocks(page)]
    finally:
        spark.catalog.dropTempView("orders")
    assert "".join(differences) == ""


@pytest.mark.parametrize("block", blocks(PAGE.read_text()), ids=lambda block: f"line-{block.line}")
def test_each_block_can_be_pasted_into_a_prompt_and_is_a_program(block: Block) -> None:
    compile(block.code, PAGE.name, "exec")
    Listener({}).paste(block.code)


@pytest.mark.parametrize("text", ["if True:\n    a = 1\nb = 2", "def f():\n    a = 1\n\n    return a"])
def test_what_cannot_be_pasted_is_noticed(text: str) -> None:
    compile(text, "a program", "exec")
    with pytest.raises(SyntaxError):
        Listener({}).paste(text)


def test_a_block_that_prints_something_else_is_noticed() -> None:
    page = "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\n```python\nprint('anything')\n```\n"
    right, silent = blocks(page)
    assert difference(right, run(right, {})) == ""
    assert "42\n" in difference(right._replace(output="43\n"), run(right, {}))
    assert "anything" in difference(silent, run(silent, {}))
    with pytest.raises(ZeroDivisionError):
        run(right._replace(code="1 / 0"), {})
