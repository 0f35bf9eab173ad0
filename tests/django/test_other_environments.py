"""The tests of this folder where other packages are installed than those of requirements.lock: mysqlclient, which is compiled, and Django's
current release, which needs a newer Python.

Each environment is made for the run, with the wheel of this checkout. What is missing on this machine is said by the skip.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import ROOT
from tests.documents.test_wheel import built, environment, install

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.mariadb,
    pytest.mark.postgres,
    pytest.mark.timeout(3_600),
]

#: Besides the extras that a project installs.
_PACKAGES: Final = (
    "psycopg[binary,pool]", "pymysql", "gunicorn", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-django",
)  # fmt: skip
_TO_COMPILE: Final = "mysqlclient is compiled: apt-get install libmariadb-dev pkg-config gcc python3-dev"
_NEWER: Final = "Django's current release needs Python 3.12 or newer, which is neither on PATH nor in pyenv"
#: For -k.
_CORE: Final = (
    "test_atomic or test_of_django or test_inbox or test_outbox or test_pytest_django or (killed_workers and 40)"
)


def test_mysqlclient_in_place_of_pymysql(tmp_path: Path) -> None:
    """With the locked packages beside it: only the driver is another one."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not (header.exists() and all(_can(program, "--version") for program in ("cc", "pkg-config", "mariadb_config"))):
        pytest.skip(_TO_COMPILE)
    python = environment(tmp_path / "venv")
    (own,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (own / "locked.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    install(python, "mysqlclient")
    assert "MariaDB by mysqlclient" in passed(python, "mariadb and not 1000")


@pytest.fixture(scope="module")
def newer_python() -> str:
    """The oldest that is new enough, so that a release that is too new for a package is not the one that is found."""
    for found in sorted(_pythons(), key=lambda path: int(path.rpartition(".")[2])):
        if _can(found, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"):
            return found
    pytest.skip(_NEWER)


def test_the_current_release_of_django(newer_python: str, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([newer_python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    # Not below 6: a release that the extra forbids is found here.
    install(python, f"{built(ROOT, tmp_path / 'wheel')}[django,server,sql]", "django>=6", *_PACKAGES)
    assert re.search(r"^Django ([6-9]|\d\d)\.", passed(python, f"({_CORE}) and not 1000"), re.MULTILINE)


def passed(python: Path, chosen: str) -> str:
    """What pytest says there about the chosen tests, of which none failed, and none was left out."""
    here = Path(__file__)
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", here.parent, f"--ignore={here}", "-k", chosen],
        cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    assert "skipped" not in counts, done.stdout
    assert counts["passed"] > 80, counts
    return done.stdout


def _environment() -> dict[str, str]:
    """Without the paths and the options of this run: halfmq is what is installed there, and its tests are those of this checkout."""
    left_out = ("DJANGO_SETTINGS_MODULE", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": str(ROOT)}


def _pythons() -> Iterator[str]:
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    # Beside this Python too, which may come from a pyenv elsewhere.
    places = dict.fromkeys((f"{pyenv}/versions", str(Path(sys.base_prefix).parent)))
    for minor in range(12, 20):
        name = f"python3.{minor}"
        yield from (path for path in (shutil.which(name),) if path is not None)
        for place in places:
            yield from glob.glob(f"{place}/*/bin/{name}")


def _can(*command: str) -> bool:
    """Whether it runs: a name on PATH may be one that starts nothing."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
