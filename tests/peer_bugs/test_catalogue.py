"""All 23 are there, each with a test that says whose bug it is, and the README says the same."""

import ast
import re
from pathlib import Path

from tests.peer_bugs.catalogue import BUGS, table
from tests.peer_bugs.plants import PLANTS

HERE = Path(__file__).parent
#: Tests about the tests.
NOT_OF_A_BUG = {"test_catalogue.py", "test_each_test_is_red_with_its_bug.py"}


def texts_of_tests() -> dict[str, str]:
    """``file::test`` -> docstring, of every test of a bug in this directory."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        if path.name not in NOT_OF_A_BUG:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    found[f"{path.name}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def test_there_are_23_and_every_test_is_one_of_them() -> None:
    assert len(BUGS) == 23
    assert {bug.test for bug in BUGS} == set(texts_of_tests())
    assert len({bug.test for bug in BUGS}) == 23


def test_every_test_says_whose_bug_it_is_and_what_holds_here() -> None:
    texts = texts_of_tests()
    for bug in BUGS:
        text = texts[bug.test]
        whose = bug.peer.split(" ")[0].split(",")[0]
        for name in (whose, *re.findall(r"#\d+", bug.peer)):
            assert name in text, f"{bug.test} does not name {name}"
        assert re.search(r"\b[Hh]ere\b", text.partition("\n\n")[2]), f"{bug.test} does not say what holds here"


def test_every_bug_can_be_put_back() -> None:
    assert all(bug.plants for bug in BUGS)
    assert {plant for bug in BUGS for plant, _ in bug.plants} == set(PLANTS)


def test_the_readme_has_the_same_table() -> None:
    assert table() in (HERE / "README.md").read_text(), "copy what catalogue.table() gives into README.md"
