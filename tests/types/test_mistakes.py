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
#: Blocks of pages that are whole programs: page, first line. Others are parts of one, whose rest the reader has.
WHOLE = (
    ("README.md", "from sqlalchemy import create_engine"),
    ("docs/outbox.md", "import asyncio"),
    ("docs/request-reply.md", "import asyncio"),
    ("docs/tracing.md", "import asyncio"),
)
#: In a line that a checker reports because of the types of another library, which the program uses as that library's pages do.
OTHERS = {
    "inserted_primary_key": "SQLAlchemy: the result of an INSERT is typed as any Result",
    "__table__.create(": "SQLAlchemy: __table__ is typed as a FromClause",
    "span.start_time": "OpenTelemetry: a span that has not begun has none",
    "dict(record.headers())": "confluent-kafka: headers may be missing, or a dict",
    "json.loads(record.value())": "confluent-kafka: a message may have no value",
    "consumer.commit(record)": "confluent-kafka: the arguments are typed as keywords",
    "inbox.once(session, received": "SimpleNamespace: pyright knows no attributes of it",
}

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


def _examples() -> list[Path]:
    """The programs, and the modules of the projects; Django has no types."""
    projects = [
        path for path in (ROOT / "examples").glob("*/*.py") if not path.name.startswith(("test_", "conftest", "manage"))
    ]
    return sorted([*(ROOT / "examples").glob("*.py"), *projects])


def _programs(folder: Path) -> list[Path]:
    """The examples, and the blocks of the pages that are whole programs, as files."""
    files = _examples()
    for page in PAGES:
        for block in blocks(page):
            if (page, block.first) in WHOLE:
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
    assert len(files) == len(_examples()) + len(WHOLE)
    texts = {file.resolve(): file.read_text().splitlines() for file in files}
    reported = [one for one in check(files, tmp_path) if one.file in texts]
    of_others = [one for one in reported if any(word in texts[one.file][one.line - 1] for word in OTHERS)]
    assert of_others, "neither library had an error: the checker has read nothing, or the table can go"
    assert [f"{one.file.name}:{one.line}: {one.text}" for one in reported if one not in of_others] == []
