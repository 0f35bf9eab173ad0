"""Backups of a broker under full load, where the broker and the command are killed again and again; then a restore, and who settles what
was undecided in it.
"""

import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import marked_orders
from tests.support.amount import amount, seed_of_commit
from tests.support.marked_orders import MarkedOrders
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.shop import CODES, GROUP, Shop, check_restored_log
from tests.support.waiting import PATIENCE_S, until
from typer.testing import CliRunner

from halfmq.cli import backup, restore, tx
from halfmq.runtime.disk import RealDisk
from halfmq.store.backup import LOCK, Manifest, existing, read_manifest, verify_backup
from halfmq.store.verify import verify_store

DISK: Final = RealDisk()
SEGMENT = 1 << 18
#: So many kills of the broker in one run that met a backup: its command was running, and had begun.
KILLS = amount(gate=4, everything=20, variable="HALFMQ_TEST_BACKUP_KILLS")
#: So many kills of the command itself.
COMMAND_KILLS = amount(gate=2, everything=12, variable="HALFMQ_TEST_BACKUP_COMMAND_KILLS")
WORKERS: Final = 4
MARKED_WORKERS: Final = 2
#: For the start of a broker, which is one of many here, on a machine that has more to do.
START_S: Final = 5 * PATIENCE_S
#: Kills of one backup, which is repeated until it succeeds.
KILLS_EACH: Final = 3
#: So that checks of the last broker do not take the time of the test.
QUICK: Final = ("--check-immunity-ms", "300", "--check-interval-ms", "300", "--check-interval-max-ms", "600")


def invoke(app: Any, *arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


class Run:
    """One broker under load, and its backup."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"kills {seed}")
        self.served = Served(directory / "data", directory / "log", "--segment-bytes", str(SEGMENT), *QUICK)
        self.shop = Shop(self.served, f"shop {seed}")
        self.marked = MarkedOrders(directory, self.served, f"marked {seed}")
        self.backup = directory / "backup"
        self.position = 0
        self.counts: Counter[str] = Counter()
        #: Seconds that backups took which nobody disturbed.
        self.durations = [0.1]

    async def __aenter__(self) -> "Run":
        await self.marked.create()
        await asyncio.to_thread(self.served.start, START_S)
        self._workers = [asyncio.ensure_future(self.shop.work(worker)) for worker in range(WORKERS)]
        self._workers += [asyncio.ensure_future(self.marked.work()) for _ in range(MARKED_WORKERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.end_load()
        finally:
            await asyncio.to_thread(self.served.stop)
            await self.marked.engine.dispose()

    async def end_load(self) -> None:
        self.shop.over = self.marked.over = True
        await asyncio.gather(*self._workers)

    async def more(self, count: int = 100) -> None:
        """So many further transactions are settled."""
        enough = len(self.shop.acknowledged) + count
        failed = [worker for worker in self._workers if worker.done()]
        await until(
            lambda: len(self.shop.acknowledged) >= enough,
            f"{count} transactions",
            unless=lambda: [worker.exception() for worker in failed],
        )

    def is_begun(self) -> bool:
        return DISK.lock_holder(self.backup / LOCK) is not None

    def pause_s(self) -> float:
        """Some moment of a backup."""
        return self.rng.uniform(0, statistics.median(self.durations))

    async def backed_up(self, kills: int) -> None:
        """A backup, repeated until it succeeds, while the broker is killed up to ``kills`` times."""
        while True:
            before = read_manifest(DISK, self.backup)
            began = time.monotonic()
            command = asyncio.ensure_future(
                asyncio.to_thread(invoke, backup.app, self.backup, "--url", self.served.url, "--json")
            )
            killed = kills > 0
            if killed:
                kills -= 1
                await until(lambda done=command: self.is_begun() or done.done(), "the command has begun")
                await asyncio.sleep(self.pause_s())  # real time: at any moment of it
                is_running = self.is_begun() and not command.done()
                await asyncio.to_thread(self.served.kill)
                self.counts["kills of the broker during a backup"] += is_running
                await asyncio.to_thread(self.served.start, START_S)
            done = await command
            if done.exit_code == 0:
                said = json.loads(done.stdout)
                if not killed:
                    self.durations.append(time.monotonic() - began)
                self.succeeded(before, said["position"], said["copied_bytes"])
                return
            assert done.exit_code == 1, f"seed {self.seed}: {done.output}"
            assert killed, f"seed {self.seed}: {done.output}"
            self.counts["backups that were cut off"] += 1
            assert read_manifest(DISK, self.backup) == before, (
                f"seed {self.seed}: a backup that failed left another one"
            )

    async def command_killed(self) -> None:
        """The command is killed at some moment of a backup. The backup before it stays valid, unless the new one was complete."""
        before = read_manifest(DISK, self.backup)
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "halfmq", "backup", str(self.backup), "--url", self.served.url,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(lambda: DISK.lock_holder(self.backup / LOCK) == command.pid or command.returncode is not None)
        await asyncio.sleep(self.pause_s())  # real time: at any moment of it
        with contextlib.suppress(ProcessLookupError):
            command.kill()
        if await command.wait() != -9:
            assert command.returncode == 0
        else:
            self.counts["kills of the command"] += 1
            beyond = sum(one.stat().st_size for one in (self.backup / "log").iterdir())
            self.counts["kills of the command that left bytes"] += beyond > (0 if before is None else before.bytes)
        found = read_manifest(DISK, self.backup)
        if found is None:
            assert before is None
            return
        verify_backup(DISK, self.backup)
        if found != before:
            self.succeeded(before, found.position, None)

    def succeeded(self, before: Manifest | None, position: int, copied: int | None) -> None:
        """A backup up to ``position`` followed the one of ``before``, and said that it copied so many bytes."""
        manifest = existing(DISK, self.backup)
        assert (manifest.position, manifest.bytes) == (position, position)
        assert copied is None or copied == position - self.position, f"seed {self.seed}: only what is new"
        assert before is None or before.position == self.position
        self.position = position


@pytest.mark.timeout(1_800)
async def test_a_backup_under_load_and_kills_is_restored_to_a_consistent_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "halfmq")  # a client warns of each of the orders that died
    seed = seed_of_commit()
    async with Run(tmp_path, seed) as run:
        counts = run.counts
        await run.more()
        while counts["kills of the broker during a backup"] < KILLS or counts["kills of the command"] < COMMAND_KILLS:
            await run.more()
            if counts["kills of the command"] < COMMAND_KILLS:
                await run.command_killed()
                await run.more(20)
            missing = KILLS - counts["kills of the broker during a backup"]
            await run.backed_up(min(KILLS_EACH, max(0, missing)))
            await run.more(20)
            await run.backed_up(0)
        await run.more()
        await run.end_load()
        made = invoke(restore.app, run.backup, tmp_path / "new", "--json")
        assert made.exit_code == 0, made.output
        found = json.loads(made.stdout)
        assert found["position"] == run.position
        # What was undecided there is decided by the broker that is about to be lost, and half of the markers are pruned then.
        waiting = [one for one in found["undecided"] if one["group"] == marked_orders.GROUP]
        async with run.marked.process(run.served) as mq:
            await until(lambda: all_settled(run.served, marked_orders.GROUP), "checks settle all", 2 * PATIENCE_S)
            horizon_ms = round(statistics.median([one["prepared_at_ms"] for one in waiting]))
            assert await run.marked.prune(mq, horizon_ms)
        print(f"seed {seed}: {dict(counts)}")
        assert counts["backups that were cut off"], f"seed {seed}: {counts}"
        settled = check_log(run, tmp_path / "new", found)
        assert settled > 100
        served = Served(tmp_path / "new", tmp_path / "log-of-new", "--segment-bytes", str(SEGMENT), *QUICK)
        await asyncio.to_thread(served.start, START_S)
        try:
            await check_raw(run.shop, served, found, seed)
            await check_marked(run.marked, served, [one["tx_id"] for one in waiting], seed)
        finally:
            await asyncio.to_thread(served.stop)
    assert not verify_store(DISK, tmp_path / "new").damaged


def check_log(run: Run, data: Path, found: dict[str, Any]) -> int:
    """The restored log agrees with the history, and the restore named what is undecided in it. Returns the number of those settled."""
    log = check_restored_log(run.shop, data, found["position"])
    named = {(one["group"], one["tx_id"]) for one in found["undecided"]}
    assert {tx_id for group, tx_id in named if group == GROUP} == log.known - log.settled
    return len(log.settled)


async def listed(served: Served, group: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:  # a page has 1,000
        place = ("--max", "1000", "--from", str(len(rows)))
        done = await asyncio.to_thread(invoke, tx.app, "list", "--group", group, "--url", served.url, "--json", *place)
        assert done.exit_code == 0, done.output
        page = json.loads(done.stdout)["transactions"]
        rows += page
        if len(page) < 1_000:
            return rows


async def undecided(served: Served, group: str = GROUP) -> dict[str, str]:
    """Id -> why it is parked, of all that the broker lists."""
    return {row["tx_id"]: row["set_aside"] for row in await listed(served, group)}


async def all_settled(served: Served, group: str) -> bool:
    return not await undecided(served, group)


async def check_raw(shop: Shop, served: Served, found: dict[str, Any], seed: int) -> None:
    """Answers to checks, as frames: COMMIT settles, ROLLBACK waits for an operator, durably."""
    waiting = [one["tx_id"] for one in found["undecided"] if one["group"] == GROUP]
    assert set(await undecided(served)) == set(waiting)
    client = await RawClient.connect(served.port)
    expected: dict[str, str] = {}
    rng = random.Random(f"markers {seed}")
    for tx_id in waiting:
        # A marker of a commit may have been pruned since the backup, and one of a rollback never was.
        has_marker = shop.local.get(tx_id) == "COMMITTED" and (tx_id not in shop.acknowledged or rng.random() < 0.5)
        code = CODES["COMMITTED" if has_marker else "ROLLED_BACK"]
        more = {"fromTransactionCheck": "true", "HMQ_TX_ID": tx_id}
        done = await client.end(shop.halves[tx_id], tx_id, code, group=GROUP, **more) if tx_id in shop.halves else None
        if done is None or not has_marker:
            expected[tx_id] = "" if done is None else "restored"
            assert done is None or done.code == 29
        else:
            assert (done.code, done.ext["HMQ_VERDICT"]) == (0, "COMMITTED")
    await client.close()
    assert await undecided(served) == expected
    assert "restored" in expected.values()
    assert len(expected) < len(waiting), f"seed {seed}: none was committed by its marker"
    served.kill()
    served.start(START_S)
    assert await undecided(served) == expected, "it is durable"
    tx_id = next(one for one, why in expected.items() if why)
    arguments = ("rollback", tx_id, "--operator", "ada", "--reason", "its order is gone", "--yes", "--url", served.url)
    done = invoke(tx.app, *arguments)
    assert done.exit_code == 0, done.output
    assert tx_id not in await undecided(served)


async def check_marked(marked: MarkedOrders, served: Served, waiting: list[str], seed: int) -> None:
    """Checks that a client answers from its marker table: a marker of a commit settles; whatever else is there, and nothing being there,
    leaves the transaction to an operator, and says so.
    """
    orders, markers = await marked.committed(), await marked.marked()
    assert set(await undecided(served, marked_orders.GROUP)) == set(waiting)
    right = {tx_id for tx_id in waiting if markers.get(tx_id) == "C"}
    fenced = {tx_id for tx_id in waiting if markers.get(tx_id) == "R"}
    pruned = set(waiting) - right - fenced
    assert right, f"seed {seed}: no marker of a commit was left"
    assert fenced, f"seed {seed}: no marker of a rollback was left"
    assert right <= orders, f"seed {seed}"
    assert pruned & orders, f"seed {seed}: no marker of a commit was pruned"

    async def is_settled() -> bool:
        rows = {row["tx_id"]: row for row in await listed(served, marked_orders.GROUP)}
        if rows.keys() & right or {tx_id for tx_id, row in rows.items() if row["set_aside"]} != fenced:
            return False
        return all(row["checks"] > 1 for tx_id, row in rows.items() if tx_id in pruned)

    async with marked.process(served):
        await until(is_settled, "each was checked", 2 * PATIENCE_S)
    assert await undecided(served, marked_orders.GROUP) == {
        **dict.fromkeys(pruned, ""),
        **dict.fromkeys(fenced, "restored"),
    }
    for tx_id in (min(pruned & orders), min(fenced)):
        story = invoke(tx.app, "show", tx_id, "--url", served.url)
        assert story.exit_code == 0, story.output
        expected = "no marker in mq_tx" if tx_id in pruned else "restored"
        assert expected in " ".join(story.stdout.split()), story.stdout
    for tx_id in sorted(right)[:3]:
        story = invoke(tx.app, "show", tx_id, "--url", served.url)
        assert "COMMITTED" in story.stdout.upper(), story.stdout
