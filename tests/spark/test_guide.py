"""The Python blocks of docs/spark.md, run in order as one program against a broker; what the page says they print is compared.

A block ```text directly after a block ```python is its output; "..." in it stands for any text.
"""

import contextlib
import doctest
import io
import re
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


def run(block: Block, names: dict[str, Any]) -> str:
    """What it prints. Lines of tracebacks are those of the page."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.code, str(PAGE), "exec"), names)
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


def test_a_block_that_prints_something_else_is_noticed() -> None:
    page = "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\n```python\nprint('anything')\n```\n"
    right, silent = blocks(page)
    assert difference(right, run(right, {})) == ""
    assert "42\n" in difference(right._replace(output="43\n"), run(right, {}))
    assert "anything" in difference(silent, run(silent, {}))
    with pytest.raises(ZeroDivisionError):
        run(right._replace(code="1 / 0"), {})
