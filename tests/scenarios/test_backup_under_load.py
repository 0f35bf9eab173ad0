"""Backups of a broker that takes transactions and is killed again and again; then a restore, and who settles what was undecided in it."""

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any, Final

from tests.support.amount import amount, seed_of_commit
from tests.support.raw_client import Answer, RawClient
from tests.support.served import Served
from tests.support.waiting import until
from typer.testing import CliRunner

from halfmq.cli import backup, restore, tx
from halfmq.runtime.disk import RealDisk
from halfmq.store.verify import verify_store
from halfmq.testing.history import MemoryRecorder, check_events
from halfmq.testing.history.events import Answered, EndAsked, HalfSent, Local, Logged, Verdict
from halfmq.testing.history.logged import log_events

DISK: Final = RealDisk()
GROUP, TOPIC = "orders", "T"
SEGMENT = 1 << 18
ROUNDS = amount(gate=4, everything=40, variable="HALFMQ_BACKUP_ROUNDS")
WORKERS: Final = 4
CODES: Final[dict[Verdict, int]] = {"COMMITTED": 8, "ROLLED_BACK": 12}


class Shop:
    """Transactions of several workers at once; each decides by chance, and leaves some to later checks."""

    def __init__(self, served: Served, seed: str) -> None:
        self.served = served
        self.rng = random.Random(seed)
        self.history = MemoryRecorder("shop")
        self.halves: dict[str, Answer] = {}
        #: The database: what each local transaction did.
        self.local: dict[str, Verdict] = {}
        self.acknowledged: dict[str, tuple[Verdict, int]] = {}
        self.over = False

    async def work(self, worker: int) -> None:
        number = 0
        while not self.over:
            with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError, TimeoutError):
                client = await RawClient.connect(self.served.port)
                try:
                    while not self.over:
                        number += 1
                        await self.transaction(client, f"{worker:08X}{number:024X}")
                finally:
                    await client.close()
            await asyncio.sleep(0.02)  # real time: the broker is being started

    async def transaction(self, client: RawClient, tx_id: str) -> None:
        rng, record = self.rng, self.history.record
        fields: dict[str, Any] = {"op": f"h{tx_id}", "group": GROUP, "tx": tx_id, "message": tx_id, "topic": TOPIC}
        record(HalfSent, **fields)
        half = await client.half(TOPIC, bytes(rng.randrange(1, 3_000)), unique=tx_id, group=GROUP)
        assert half.code == 0, half
        self.halves[tx_id] = half
        record(Answered, op=f"h{tx_id}", outcome="ok")
        if rng.random() < 0.1:
            return  # the process died before its COMMIT
        verdict: Verdict = "COMMITTED" if rng.random() < 0.7 else "ROLLED_BACK"
        self.local[tx_id] = verdict
        record(Local, group=GROUP, tx=tx_id, outcome=verdict)
        if rng.random() < 0.1:
            return  # ... or after it
        record(EndAsked, op=f"e{tx_id}", group=GROUP, tx=tx_id, verdict=verdict)
        done = await client.end(half, tx_id, CODES[verdict], group=GROUP, HMQ_TX_ID=tx_id)
        assert (done.code, done.ext["HMQ_VERDICT"]) == (0, verdict)
        position = int(done.ext["HMQ_POSITION"])
        self.acknowledged[tx_id] = verdict, position
        record(Answered, op=f"e{tx_id}", outcome="ok", verdict=verdict, position=position)


def invoke(app: Any, *arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


async def backed_up(served: Served, directory: Path, rng: random.Random) -> tuple[dict[str, Any], int]:
    """One backup, repeated until it succeeds, while the broker is killed. (what the command said, how often it failed)."""
    failed = 0
    while True:
        command = asyncio.ensure_future(asyncio.to_thread(invoke, backup.app, directory, "--url", served.url, "--json"))
        if failed < 3:
            await asyncio.sleep(rng.uniform(0, 0.12))  # real time: at any moment of it
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
        done = await command
        if done.exit_code == 0:
            return dict(json.loads(done.stdout)), failed
        assert done.exit_code == 1, done.output
        failed += 1


def undecided(served: Served) -> dict[str, str]:
    """Id -> why it is parked, of all that the broker lists."""
    done = invoke(tx.app, "list", "--url", served.url, "--json", "--max", "1000")
    assert done.exit_code == 0, done.output
    return {row["tx_id"]: row["set_aside"] for row in json.loads(done.stdout)["transactions"]}


async def more(shop: Shop) -> None:
    """100 further transactions are settled."""
    enough = len(shop.acknowledged) + 100
    await until(lambda: len(shop.acknowledged) >= enough, "100 transactions")


async def test_a_backup_under_load_and_kills_is_restored_to_a_consistent_position(tmp_path: Path) -> None:
    seed = seed_of_commit()
    rng = random.Random(f"kills {seed}")
    served = Served(tmp_path / "data", tmp_path / "log", "--segment-bytes", str(SEGMENT))
    served.start()
    shop = Shop(served, f"shop {seed}")
    workers = [asyncio.ensure_future(shop.work(worker)) for worker in range(WORKERS)]
    position, failures = 0, 0
    try:
        for _ in range(ROUNDS):
            await more(shop)
            said, failed = await backed_up(served, tmp_path / "backup", rng)
            assert said["copied_bytes"] == said["position"] - position, f"seed {seed}: only what is new"
            position, failures = said["position"], failures + failed
            assert said["bytes"] == position
        await more(shop)
    finally:
        shop.over = True
        await asyncio.gather(*workers)
        served.stop()
    assert served.kills >= ROUNDS
    made = invoke(restore.app, tmp_path / "backup", tmp_path / "new", "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["position"] == position
    await check_restored(shop, tmp_path / "new", found, seed)
    assert failures, f"seed {seed}: no backup was cut off"


async def check_restored(shop: Shop, data: Path, found: dict[str, Any], seed: int) -> None:
    position = found["position"]
    log = [event for event in log_events(DISK, data) if isinstance(event, Logged)]
    began = next(iter(log_events(DISK, data)))
    known = {event.tx for event in log if event.kind == "half"}
    settled = {event.tx: event.kind for event in log if event.kind in ("commit", "rollback")}
    assert len(settled) > 100
    kinds: dict[Verdict, str] = {"COMMITTED": "commit", "ROLLED_BACK": "rollback"}
    for tx_id, (verdict, at) in shop.acknowledged.items():
        assert (settled.get(tx_id) == kinds[verdict]) == (at < position), f"seed {seed}: {tx_id} at {at}, {position}"
    late = {f"e{tx_id}" for tx_id, (_, at) in shop.acknowledged.items() if at >= position}
    kept = [
        event
        for event in shop.history.events
        if (not isinstance(event, HalfSent | EndAsked | Local) or event.tx in known)
        and (not isinstance(event, Answered) or (event.op not in late and event.op[1:] in known))
    ]
    end_us = shop.history.events[-1].t_us + 1
    report = check_events([*kept, began, *[type(event)(**{**_fields(event), "t_us": end_us}) for event in log]])
    assert not report.violations, f"seed {seed}: {report.violations[:5]}"
    assert report.counts
    waiting = [one["tx_id"] for one in found["undecided"]]
    assert set(waiting) == known - settled.keys()
    served = Served(data, data.parent / "log-of-new", "--segment-bytes", str(SEGMENT))
    served.start()
    try:
        assert set(undecided(served)) == set(waiting)
        client = await RawClient.connect(served.port)
        expected: dict[str, str] = {}
        rng = random.Random(f"markers {seed}")
        for tx_id in waiting:
            # A marker of a commit may have been pruned since the backup, and one of a rollback never was.
            has_marker = shop.local.get(tx_id) == "COMMITTED" and (tx_id not in shop.acknowledged or rng.random() < 0.5)
            code = CODES["COMMITTED" if has_marker else "ROLLED_BACK"]
            more = {"fromTransactionCheck": "true", "HMQ_TX_ID": tx_id}
            done = (
                await client.end(shop.halves[tx_id], tx_id, code, group=GROUP, **more) if tx_id in shop.halves else None
            )
            if done is None or not has_marker:
                expected[tx_id] = "" if done is None else "restored"
                assert done is None or done.code == 29
            else:
                assert (done.code, done.ext["HMQ_VERDICT"]) == (0, "COMMITTED")
        await client.close()
        assert undecided(served) == expected
        assert "restored" in expected.values()
        assert len(expected) < len(waiting), f"seed {seed}: none was committed by its marker"
        served.kill()
        served.start()
        assert undecided(served) == expected, "it is durable"
        tx_id = next(one for one, why in expected.items() if why)
        arguments = (
            "rollback",
            tx_id,
            "--operator",
            "ada",
            "--reason",
            "its order is gone",
            "--yes",
            "--url",
            served.url,
        )
        done = invoke(tx.app, *arguments)
        assert done.exit_code == 0, done.output
        assert tx_id not in undecided(served)
    finally:
        served.stop()
    assert not verify_store(DISK, data).damaged


def _fields(event: Logged) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}
