"""``store.json``, the identity of the store, and the locks that make one process its owner.

The file is written before anything else of the store: temporary file, fsync, rename, fsync of the directory. An existing name thus
leads to a complete file. The segment size is part of the format of this directory: from the first segment on, the stored value
overrides the requested one.

The locks are on the store's directory and on ``shard-0`` themselves: a lock file can be removed, and the next process would then lock
another file of the same name. The file ``lock`` is locked as well, since some file systems, such as NFS, cannot lock directories.
"""

import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import EnvironmentFailed, StoreDamaged, StoreInUse, WrongVersion
from halfmq.runtime.disk import CANNOT_LOCK, Disk, Lock
from halfmq.store.layout import STORE_FORMAT, STORE_FORMATS_READ
from halfmq.store.whole_file import read_whole, replacing

log = logging.getLogger("halfmq.store")

NAME: Final = "store.json"
LOCK_NAME: Final = "lock"


class Identity(NamedTuple):
    """What ``store.json`` says: files with another ``store_id`` are of another store. ``segment_bytes`` never changes."""

    #: 16 bytes.
    store_id: bytes
    segment_bytes: int
    #: One of ``STORE_FORMATS_READ``.
    format: int = STORE_FORMAT


class _Written(msgspec.Struct, frozen=True):
    """The content of the file. Unknown fields of later versions are ignored; another ``format`` is rejected."""

    format: int
    store: str
    segment_bytes: int


class StoreLocks:
    """The locks of ``take_lock``. Held until ``close`` or the end of the process."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Use ``take_lock``."""
        self._disk = disk
        self._directory = directory
        self._directories: dict[Path, Lock] = {}
        self._file: Lock | None = None

    def take(self, directory: Path) -> None:
        """Lock a further directory of the store.

        If the file system cannot lock directories, as NFS, there is only the lock file, which must then not be removed.

        Raises:
            StoreInUse: another process holds the lock.
        """
        try:
            held = self._disk.lock_directory(directory)
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            log.warning(
                "the file system of %s cannot lock directories (%s): only %s keeps a second broker away, never remove it",
                directory, error.strerror, self._directory / LOCK_NAME,
            )  # fmt: skip
            return
        if held is None:
            raise self._in_use(directory)
        self._directories[directory] = held

    def take_file(self) -> None:
        """Lock the file.

        Raises:
            StoreInUse: another process holds the lock.
            EnvironmentFailed: the file system cannot lock anything.
        """
        path = self._directory / LOCK_NAME
        try:
            held = self._disk.lock(path)
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            if self._directories:
                return
            raise EnvironmentFailed(
                f"the file system of {self._directory} cannot lock files: {error.strerror or error}",
                hint="nothing would keep a second broker away: put the store on a local file system",
            ) from error
        if held is None:
            raise self._in_use(path)
        self._file = held

    def why_lost(self) -> str | None:
        """Why the locked directories are no longer those under the store's name; None if they are. Any thread.

        A lock file that was removed is created and locked again.

        Raises:
            OSError: the check failed.
        """
        for directory, held in self._directories.items():
            if not held.is_at(directory):
                return f"{directory} is not the directory any more that this broker has locked: it was moved, removed or replaced"
        path = self._directory / LOCK_NAME
        if self._file is not None and not self._file.is_at(path):
            lost = self._file
            try:
                self.take_file()
            except StoreInUse as error:
                return str(error)
            lost.close()
            log.warning("%s was removed while the broker is running, and is created again: do not remove it", path)
        return None

    def close(self) -> None:
        for held in (*self._directories.values(), self._file):
            if held is not None:
                held.close()
        self._directories.clear()
        self._file = None

    def _in_use(self, path: Path) -> StoreInUse:
        holder = self._disk.lock_holder(path)
        who = "another process" if holder is None else f"another process (pid {holder})"
        return StoreInUse(
            f"the store in {self._directory} is in use by {who}",
            hint="stop it first, or give this one another directory",
        )


def take_lock(disk: Disk, directory: Path) -> StoreLocks:
    """Lock the store's directory and the file in it. Call ``take`` for its other directories.

    Raises:
        StoreInUse: another process holds the lock.
        EnvironmentFailed: the file system cannot lock anything.
    """
    locks = StoreLocks(disk, directory)
    try:
        locks.take(directory)
        locks.take_file()
    except BaseException:
        locks.close()
        raise
    return locks


def read_identity(disk: Disk, directory: Path) -> Identity | None:
    """The identity of the store in ``directory``; None if there is no store.

    Raises:
        WrongVersion: a format that this version does not support.
        StoreDamaged: the file cannot be read.
    """
    path = directory / NAME
    text = read_whole(disk, path)
    if text is None:
        return None
    hint = "restore the file from a backup; the log in shard-0 needs it"
    try:
        found = msgspec.json.decode(text, type=_Written)
        store_id = bytes.fromhex(found.store)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreDamaged(f"{path} cannot be read: {error}", hint=hint) from error
    if found.format not in STORE_FORMATS_READ:
        raise WrongVersion(
            f"the store in {directory} has format {found.format}, this version of halfmq reads format {STORE_FORMAT}",
            hint="open it with the version that wrote it, or a later one",
        )
    if len(store_id) != 16 or found.segment_bytes <= 0 or found.segment_bytes % 4_096:
        raise StoreDamaged(f"{path} has an impossible value: {text.decode('utf-8', 'replace')}", hint=hint)
    return Identity(store_id, found.segment_bytes, found.format)


def not_permitted(error: PermissionError) -> EnvironmentFailed:
    """``error`` of a reader beside the broker, with the remedy."""
    return EnvironmentFailed(
        f"{error.filename} may not be read by this account, uid {os.geteuid()}",
        hint="run as the broker's account, or start the broker with --store-group GROUP and be a member of that group",
    )


def write_identity(disk: Disk, directory: Path, identity: Identity) -> None:
    """Write the identity, in the current format. Durable on return.

    Raises:
        OSError: the disk failed; the file is missing or complete.
    """
    path = directory / NAME
    written = _Written(STORE_FORMAT, identity.store_id.hex(), identity.segment_bytes)
    with replacing(disk, path, directory / (NAME + ".new")) as file:
        file.write(0, [msgspec.json.format(msgspec.json.encode(written)) + b"\n"])
    disk.sync_directory(directory)
