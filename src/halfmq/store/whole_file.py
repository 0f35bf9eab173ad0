"""Files that are read whole and replaced whole: ``store.json``, ``topics.json`` and snapshots."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfmq.runtime.disk import Disk, File


@contextmanager
def replacing(disk: Disk, path: Path, temporary: Path) -> Iterator[File]:
    """An empty file whose bytes replace ``path`` at the end, so that a reader, or a crash, finds the old file or the new one.

    The fsync comes before the rename: else a crash could leave the new name with no bytes. The name is durable after a
    sync of its directory, which is the caller's.

    Raises:
        OSError: ``path`` is as it was. ``temporary`` may be left, and is overwritten next time.
    """
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        yield file
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)


def read_whole(disk: Disk, path: Path) -> bytes | None:
    """All bytes of the file; None when there is none."""
    if not disk.exists(path):
        return None
    file = disk.open(path, writable=False)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
