"""Python processes that start at once: forked from one that has already imported everything.

Otherwise a process that is killed every few seconds would spend most of the machine's time on importing SQLAlchemy. Each is an
ordinary process, with its own id, session, sockets and threads; only code is shared.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
from multiprocessing.context import ForkServerProcess
from pathlib import Path

MODULES = (
    "tests.soak.order_service", "tests.soak.consumer", "tests.soak.watcher", "tests.soak.long_transactions",
    "tests.soak.administrator",
)  # fmt: skip
_PR_SET_PDEATHSIG = 1

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.soak.spawned", *MODULES])


def die_with_parent() -> None:
    """In the child: end with the soak, even if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Forked:
    """``main(*arguments)`` of a module; the part of ``subprocess.Popen`` that is needed here."""

    def __init__(self, module: str, arguments: tuple[str, ...], log_path: Path) -> None:
        self._process: ForkServerProcess = _context.Process(target=_run, args=(module, arguments, str(log_path)))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: tuple[str, ...], log_path: str) -> None:
    die_with_parent()
    os.setsid()
    output = os.open(log_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    importlib.import_module(module).main(*arguments)
