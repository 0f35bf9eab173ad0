"""Commands as the pages have them, run by the shell with the ``halfmq`` of this environment."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE_S

#: So wide that nothing is wrapped.
_COLUMNS = "200"
#: Less than the limit of a test, which knows neither the command nor its output.
_PATIENCE_S = PATIENCE_S * 3


def shell(
    command: str, directory: Path, *, status: int = 0, typed: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Fails if the command ends with another status, or not in time. ``typed``: what the operator types at a terminal.

    Raises:
        TimeoutExpired: with what it has written as a note. Nothing that it started is left.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        process = subprocess.Popen(
            ["sh", "-e", "-c", command],
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": _COLUMNS, **(environment or {})},
            stdin=terminal if typed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        with process:
            said, errors = _outcome(process)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert process.returncode == status, (command, process.returncode, said, errors)
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


def _outcome(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it writes until it ends. If that takes too long, or the test is interrupted, its group is killed: the shell alone would leave
    the command that it waits for, with the ends of the pipes."""
    try:
        return process.communicate(timeout=_PATIENCE_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
        error.add_note(f"it has written\n{said}\nand to standard error\n{errors}")
        raise


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
