"""``store.json``: which store this is, and the lock that says whose process has it.

Written before anything else of the store, and again where a start brings a store of an earlier format to this one, by temp
+ fsync + rename + fsync of the directory: a name that is there leads to the whole file. The segment size is part of the
format of this directory: from the first segment on, what is stored wins over what is asked.
"""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import StoreDamaged, StoreInUse, WrongVersion
from halfmq.runtime.disk import Disk
from halfmq.store.layout import STORE_FORMAT, STORE_FORMATS_READ

NAME: Final = "store.json"
LOCK_NAME: Final = "lock"


class Identity(NamedTuple):
    #: 16 bytes.
    store_id: bytes
    segment_bytes: int
    format: int = STORE_FORMAT


class _Written(msgspec.Struct, frozen=True):
    """The file. A field that a later version adds is ignored; a later ``format`` is refused."""

    format: int
    store: str
    segment_bytes: int


def take_lock(disk: Disk, directory: Path) -> object:
    """Held until the result is dropped or the process ends.

    Raises:
        StoreInUse: another process has it.
    """
    held = disk.lock(directory / LOCK_NAME)
    if held is None:
        raise StoreInUse(
            f"the store in {directory} is in use by another process",
            hint="stop it first, or give this one another directory",
        )
    return held


def read_identity(disk: Disk, directory: Path) -> Identity | None:
    """The identity of the store in ``directory``; None when none was made there.

    Raises:
        WrongVersion: a format that this version does not read.
        StoreDamaged: the file cannot be read.
    """
    path = directory / NAME
    if not disk.exists(path):
        return None
    file = disk.open(path, writable=False)
    try:
        text = file.read(0, file.size())
    finally:
        file.close()
    hint = "restore the file from a backup; the log in shard-0 needs it"
    try:
        found = msgspec.json.decode(text, type=_Written)
        store_id = bytes.fromhex(found.store)
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise StoreDamaged(f"{path} cannot be read: {error}", hint=hint) from error
    if found.format not in STORE_FORMATS_READ:
        raise WrongVersion(
            f"the store in {directory} has format {found.format}, this version of halfmq reads up to {STORE_FORMAT}",
            hint="open it with the version that wrote it, or a later one",
        )
    if len(store_id) != 16 or found.segment_bytes <= 0 or found.segment_bytes % 4_096:
        raise StoreDamaged(f"{path} says what cannot be: {text.decode('utf-8', 'replace')}", hint=hint)
    return Identity(store_id, found.segment_bytes, found.format)


def write_identity(disk: Disk, directory: Path, identity: Identity) -> None:
    """Make the store, or bring it to this format. Durable when it returns.

    Raises:
        OSError: the disk failed; nothing or all of it is there.
    """
    path = directory / NAME
    written = _Written(STORE_FORMAT, identity.store_id.hex(), identity.segment_bytes)
    temporary = directory / (NAME + ".new")
    file = disk.open(temporary, create=True)
    try:
        text = msgspec.json.format(msgspec.json.encode(written)) + b"\n"
        file.truncate(0)  # what an interrupted attempt left
        file.write(0, [text])
        file.sync()  # before the rename: the name must not lead to a file without content
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)
