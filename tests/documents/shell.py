"""Commands as the pages have them, run by the shell with the ``halfmq`` of this environment."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE_S

#: So wide that nothing is wrapped.
_COLUMNS = "200"


def shell(
    command: str, directory: Path, *, status: int = 0, typed: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Fails if the command ends with another status. ``typed``: what the operator types at a terminal."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        done = subprocess.run(
            ["sh", "-e", "-c", command],
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": _COLUMNS, **(environment or {})},
            stdin=terminal if typed else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 5,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done


@contextmanager
def running(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """In the background, until the block ends. What it writes is added to ``out`` in ``directory``; ``environment``: all variables."""
    with (directory / "out").open("ab") as output:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
