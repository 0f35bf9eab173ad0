"""Where CI=true a test that is left out is red, in whatever way it is left out: one that nobody runs proves nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Ways to leave a test out, each as a file of its own.
WAYS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='because')\ndef test_it(): pass\n",
    "condition": "import pytest\n@pytest.mark.skipif(True, reason='because')\ndef test_it(): pass\n",
    "call": "import pytest\ndef test_it(): pytest.skip('because')\n",
    "fixture": "import pytest\n@pytest.fixture\ndef one(): pytest.skip('because')\ndef test_it(one): pass\n",
    "no parameters": "import pytest\n@pytest.mark.parametrize('one', [])\ndef test_it(one): pass\n",
    "expected failure": "import pytest\n@pytest.mark.xfail(reason='because')\ndef test_it(): assert False\n",
    "module": "import pytest\npytest.skip('because', allow_module_level=True)\n",
    "import": "import pytest\npytest.importorskip('nobody_has_this', reason='because')\n",
}


def red(directory: Path, ci: str) -> set[str]:
    """The files that are red."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "--rootdir", str(directory), str(directory)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    found = set(re.findall(r"^(?:FAILED|ERROR) (test_\w+)\.py", done.stdout, re.MULTILINE))
    assert done.returncode == (1 if found else 0), done.stdout + done.stderr
    return found


@pytest.mark.slow
def test_what_is_left_out_is_red_where_ci_is_true_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_it(): pass\n")
    left_out = {f"test_{way.replace(' ', '_')}": text for way, text in WAYS.items()}
    for name, text in left_out.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert red(tmp_path, "true") == left_out.keys()
    assert red(tmp_path, "") == set()
