"""Type checkers find the mistakes of users in ``mistakes.py``, and nothing else in it; and nothing in what our pages show."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents.pages import PAGES, blocks
from tests.types.checkers import ROOT, Report, mypy, pyright

FILE = Path(__file__).with_name("mistakes.py")
#: Mistakes that a checker cannot find in its usual mode, with the reason.
UNFOUND = {
    "mypy": {},
    "pyright": {"verdict_misspelt": 'reportUnnecessaryComparison is not part of the mode "standard"'},
}
#: Blocks of pages that are parts of a program, whose other parts are in the reader's service or in the blocks before.
WHOLE = ("from sqlalchemy import create_engine", "import asyncio")

Check = Callable[[list[Path], Path], list[Report]]


def mistakes() -> dict[str, int]:
    """Function or class -> its line that is wrong."""
    found: dict[str, int] = {}
    name = ""
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        if line.startswith(("def ", "async def ", "class ")):
            name = line.removeprefix("async ").split()[1].partition("(")[0].rstrip(":")
        if line.endswith("# wrong"):
            assert name not in found, f"{name} has two mistakes"
            found[name] = number
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_mistakes_of_users_are_found_and_nothing_else(check: Check, tmp_path: Path) -> None:
    planted = mistakes()
    assert len(planted) >= 36
    reported = {one.line: one.text for one in check([FILE], tmp_path) if one.file == FILE}
    unfound = {name for name, line in planted.items() if line not in reported}
    assert unfound == UNFOUND[check.__name__].keys()
    assert len(planted) - len(unfound) >= 30
    assert {line: text for line, text in reported.items() if line not in planted.values()} == {}


def _programs(folder: Path) -> list[Path]:
    """The examples, and the blocks of the pages that are whole programs, as files."""
    files = sorted((ROOT / "examples").glob("*.py"))
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python" and block.first in WHOLE:
                file = folder / f"{Path(page).stem.replace('-', '_').lower()}_{block.line}.py"
                file.write_text(block.text)
                files.append(file)
    return files


def _of_mypy(files: list[Path], folder: Path) -> list[Report]:
    return mypy(files, folder, strict=False)


@pytest.mark.slow
@pytest.mark.parametrize("check", [_of_mypy, pyright])
def test_what_the_pages_show_has_no_errors(check: Check, tmp_path: Path) -> None:
    files = _programs(tmp_path)
    assert len(files) >= 14
    ours = {file.resolve() for file in files}
    assert [one for one in check(files, tmp_path) if one.file in ours] == []
