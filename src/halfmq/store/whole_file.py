"""Files that are read and replaced as a whole: ``store.json``, ``topics.json`` and snapshots; and directories whose names are durable."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from halfmq.runtime.disk import Disk, File


@contextmanager
def replacing(disk: Disk, path: Path, temporary: Path) -> Iterator[File]:
    """An empty file that replaces ``path`` at the end, so that a reader, or a crash, finds the old file or the new one.

    The fsync precedes the rename: otherwise a crash could leave the new name without bytes. The name is durable after a sync of its
    directory, which is up to the caller.

    Raises:
        OSError: ``path`` is unchanged. ``temporary`` may remain, and is overwritten the next time.
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
    """All bytes of the file; None if it does not exist."""
    if not disk.exists(path):
        return None
    with closing(disk.open(path, writable=False)) as file:
        return file.read(0, file.size())


def make_durable(disk: Disk, directory: Path) -> None:
    """Create ``directory`` and its parents, if missing. On return a crash takes away none of their names.

    The name of ``directory`` itself is synced even if it was there: whoever created it may have been cut off before that.
    """
    made = [directory]
    while not disk.exists(made[-1].parent):
        made.append(made[-1].parent)
    disk.make_directories(directory)
    for one in reversed(made):
        disk.sync_directory(one.parent)
