"""``--reload``: runs a command as a process of its own, and again whenever a Python file below the current directory changes.

The files are asked for their times twice a second, which needs no other package. For development only.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from halfmq.client.log import logger

#: How often the files are looked at, seconds.
_LOOK_S: Final = 0.5
#: Directories that are not the application's own.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"})

OPTION: Final = "--reload"

log = logger("halfmq.worker")
Times = dict[str, int]


def run_again_on_changes(command: Sequence[str], directory: Path) -> int:
    """Run ``command`` until SIGTERM or SIGINT, and again after each change in ``directory``. Returns its last exit status.

    A command that ended by itself, as after a syntax error, is run again after the next change.
    """
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopped.append(got))
    while True:
        times = times_of(directory)
        # In a process group of its own: else Ctrl-C would reach it twice, and so end it at once.
        process = subprocess.Popen(command, process_group=0)  # noqa: S603  # nosec B603 # this command itself, without --reload
        changed = _wait_for_change(process, times, directory, lambda: bool(stopped))
        if not changed:
            return _end(process, stopped)
        log.warning("%s changed: the worker starts again", ", ".join(sorted(changed)[:3]))
        _end(process, stopped)
        if stopped:
            return process.returncode


def _wait_for_change(
    process: "subprocess.Popen[bytes]", before: Times, directory: Path, is_stopped: Callable[[], bool]
) -> list[str]:
    """The files that changed; none: it is to stop."""
    was_running = True
    while not is_stopped():
        if was_running and process.poll() is not None:
            was_running = False
            log.error("the worker has ended with status %d; it starts again when a file changes", process.returncode)
        now = times_of(directory)
        if now != before:
            return [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
        time.sleep(_LOOK_S)
    return []


def _end(process: "subprocess.Popen[bytes]", stopped: list[int]) -> int:
    """End it as its own signals would: the first lets handlers finish, a second one ends it at once."""
    signals = 0
    while process.poll() is None:
        if signals < max(1, len(stopped)):
            process.terminate()
            signals += 1
        time.sleep(0.05)
    return process.returncode


def times_of(directory: Path) -> Times:
    """When each Python file was changed, ns."""
    found: Times = {}
    for name in _python_files(str(directory)):
        try:
            found[name] = os.stat(name).st_mtime_ns
        except OSError:
            continue  # removed meanwhile
    return found


def _python_files(directory: str) -> Iterator[str]:
    for root, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in _SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                yield str(Path(root, name))


def without_reload(command: Sequence[str]) -> list[str]:
    """The command of this process without its ``--reload``, for the process that works."""
    return [one for one in command if one != OPTION]
