"""docs/testing-your-service.md, as its reader follows it: a project of one's own outside of the repository, with the wheel installed."""

import re
import subprocess
from pathlib import Path

import pytest

from halfmq.testing import HANDLER_POINTS, TRANSACTION_POINTS
from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT, table
from tests.documents.test_wheel import built, environment, install

_HERE = "tests/documents/test_testing_your_service.py"

pytestmark = pytest.mark.slow

#: What the last recipes say that they need.
EXTRA = ("fastapi", "httpx2", "aiosqlite", "pytest-asyncio")


def project(directory: Path) -> None:
    """The files of the page: the services, the conftest, and the recipes in one file, in their order."""
    service, conftest, *others = blocks_of(f"{_HERE}::test_the_recipes_pass_where_the_wheel_is_installed")
    assert (service.first, conftest.first) == ("# shop.py", "# conftest.py")
    (added,) = (block for block in others if block.first == "# added to conftest.py")
    files = [block for block in others if re.fullmatch(r"# \w+\.py", block.first)]
    assert [block.first for block in files] == ["# web.py", "# front.py"]
    recipes = [block for block in others if block not in (added, *files)]
    for block in (service, *files):
        (directory / block.first.removeprefix("# ")).write_text(block.text)
    (directory / "conftest.py").write_text(f"{conftest.text}\n\n{added.text}")
    text = (ROOT / "docs/testing-your-service.md").read_text()
    settings = re.findall(r"`(asyncio_\w+ = \w+)`", text)
    assert len(settings) == 2
    (directory / "pytest.ini").write_text("\n".join(["[pytest]", *settings]))
    (directory / "test_shop.py").write_text("\n\n".join(block.text for block in recipes))
    assert len(recipes) == 15


def test_the_recipes_pass_where_the_wheel_is_installed(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    install(python, f"{built(ROOT, tmp_path / 'wheel')}[server,sql]", "pytest", "pytest-xdist", *EXTRA)
    (tmp_path / "project").mkdir()
    project(tmp_path / "project")
    for options in ((), ("-n", "2")):
        done = subprocess.run(
            [python, "-m", "pytest", "-W", "error", "--durations=0", *options],
            cwd=tmp_path / "project",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        count = 13 + 2 * len(TRANSACTION_POINTS) + len(HANDLER_POINTS)
        assert re.search(rf"=+ {count} passed in ", done.stdout), done.stdout


def test_what_a_service_needs_in_a_conftest_has_at_most_five_lines_of_its_own() -> None:
    shown = blocks_of(f"{_HERE}::test_the_recipes_pass_where_the_wheel_is_installed")
    found = [block for block in shown if re.match(r"# .*conftest\.py$", block.first)]
    assert len(found) == 2
    for block in found:
        lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith(("#", "import"))]
        assert len(lines) <= 5


def test_the_page_lists_the_crash_points_that_there_are() -> None:
    rows = table("docs/testing-your-service.md", "3. The service dies between any two steps")
    shown = [point for row in rows for point in re.findall(r"`([a-z-]+)`", row["before and after it"])]
    assert shown == list(TRANSACTION_POINTS)
    for row in rows:
        one = re.findall(r"`([a-z-]+)`", row["before and after it"])[0]
        assert TRANSACTION_POINTS[one].removeprefix("before: ") == row["before and after it"].rpartition(": ")[2]
