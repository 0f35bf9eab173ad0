"""Incremental backups of a broker under steady load: `python -m tests.bench.backup --minutes 60`. Prints JSON, and progress to stderr.

A backup at the beginning, one every ``--every`` minutes, and one at the end. Of each it says how much the log has grown since the one
before, and what the command received, wrote and read: of segments that were complete before, nothing. The last one is restored, the
history of the load is checked up to its position, and the restored broker lists exactly the transactions that the restore listed.

The command runs as a process of its own, with a disk and a connection that count; its other code is that of ``halfmq backup``.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.turns import machine
from tests.support.served import Served
from tests.support.shop import Shop, check_restored_log

from halfmq.cli import backup as command
from halfmq.client import blocking
from halfmq.runtime.disk import File, RealDisk, RealFile
from halfmq.store.backup import MANIFEST

SEGMENT: Final = 64 << 20
WORKERS: Final = 32
#: For the start of a broker and each response to a backup, seconds: the machine may have more to do.
PATIENCE_S: Final = 600.0
#: A backup whose command was refused or cut off is repeated, as an operator would.
TRIES: Final = 3


class CountingDisk(RealDisk):
    """Counts bytes that are read and written, by file name."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        file = super().open(path, create=create, writable=writable)
        assert isinstance(file, RealFile)
        return _CountingFile(self, file)


class _CountingFile(RealFile):
    def __init__(self, disk: CountingDisk, file: RealFile) -> None:
        super().__init__(file.path, os.dup(file._descriptor))
        self._disk = disk
        file.close()

    def read(self, at: int, length: int) -> bytes:
        data = super().read(at, length)
        self._disk.read[self.path.name] += len(data)
        return data

    def read_into(self, at: int, buffers: Sequence[memoryview]) -> int:
        count = super().read_into(at, buffers)
        self._disk.read[self.path.name] += count
        return count

    def write(self, at: int, parts: list[bytes]) -> int:
        count = super().write(at, parts)
        self._disk.written[self.path.name] += count
        return count


def counted(directory: Path, url: str) -> dict[str, Any]:
    """One backup in this process, and its bytes: of bodies that were received, and by file those that were read and written."""
    received = 0
    original = blocking.Connection.receive

    def receive(self: blocking.Connection, opaque: int) -> Any:
        nonlocal received
        answer = original(self, opaque)
        received += len(answer.body)
        return answer

    blocking.Connection.receive = receive  # type: ignore[method-assign]
    disk = CountingDisk()
    started = time.monotonic()
    made = command._backup(disk, directory, url, PATIENCE_S, keep=False)
    return {
        **made._asdict(),
        "seconds": round(time.monotonic() - started, 2),
        "received_bytes": received,
        "read": dict(disk.read),
        "written": dict(disk.written),
    }


async def child(*arguments: object) -> Any:
    """JSON that a process printed."""
    for number in range(TRIES):
        process = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments), stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        if process.returncode == 0:
            return {**json.loads(output), "failures before": number}
    raise AssertionError(f"{arguments}: failed {TRIES} times")


def complete(directory: Path) -> set[str]:
    """Names of the files of a backup that are complete segments."""
    manifest = command.read_manifest(RealDisk(), directory)
    if manifest is None:
        return set()
    return {
        command.copy_path(directory, one.start).name for one in manifest.segments if one.bytes == manifest.segment_bytes
    }


class Measurement:
    """Backups of one broker, and their figures."""

    def __init__(self, served: Served, shop: Shop, directory: Path) -> None:
        self.served = served
        self.shop = shop
        self.directory = directory
        self.rows: list[dict[str, Any]] = []
        self.position = 0
        self._started = time.monotonic()

    async def take(self) -> None:
        before = complete(self.directory)
        began_s = time.monotonic() - self._started
        made = await child("-m", "tests.bench.backup", "--counted", self.directory, "--url", self.served.url)
        read, written = Counter(made["read"]), Counter(made["written"])
        read.pop(MANIFEST, None)
        written.pop(MANIFEST + ".new", None)
        row = {
            "minute": round(began_s / 60, 1),
            "transactions so far": len(self.shop.acknowledged),
            "position": made["position"],
            "log since the backup before": made["position"] - self.position,
            "copied": made["copied_bytes"],
            "received": made["received_bytes"],
            "written": written.total(),
            "read of segments that were complete before": sum(read[name] for name in before),
            "written to segments that were complete before": sum(written[name] for name in before),
            "read of the others": read.total() - sum(read[name] for name in before),
            "segments": made["segments"],
            "seconds": made["seconds"],
            "failures before": made["failures before"],
        }
        self.position = made["position"]
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)


async def measured(work: Path, minutes: float, every: float, per_second: float) -> dict[str, Any]:
    served = Served(work / "data", work / "log", "--segment-bytes", str(SEGMENT))
    await asyncio.to_thread(served.start, PATIENCE_S)
    shop = Shop(served, "bench", per_second=per_second, left=0.0002, body_bytes_max=1_000)
    measurement = Measurement(served, shop, work / "backup")
    workers = [asyncio.ensure_future(shop.work(worker)) for worker in range(WORKERS)]
    try:
        started = time.monotonic()
        at = 0.0
        while True:
            await asyncio.sleep(
                max(10.0, at * 60) - (time.monotonic() - started)
            )  # real time: the pace of the measurement
            await measurement.take()
            if at >= minutes:
                break
            at = min(at + every, minutes)
    finally:
        shop.over = True
        await asyncio.gather(*workers)
        await asyncio.to_thread(served.stop)
    seconds = time.monotonic() - started
    restored = work / "restored"
    began = time.monotonic()
    made = await child("-m", "halfmq", "restore", measurement.directory, restored, "--json")
    restore_s = time.monotonic() - began
    found = check_restored_log(shop, restored, made["position"])
    waiting = {one["tx_id"] for one in made["undecided"]}
    assert waiting == found.known - found.settled
    again = Served(restored, work / "log-of-restored", "--segment-bytes", str(SEGMENT))
    await asyncio.to_thread(again.start, PATIENCE_S)
    try:
        listed = await child("-m", "halfmq", "tx", "list", "--url", again.url, "--json", "--max", 1_000)
    finally:
        await asyncio.to_thread(again.stop)
    assert {row["tx_id"] for row in listed["transactions"]} == waiting
    return {
        "machine": machine(),
        "minutes": round(seconds / 60, 1),
        "transactions per second": round(len(shop.acknowledged) / seconds),
        "segment bytes": SEGMENT,
        "backups": measurement.rows,
        "restore": {
            "position": made["position"],
            "seconds": round(restore_s, 1),
            "seconds of the first start": round(again.ready_seconds[0], 1),
            "transactions": len(found.known),
            "settled": len(found.settled),
            "undecided": len(waiting),
            "violations": len(found.report.violations),
            "violations by kind": found.report.counts,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0, help="minutes between backups")
    parser.add_argument("--per-second", type=float, default=200.0, help="transactions")
    parser.add_argument("--directory", type=Path, help="where the data is, and stays; default: a temporary one")
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.counted is not None:
        print(json.dumps(counted(given.counted, given.url)))
        return
    with tempfile.TemporaryDirectory(prefix="halfmq-bench-backup-") as temporary:
        work = given.directory or Path(temporary)
        work.mkdir(exist_ok=True)
        print(json.dumps(asyncio.run(measured(work, given.minutes, given.every, given.per_second)), indent=1))


if __name__ == "__main__":
    main()
