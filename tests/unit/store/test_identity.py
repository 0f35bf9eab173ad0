"""``store.json``: golden text, what is refused, and that it is whole or not there."""

from pathlib import Path

import pytest

from halfmq.errors import StoreDamaged, StoreInUse, WrongVersion
from halfmq.store.identity import Identity, read_identity, take_lock, write_identity
from halfmq.testing.faulty_disk import FaultyDisk, PowerLost

HOME = Path("/store")
IDENTITY = Identity(bytes(range(16)), 1 << 30)
TEXT = b"""{
  "format": 2,
  "store": "000102030405060708090a0b0c0d0e0f",
  "segment_bytes": 1073741824
}
"""


def disk_with_home(seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed)
    disk.make_directories(HOME)
    disk.sync_directory(HOME.parent)
    return disk


def test_golden_text() -> None:
    disk = disk_with_home()
    write_identity(disk, HOME, IDENTITY)
    assert disk.content(HOME / "store.json") == TEXT
    assert read_identity(disk, HOME) == IDENTITY
    assert disk.list(HOME) == ["store.json"]


def test_no_store_is_none() -> None:
    assert read_identity(disk_with_home(), HOME) is None


def write(disk: FaultyDisk, text: bytes) -> None:
    file = disk.open(HOME / "store.json", create=True)
    file.truncate(0)
    file.write(0, [text])


def test_a_field_of_a_later_version_is_ignored() -> None:
    disk = disk_with_home()
    write(disk, TEXT.replace(b"{", b'{"made_by": "x",'))
    assert read_identity(disk, HOME) == IDENTITY


def test_another_format_is_refused_by_name() -> None:
    disk = disk_with_home()
    write(disk, TEXT.replace(b": 2,", b": 3,"))
    with pytest.raises(WrongVersion, match="format 3, this version of halfmq reads up to 2"):
        read_identity(disk, HOME)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        TEXT[:40],
        b"[]",
        TEXT.replace(b"000102", b"xyz"),
        TEXT.replace(b"0e0f", b""),
        TEXT.replace(b"1073741824", b"0"),
        TEXT.replace(b"1073741824", b"-4096"),
        TEXT.replace(b"1073741824", b"1000"),
        b"\xff" + TEXT,
    ],
)
def test_what_cannot_be_is_damage(text: bytes) -> None:
    disk = disk_with_home()
    write(disk, text)
    with pytest.raises(StoreDamaged, match=r"store\.json"):
        read_identity(disk, HOME)


def test_after_a_crash_at_any_step_it_is_whole_or_not_there() -> None:
    seen = set()
    for seed in range(200):
        disk = disk_with_home(seed)
        disk.power_fails_after(seed % 8)
        try:
            write_identity(disk, HOME, IDENTITY)
        except PowerLost:
            pass
        else:
            disk.crash()
            assert read_identity(disk, HOME) == IDENTITY, "it had returned"
            continue
        disk.crash()
        found = read_identity(disk, HOME)
        seen.add(found)
        assert found in (None, IDENTITY)
        write_identity(disk, HOME, IDENTITY)  # and again, over what was left
        assert read_identity(disk, HOME) == IDENTITY
    assert seen == {None, IDENTITY}


def test_the_lock_names_the_directory() -> None:
    disk = disk_with_home()
    held = take_lock(disk, HOME)
    with pytest.raises(StoreInUse, match="/store is in use by another process"):
        take_lock(disk, HOME)
    assert held is not None
