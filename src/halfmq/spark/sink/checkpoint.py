"""What the sink needs of Spark's checkpoint: that it survives a power loss, and a digest of the input of a batch.

    metadata              {"id": ...}: the id of the query
    offsets/N, sources    the input of batch N; see ``batch_input``
    commits/N             batch N is over

Spark writes these files without fsync. If the broker makes batch N visible and then its input is lost, the next run would put
other rows into batch N. So they are synced before a decision. The digest of the input tells the broker whether a batch that comes
again is the same.

Only directories of the driver's machine (or mounted there) are supported.
"""

import json
import os
import re
from pathlib import Path
from typing import Final

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.sink.batch_input import BatchInput, read_batch_input

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.ASCII | re.DOTALL)


class Checkpoint:
    """The checkpoint directory of a query. ``location``: option ``checkpointLocation``."""

    def __init__(self, location: str) -> None:
        self.directory = _local(location)

    def query_id(self) -> str:
        """The id of the query.

        Raises:
            EnvironmentFailed: the file is missing or malformed.
        """
        text = self._read(self.directory / "metadata")
        try:
            found = json.loads(text)["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailed(f"{self.directory / 'metadata'} does not contain the id of a query") from error
        return str(found)

    def check_offsets(self) -> None:
        """Before a query starts: that the offsets of its last batch are there. Spark fails without them, with "assertion failed" only, or
        begins a batch with this number again, and other rows.

        Raises:
            EnvironmentFailed: they are missing.
        """
        last = _last_batch(self.directory / "commits")
        known = _last_batch(self.directory / "offsets")
        if last is not None and (known is None or known < last):
            raise EnvironmentFailed(
                f"the checkpoint {self.directory} is damaged: batch {last} is over, but its offsets are gone "
                f"(offsets/{last}), so where the query continues is unknown",
                hint=f"restore the directory {self.directory / 'offsets'}; without it use a new checkpoint and a new output",
            )

    def secure(self, batch: int) -> BatchInput:
        """Sync the input of a batch to the disk, and return what it is.

        Raises:
            EnvironmentFailed: the files are missing, incomplete or cannot be synced. Do not decide the batch.
        """
        found = read_batch_input(self.directory, batch)
        others = (self.directory / "metadata", self.directory / "offsets", self.directory, self.directory.parent)
        try:
            for path in (*found.files, *others):
                sync(path)
        except OSError as error:
            raise EnvironmentFailed(f"the checkpoint of the query cannot be synced: {error}") from error
        return found

    def _read(self, path: Path) -> str:
        try:
            return path.read_text()
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(
                f"the checkpoint of the query cannot be read: {error}",
                hint="checkpointLocation must be a directory that the driver sees as a local path",
            ) from error


def _last_batch(log: Path) -> int | None:
    """The highest number of a batch in ``offsets`` or ``commits``; None: there is none."""
    try:
        return max((int(path.name) for path in log.iterdir() if path.name.isdecimal()), default=None)
    except FileNotFoundError:
        return None


def _local(location: str) -> Path:
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location).absolute()
    rest = match["rest"]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.removeprefix("/"))
    if match["scheme"].lower() != "file" or host not in ("", "localhost") or not slash:
        raise UsageError(
            f"checkpointLocation {location!r} is not a directory of the driver's machine",
            hint="the sink reads and syncs the checkpoint itself: use a local or mounted directory",
        )
    return Path("/" + path)


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
