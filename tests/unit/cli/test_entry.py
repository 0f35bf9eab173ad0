"""Without its extra, each part says in one line what to install."""

import subprocess
import sys

import pytest


def without(package: str, code: str) -> tuple[int, str]:
    """(exit code, standard error) of ``code`` in a process that has no ``package``."""
    finished = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return finished.returncode, finished.stderr


@pytest.mark.parametrize(
    "code",
    ["import runpy; runpy.run_module('halfmq', run_name='__main__')", "from halfmq.cli.entry import run; run()"],
)
def test_command_without_its_extra_is_one_line_and_no_traceback(code: str) -> None:
    assert without("typer", code) == (1, "halfmq: typer is not installed (pip install 'halfmq[server]')\n")


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("sqlalchemy", "from halfmq.sql import MarkerTable", "sql"),
        ("sqlalchemy", "import halfmq.sql; halfmq.sql.SqlTransaction", "sql"),
        ("sqlalchemy", "from halfmq.sql.alchemy.inbox import Inbox", "sql"),
        ("pyspark", "from halfmq.spark import HalfmqDataSource", "spark"),
        ("pyarrow", "import pyspark_halfmq", "spark"),
    ],
)
def test_import_without_its_extra_is_a_missing_dependency(package: str, code: str, extra: str) -> None:
    returncode, errors = without(package, code)
    assert returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith("halfmq.errors.MissingDependency: ")
    assert last.endswith(f" is not installed (pip install 'halfmq[{extra}]')")


def test_a_module_of_ours_that_is_missing_is_not_blamed_on_an_extra() -> None:
    _, errors = without("halfmq.limits", "from halfmq.cli.entry import run; from halfmq.sql import Inbox")
    assert errors.splitlines()[-1].startswith("ModuleNotFoundError")
