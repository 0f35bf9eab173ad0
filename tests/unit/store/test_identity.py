"""``store.json``: golden text, what is refused, and that it is whole or not there."""

import errno
import os
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk, PowerLost

from halfmq.errors import EnvironmentFailed, StoreDamaged, StoreInUse, WrongVersion
from halfmq.runtime.disk import RealDisk
from halfmq.store.identity import Identity, read_identity, take_lock, write_identity

HOME = Path("/store")
IDENTITY = Identity(bytes(range(16)), 1 << 30)
TEXT = b"""{
  "format": 3,
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
    write(disk, TEXT.replace(b": 3,", b": 4,"))
    with pytest.raises(WrongVersion, match="format 4, this version of halfmq reads format 3"):
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


def test_the_lock_outlives_the_lock_file(tmp_path: Path) -> None:
    disk = RealDisk()
    held = take_lock(disk, tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreInUse, match=f"in use by another process .pid {os.getpid()}"):
        take_lock(disk, tmp_path)
    held.close()
    take_lock(disk, tmp_path)


def test_a_broker_of_an_earlier_version_that_runs_is_seen_by_its_file() -> None:
    disk = disk_with_home()
    earlier = disk.lock(HOME / "lock")
    assert earlier is not None
    for _ in range(2):
        with pytest.raises(StoreInUse):
            take_lock(disk, HOME)
    earlier.close()
    take_lock(disk, HOME)


def test_where_directories_cannot_be_locked_the_file_is(caplog: pytest.LogCaptureFixture) -> None:
    """NFS cannot lock a directory."""
    disk = disk_with_home()
    disk.fail("lock_directory", errno.EBADF, times=2)
    held = take_lock(disk, HOME)
    assert "cannot lock directories" in caplog.text
    with pytest.raises(StoreInUse):
        take_lock(disk, HOME)
    assert held.why_lost() is None


def test_where_nothing_can_be_locked_there_is_no_start() -> None:
    disk = disk_with_home()
    disk.fail("lock_directory", errno.EBADF)
    disk.fail("lock", errno.ENOLCK)
    with pytest.raises(EnvironmentFailed, match=r"cannot lock files: No locks available .*local file system"):
        take_lock(disk, HOME)
    disk.fail("lock", errno.ENOLCK)
    take_lock(disk, HOME)  # the directory is locked


def test_a_lock_file_that_was_removed_is_made_and_locked_again(caplog: pytest.LogCaptureFixture) -> None:
    disk = disk_with_home()
    held = take_lock(disk, HOME)
    disk.remove(HOME / "lock")
    assert held.why_lost() is None
    assert "was removed while the broker is running" in caplog.text
    assert disk.lock(HOME / "lock") is None, "a broker that can only lock the file is kept away again"
    disk.remove(HOME / "lock")
    earlier = disk.lock(HOME / "lock")
    assert earlier is not None
    assert "in use by another process" in str(held.why_lost())


def test_a_directory_that_was_moved_or_replaced_is_told(tmp_path: Path) -> None:
    disk = RealDisk()
    home = tmp_path / "store"
    (home / "shard-0").mkdir(parents=True)
    held = take_lock(disk, home)
    held.take(home / "shard-0")
    assert held.why_lost() is None
    (home / "shard-0").rename(tmp_path / "kept")
    (home / "shard-0").mkdir()
    assert f"{home / 'shard-0'} is not the directory any more" in str(held.why_lost())
    (home / "shard-0").rmdir()
    (tmp_path / "kept").rename(home / "shard-0")
    assert held.why_lost() is None
    home.rename(tmp_path / "moved")
    assert f"{home} is not the directory any more" in str(held.why_lost())
