"""The power fails during a backup and during a restore, at each operation on the disk that holds them.

The disk loses, tears and reorders what was not synced. The broker is a real one, with a disk of its own.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.amount import amount, seed_of_commit
from tests.support.faulty_disk import FaultyDisk, PowerLost
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from tests.unit.cli.test_backup import NO_WINDOW, SMALL, fill
from tests.unit.cli.test_restore import tx

from halfmq.broker.restore import restore
from halfmq.cli import backup as command
from halfmq.errors import StoreDamaged, UsageError
from halfmq.model.records import Restored
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.backup import read_manifest, verify_backup
from halfmq.store.dump import records_of
from halfmq.store.identity import read_identity
from halfmq.store.store import Store

#: Where they are on the disk; not even the parents are there before.
BACKUP: Final = Path("/backups/of/orders")
DATA: Final = Path("/restored/orders")
#: Operations until the first name in the log is durable: 4 directories, the file, and a sync of each directory from "/" to the log.
NAMED: Final = 10
#: Losses at each operation, each with another fate of what was not synced: nothing of it survives, only the newest name, by chance.
LOSSES = amount(gate=4, everything=60, variable="HALFMQ_TEST_BACKUP_LOSSES")


async def backed_up(running: Running, disk: FaultyDisk, *, keep: bool = False) -> Any:
    url = f"127.0.0.1:{running.ports.names}"
    return await asyncio.to_thread(command._backup, disk, BACKUP, url, 60.0, keep=keep)


def lost_at(base: FaultyDisk, step: int, number: int, seed: int) -> FaultyDisk:
    """A copy of the disk whose power fails at an operation."""
    disk = base.fork(hash((seed, step, number)))
    disk.power_fails_after(step)
    return disk


def segments(disk: FaultyDisk) -> dict[Path, bytes]:
    """The log of the restored store."""
    return {path: disk.content(path) for path in disk.paths() if path.is_relative_to(DATA) and path.suffix == ".seg"}


async def test_a_power_loss_leaves_the_backup_before_or_the_new_one_and_the_next_goes_on(tmp_path: Path) -> None:
    seed = seed_of_commit()
    counts: Counter[str] = Counter()
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 5 * SMALL, "settings": NO_WINDOW}
    base = FaultyDisk(seed)
    async with serving(
        tmp_path / "data", segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        for number, messages in enumerate((12, 3, 34)):
            await fill(running, messages, f"{number:04}")
            if number == 2:  # the backup has segments that the broker no longer has
                await until(lambda: running.state.log_start > 0 and running.maintenance._trimming is None)
            before = read_manifest(base, BACKUP) if number else None
            whole = base.fork(seed)
            await backed_up(running, whole)
            for step in range(whole.steps - base.steps + 1):
                for loss in range(LOSSES):
                    disk = lost_at(base, step, loss, seed)
                    try:
                        await backed_up(running, disk)
                        is_reported = True
                    except PowerLost:
                        is_reported = False
                    disk.crash(keep=0.0 if loss == 0 else None, only_newest_name=loss == 1)
                    where = f"seed {seed}, backup {number}, operation {step}, loss {loss}"
                    found = read_manifest(disk, BACKUP)
                    if found is not None:
                        verify_backup(disk, BACKUP)
                    is_new = found is not None and found != before
                    assert found == before or is_new, where
                    assert is_new or not is_reported, f"{where}: a backup that was reported is gone"
                    counts["new" if is_new else "before"] += 1
                    if loss == 0:
                        made = await backed_up(running, disk)
                        assert verify_backup(disk, BACKUP).manifest.position == made.position, where
            await backed_up(running, base)
            base.crash(keep=0.0)
    print(dict(counts))
    assert counts["new"] > 3
    assert counts["before"] > 30


async def test_a_power_loss_during_a_restore_leaves_no_store_or_the_whole_one(tmp_path: Path) -> None:
    seed = seed_of_commit()
    counts: Counter[str] = Counter()
    base = FaultyDisk(seed)
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        client = await running.client()
        for number in range(3):
            await client.half("T", b"body", unique=tx(number))
        await fill(running, 20, "ONE_")
        await backed_up(running, base)
    base.crash(keep=0.0)
    whole = base.fork(seed)
    made = restore(whole, SystemEntropy(), BACKUP, DATA)
    records = [record for record, _, _ in records_of(whole, DATA, start=made.position)]
    assert [type(record) for record in records] == [Restored]
    for step in range(whole.steps - base.steps + 1):
        for loss in range(LOSSES):
            disk = lost_at(base, step, loss, seed)
            try:
                restore(disk, SystemEntropy(), BACKUP, DATA)
                is_reported = True
            except PowerLost:
                is_reported = False
            disk.crash(keep=0.0 if loss == 0 else None, only_newest_name=loss == 1)
            where = f"seed {seed}, operation {step}, loss {loss}"
            if read_identity(disk, DATA) is not None:
                counts["whole"] += 1
                assert segments(disk) == segments(whole), where
                continue
            assert not is_reported, f"{where}: a restore that was reported is gone"
            if not disk.list(DATA / "shard-0" / "log"):
                assert step <= NAMED, (
                    f"{where}: a start would make an empty store where much of the log had been written"
                )
            if not disk.list(DATA):  # as if it had not begun
                counts["nothing"] += 1
                restore(disk, SystemEntropy(), BACKUP, DATA)
                continue
            with pytest.raises(UsageError, match="not empty"):
                restore(disk, SystemEntropy(), BACKUP, DATA)
            if disk.list(DATA / "shard-0" / "log"):
                counts["part"] += 1
                with pytest.raises(StoreDamaged, match="contains a log but no store"):
                    Store.open(disk, DATA, entropy=SystemEntropy())
            else:
                counts["directories"] += 1
            verify_backup(disk, BACKUP)
    print(dict(counts))
    assert min(counts["whole"], counts["nothing"], counts["part"]) > 0
