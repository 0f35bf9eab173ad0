"""`python -m halfmq` is `halfmq`."""

import subprocess
import sys

from halfmq import __version__


def test_module_runs_as_the_command_does() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "halfmq", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (finished.returncode, finished.stdout.strip()) == (0, f"halfmq {__version__}")
