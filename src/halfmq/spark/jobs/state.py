"""Small files in which a job remembers what it was started with, so that it is not continued with something else."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.sink.checkpoint import sync


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a lock file, which is created with its directory. The system releases it when the process ends in any way.

    Raises:
        UsageError: another process holds it.
        EnvironmentFailed: the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise EnvironmentFailed(f"cannot write into {path.parent}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another job runs on {path.parent}", hint="wait for its end, or stop it") from error
        yield
    finally:
        os.close(number)


def check(path: Path, settings: Mapping[str, Any]) -> None:
    """Compare settings with those in a file, if it exists; names that only one of them has do not count.

    Raises:
        UsageError: one differs; the text names both values.
        EnvironmentFailed: the file cannot be read.
    """
    known = read(path) or {}
    for name, value in settings.items():
        if name in known and known[name] != value:
            raise UsageError(
                f"{path.parent} was begun with {_shown(name, known[name])}, this is {_shown(name, value)}",
                hint="continue with the same settings, or use another place",
            )


def pin(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings into a file, durably, unless it exists; ``check`` them in any case."""
    check(path, settings)
    if read(path) is None:
        write(path, settings)


def read(path: Path) -> dict[str, Any] | None:
    """The content of a file; None: it does not exist.

    Raises:
        EnvironmentFailed: it cannot be read, or is not of this module.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EnvironmentFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise EnvironmentFailed(f"{path} is not a file of halfmq")
    return found


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the content of a file, durably: after a crash it is the old or the new one.

    Raises:
        EnvironmentFailed: it cannot be written.
    """
    staged = path.with_name(f"_{path.name}.new")
    try:
        staged.write_text(json.dumps(content, separators=(",", ":")))
        sync(staged)
        os.replace(staged, path)
        sync(path.parent)
    except OSError as error:
        raise EnvironmentFailed(f"cannot write {path}: {error.strerror}") from error


def _shown(name: str, value: Any) -> str:
    return f"{name} = {'nothing' if value in (None, '', []) else value}"
