"""Every code block of the pages is run or compared by a test, or says why not."""

import ast
import re
import textwrap
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.documents.blocks import BLOCKS, By, Not, matched
from tests.documents.pages import PAGES, ROOT, Block, blocks, commands, output, same


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_block_has_its_row_and_every_row_its_block() -> None:
    shown = {page: blocks(page) for page in PAGES if blocks(page)}
    assert sum(map(len, shown.values())) > 60
    assert BLOCKS.keys() == shown.keys()
    for page, found in shown.items():
        rows, left = matched(found, BLOCKS[page])
        without = [f"{block.place}: {block.first}" for block, row in zip(found, rows, strict=True) if row is None]
        assert without == [], "add a row to tests/documents/blocks.py: the test that runs the block, or why none does"
        assert left == [], f"rows of {page} without a block"


def test_a_block_without_a_row_and_a_row_without_a_block_are_noticed() -> None:
    one, other = (Block("page", 1, "python", f"{name}()\n") for name in ("one", "other"))
    shell = Block("page", 1, "sh", "ls\n")
    run, not_run = By("test"), Not("because it is so")
    assert matched([one, other], [("one", run), ("other", not_run)]) == ([run, not_run], [])
    assert matched([one, other], [("one", run)]) == ([run, None], [])
    assert matched([other, one], [("one", run), ("other", run)]) == ([None, run], ["other"]), "in the order of the page"
    assert matched([one, shell, other], [("other", not_run), ("```python", run)]) == ([run, None, not_run], [])
    assert matched([one], [("one", run), ("gone", run)]) == ([run], ["gone"])


def test_every_test_that_is_named_exists_and_takes_its_blocks() -> None:
    named = {one.test for rows in BLOCKS.values() for _, one in rows if isinstance(one, By)}
    for test in named:
        file, _, function = test.partition("::")
        assert function in functions(file), test
    #: Runners of a page of their own, which read it whole.
    whole = {
        "tests/spark/test_guide.py": "spark.md",
        "packages/faststream-halfmq/tests/test_readme.py": "README.md",
        "tests/unit/core/transaction/test_transactions_page.py": "transactions",
    }
    for file in {test.partition("::")[0] for test in named}:
        assert whole.get(file, "blocks_of(") in (ROOT / file).read_text(), file


def test_every_reason_says_something() -> None:
    for rows in BLOCKS.values():
        for first, one in rows:
            assert not isinstance(one, Not) or len(one.why.split()) >= 4, first


@pytest.mark.parametrize(
    ("shown", "said", "is_same"),
    [
        ("12 of 1,004 rows in 0.3 s", "7 of 3 rows\n in 11.25 s", True),
        ("12 rows", "no rows", False),
        ("12 rows", "12 rows more", False),
        ("store DIR: case I; ...", "store /tmp/x-1/data: case I; cutting at 1", True),
        ("store DIR: case I; ...", "store /tmp/x-1/data: case K; cutting at 1", False),
        ("(a.b)", "(axb)", False),
    ],
)
def test_what_is_shown_is_compared_literally_but_for_numbers_dots_and_directories(
    shown: str, said: str, is_same: bool
) -> None:
    assert same(shown, said) == is_same


def test_commands_are_told_from_output_and_explanations() -> None:
    shell = (
        "halfmq tx list          undecided ones\nhalfmq tx show TX_ID # one\n        of them\nhalfmq tx \\\n  stats\n"
    )
    assert commands(Block("page", 1, "sh", shell)) == ["halfmq tx list", "halfmq tx show TX_ID", "halfmq tx stats"]
    with_prompt = Block("page", 1, "", "$ halfmq store dump DIR --kind x\n{1}\n")
    assert (commands(with_prompt), output(with_prompt)) == (["halfmq store dump DIR --kind x"], "{1}")


def test_a_page_that_installs_halfmq_does_so_from_a_checkout() -> None:
    """There is no package on an index."""
    installing = [page for page in PAGES if "pip install" in (ROOT / page).read_text()]
    assert len(installing) > 10
    for page in installing:
        text = (ROOT / page).read_text()
        assert not re.findall(r"pip install [^`#\n]*[ ']halfmq\b", text), page
        assert "checkout" in text.lower(), page


def imports_of_halfmq(text: str) -> list[tuple[str, str]]:
    """(module, name) of each ``from halfmq... import`` in a program; text that is no whole program has none."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return []
    return [
        (node.module, one.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "halfmq"
        for one in node.names
    ]


def _exists(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


def test_what_a_page_imports_exists() -> None:
    """Also where a program runs in the thorough tests only."""
    shown = {(block.place, *one) for page in PAGES for block in blocks(page) for one in imports_of_halfmq(block.text)}
    assert len(shown) > 15
    missing = [f"{place}: {module}.{name}" for place, module, name in shown if not _exists(module, name)]
    assert not missing, missing
    assert imports_of_halfmq("def f():\n    from halfmq.client import sync, gone\n") == [
        ("halfmq.client", "sync"),
        ("halfmq.client", "gone"),
    ]
