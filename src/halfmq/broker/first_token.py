"""The one-time token of the first administrator: a file in the data directory that only the broker's account can read. Each start without
users makes another one, and the first user removes it.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "first-administrator.token"


def write_token(data: Path, token: str) -> Path:
    """Write it, in place of an earlier one; its path. Raises OSError."""
    path = data / NAME
    remove_token(data)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{token}\n")
    return path


def remove_token(data: Path) -> None:
    """Remove it, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(data / NAME)
