"""An id that an application chose, and whose transaction was settled, is refused for as long as the log holds the verdict: after the
deduplication window, after a restart, with indexes rebuilt from the log; over raw frames and with our client."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.test_verdicts import assert_conflict, visible
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient, command, end_ext, send_ext
from tests.support.waiting import soon, until

from halfmq import AsyncClient, Outcome, Transaction, TransactionRefused, TransactionUndecided, compose
from halfmq.broker.offload import ThreadOffload
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.store import checkpoint as checkpoint_file
from halfmq.store.settled_ids import SettledIds
from halfmq.store.verify import verify_store

COMMIT, ROLLBACK = 8, 12
#: A window of one verdict: the next one pushes it out of memory.
FORGETFUL = BrokerSettings(dedup_ids_max=1)
ORDER = "order-17"
#: Of the form of a UNIQ_KEY, and still chosen.
LOOKS_MADE = "0123456789ABCDEF0123456789ABCDEF"


async def settle(client: RawClient, tx_id: str, verdict: int, *, unique: str, body: bytes = b"one") -> Answer:
    half = await client.half("T", body, unique=unique, HMQ_TX_ID=tx_id, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1")
    assert half.code == 0, half
    settled = await client.end(half, unique, verdict, HMQ_TX_ID=tx_id)
    assert settled.code == 0, settled
    return settled


async def forget(client: RawClient, running: Running, tx_id: str) -> None:
    """Let another verdict push this one out of memory."""
    half = await client.half("Other", b"other", unique=f"{len(running.state.verdicts):032d}", group="Others")
    assert (await client.end(half, f"{len(running.state.verdicts):032d}", COMMIT, group="Others")).code == 0
    assert all(tx_id not in group.settled for group in running.state.producer_groups.values())


async def again(client: RawClient, tx_id: str, *, unique: str, group: str = "P") -> Answer:
    return await client.half(
        "T", b"again", unique=unique, group=group, HMQ_TX_ID=tx_id, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1"
    )


@pytest.mark.parametrize("tx_id", [ORDER, LOOKS_MADE])
@pytest.mark.parametrize(("verdict", "standing"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")])
@pytest.mark.parametrize("unique", ["A" * 32, "B" * 32], ids=["the same half", "another message"])
async def test_a_settled_id_is_refused_after_the_window(
    tmp_path: Path, tx_id: str, verdict: int, standing: str, unique: str
) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        settled = await settle(client, tx_id, verdict, unique="A" * 32)
        await forget(client, running, tx_id)
        refused = await again(client, tx_id, unique=unique)
        assert_conflict(refused, standing)
        assert refused.ext["HMQ_POSITION"] == settled.ext["HMQ_POSITION"]
        assert len(await visible(client)) == (verdict == COMMIT)
        assert (await again(client, tx_id, unique="C" * 32, group="Elsewhere")).code == 0, "ids belong to a group"
        assert (await again(client, f"{tx_id}0", unique="D" * 32)).code == 0


async def test_the_same_holds_for_a_unique_id_that_an_application_chose(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ORDER)
        settled = await client.end(half, ORDER, COMMIT)
        await forget(client, running, ORDER)
        refused = await client.half("T", b"one", unique=ORDER)
        assert_conflict(refused, "COMMITTED")
        assert refused.ext["HMQ_POSITION"] == settled.ext["HMQ_POSITION"]


async def test_a_half_of_a_forgotten_transaction_of_several_is_refused_too(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        first = await client.half("T", b"one", unique="A" * 32, HMQ_TX_ID=ORDER, HMQ_TX_INDEX="0")
        last = {"HMQ_TX_ID": ORDER, "HMQ_TX_INDEX": "1", "HMQ_TX_COUNT": "2"}
        assert (await client.half("U", b"two", unique="B" * 32, **last)).code == 0
        assert (await client.end(first, "A" * 32, COMMIT, HMQ_TX_ID=ORDER)).code == 0
        await forget(client, running, ORDER)
        assert_conflict(await client.half("U", b"two", unique="B" * 32, **last), "COMMITTED")
        assert_conflict(
            await client.half("U", b"more", unique="C" * 32, **last | {"HMQ_TX_INDEX": "0", "HMQ_TX_COUNT": "1"}),
            "COMMITTED",
        )


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_same_holds_for_half_batches_of_a_transaction(tmp_path: Path, restarted: bool) -> None:
    plain = {"query": "", "txId": ORDER, "index": 0, "count": 1}
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        one = await run.prepare(0, "", messages("a", 3), **plain)
        end = {
            "producerGroup": "SPARK", "tranStateTableOffset": one.ext["halfIndex"], "commitLogOffset": one.ext["offset"],
            "msgId": ORDER, "transactionId": ORDER, "fromTransactionCheck": "false", "commitOrRollback": "8",
        }  # fmt: skip
        settled = await client.ask(37, end)
        assert settled.code == 0
        await forget(client, running, ORDER)
        if not restarted:
            await refused_half_batch(run, plain, settled)
    if restarted:
        async with serving(tmp_path, settings=FORGETFUL) as running:
            await refused_half_batch(await QueryRun.begin(await running.client()), plain, settled)
    assert not verify_store(RealDisk(), tmp_path).findings


async def refused_half_batch(run: QueryRun, plain: dict[str, Any], settled: Answer) -> None:
    refused = await run.prepare(0, "", messages("a", 3), **plain)
    assert_conflict(refused, "COMMITTED")
    assert refused.ext["HMQ_POSITION"] == settled.ext["HMQ_POSITION"]
    assert (await run.prepare(0, "", messages("a", 3), **plain | {"txId": "order-18"})).code == 0


async def test_verdict_that_memory_forgets_between_the_search_and_the_decision_still_stands(tmp_path: Path) -> None:
    """Method: a window of one verdict. The verdict, one more that pushes it out, and the half are in one turn, so that the index does not
    have the verdict yet when the half comes in."""
    other = "AC10000100002A9F0000000000000002"
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        one = await client.half("T", b"one", unique="A" * 32, HMQ_TX_ID=ORDER, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1")
        two = await client.half("T", b"two", unique=other)
        waiting = [client.expect(opaque) for opaque in range(901, 904)]
        pairs = {
            "TRAN_MSG": "true", "UNIQ_KEY": "B" * 32, "PGROUP": "P", "HMQ_TX_ID": ORDER, "HMQ_TX_INDEX": "0",
            "HMQ_TX_COUNT": "1",
        }  # fmt: skip
        client.write(
            command(37, 901, end_ext(one, "A" * 32, COMMIT, HMQ_TX_ID=ORDER))
            + command(37, 902, end_ext(two, other, COMMIT))
            + command(310, 903, send_ext("T", "P", 0, pairs, queues=1, sys_flag=4), b"again")
        )
        first, _, again_ = await soon(asyncio.gather(*waiting))
        assert first.code == 0
        assert_conflict(again_, "COMMITTED")
        assert again_.ext["HMQ_POSITION"] == first.ext["HMQ_POSITION"]


def lose_everything_but_the_log(directory: Path) -> None:
    for path in (directory / "shard-0").iterdir():
        if path.name != "log":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def lose_the_index(directory: Path) -> None:
    shutil.rmtree(directory / "shard-0" / "settled_ids")


def lose_the_marker(directory: Path) -> None:
    """As in a store of a version without this index."""
    (directory / "shard-0" / "settled_ids" / "begun").unlink()


def lose_nothing(directory: Path) -> None:
    pass


@pytest.mark.parametrize("lose", [lose_nothing, lose_everything_but_the_log, lose_the_index, lose_the_marker])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_used_id_is_refused_after_a_restart(
    tmp_path: Path, lose: Callable[[Path], None], checkpointed: bool
) -> None:
    ids = [f"order-{number}" for number in range(20)]
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        for number, tx_id in enumerate(ids):
            await settle(client, tx_id, COMMIT if number % 3 else ROLLBACK, unique=f"{number:032d}")
            if checkpointed and number == 10:
                await checkpoint(running)
        await forget(client, running, ids[-1])
    lose(tmp_path)
    for _ in range(2):
        async with serving(tmp_path, settings=FORGETFUL) as running:
            client = await running.client()
            for number, tx_id in enumerate(ids):
                refused = await again(client, tx_id, unique=f"{number:032d}")
                assert_conflict(refused, "COMMITTED" if number % 3 else "ROLLED_BACK")
            assert (await again(client, "order-new", unique="E" * 32)).code == 0


async def checkpoint(running: Running) -> None:
    done = asyncio.Event()
    running.broker._maintenance.checkpoint(done.set)  # type: ignore[union-attr]
    await done.wait()


async def test_what_an_earlier_version_settled_in_between_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the index has no gap after a downgrade and an upgrade. Method: a run that writes checkpoints of the earlier format and no
    entries, as that version does."""
    async with serving(tmp_path, settings=FORGETFUL) as running:
        await settle(await running.client(), "order-1", COMMIT, unique="A" * 32)
        await checkpoint(running)
    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint_file, "FORMAT_VERSION", 1)
        earlier.setattr(SettledIds, "add", lambda *_: None)
        async with serving(tmp_path, settings=FORGETFUL) as running:
            client = await running.client()
            await settle(client, "order-2", COMMIT, unique="B" * 32)
            await forget(client, running, "order-2")
            await checkpoint(running)
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        for tx_id in ("order-1", "order-2"):
            assert_conflict(await again(client, tx_id, unique="C" * 32), "COMMITTED")


async def test_when_the_segment_of_its_verdict_is_trimmed_an_id_is_new_again(tmp_path: Path) -> None:
    small = {"segment_bytes": 1 << 16, "settings": BrokerSettings(dedup_window_ms=0)}
    async with serving(
        tmp_path, retention_bytes=1 << 17, retention_check_ms=20, checkpoint_interval_ms=40, **small
    ) as running:
        client = await running.client()
        await settle(client, "old", COMMIT, unique="A" * 32)
        assert_conflict(await again(client, "old", unique="B" * 32), "COMMITTED")
        for number in range(40):
            assert (await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")).code == 0
        await until(lambda: not (tmp_path / "shard-0" / "settled_ids" / f"{0:020d}.ids").exists())
        await settle(client, "young", ROLLBACK, unique="C" * 32)
        assert (await again(client, "old", unique="B" * 32)).code == 0
        assert_conflict(await again(client, "young", unique="D" * 32), "ROLLED_BACK")
    async with serving(tmp_path, **small) as running:
        client = await running.client()
        assert_conflict(await again(client, "young", unique="D" * 32), "ROLLED_BACK")
        assert (await again(client, "old-2", unique="F" * 32)).code == 0


class ClosedGate(ThreadOffload):
    """Holds its work back until ``open``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.opened = asyncio.Event()

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        async def later() -> None:
            await self.opened.wait()
            super(ClosedGate, self).run(work, done)

        self._task = asyncio.ensure_future(later())


async def test_a_half_that_comes_before_the_index_was_read_waits_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settle(client, ORDER, COMMIT, unique="A" * 32)
        await forget(client, running, ORDER)
    gate = ClosedGate(asyncio.get_running_loop())
    async with serving(tmp_path, settings=FORGETFUL, offload=gate) as running:
        client = await running.client()
        used = asyncio.ensure_future(again(client, ORDER, unique="A" * 32))
        new = asyncio.ensure_future(again(client, "order-18", unique="B" * 32))
        assert (await client.half("T", b"made", unique="AC10000100002A9F0000000000000009")).code == 0
        assert not used.done()
        assert not new.done()
        gate.opened.set()
        assert_conflict(await used, "COMMITTED")
        assert (await new).code == 0


async def test_our_client_is_refused_and_says_which_verdict_stands(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="P") as mq:
            message = compose("T", "one")
            first = await mq.commit(await mq.prepare([message], tx_id=ORDER))
            await forget(await running.client(), running, ORDER)
            with pytest.raises(TransactionRefused) as refused:
                await mq.prepare([message], tx_id=ORDER)
            assert refused.value.standing == first.verdict
            ran = False
            with pytest.raises(TransactionRefused):  # noqa: PT012 - what is tested is a block that raises
                async with mq.begin(tx_id=ORDER) as tx:
                    tx.send("T", "again")
                    await tx.prepare()
                    ran = True
            assert not ran, "the local transaction must not run"
            async with mq.begin() as tx:  # a generated id
                tx.send("T", "two")
        assert sum(running.state.topics_by_name["T"].ends) == 2


@pytest.mark.parametrize("messages", [1, 2, 20])
@pytest.mark.parametrize("earlier", [1, 2, 20])
async def test_an_id_that_is_still_undecided_is_refused_as_such_and_its_check_decides(
    tmp_path: Path, earlier: int, messages: int
) -> None:
    """An earlier run has committed locally and died before its verdict: what the next run is told does not decide for it. Many
    messages go in half batches."""
    asked: list[str] = []

    def check(transaction: Transaction) -> Outcome:
        asked.append(transaction.id)
        return Outcome.COMMIT

    settings = BrokerSettings(check_immunity_ms=1_000, check_interval_ms=100)
    async with serving(tmp_path, settings=settings) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="P") as mq:
            await mq.prepare([compose("T", b"first")] * earlier, tx_id=ORDER, name="order")
        async with AsyncClient(url, group="P") as mq:
            mq.add_check("order", check)
            with pytest.raises(TransactionUndecided) as refused:  # noqa: PT012 - what is tested is a block that raises
                async with mq.begin("order", tx_id=ORDER) as tx:
                    for _ in range(messages):
                        tx.send("T", b"again")
            assert (refused.value.tx_id, refused.value.code) == (ORDER, "transaction-undecided")
            assert "is undecided: an earlier run of it was prepared and not settled" in str(refused.value)
            assert refused.value.outcome_known
            await until(lambda: running.state.verdicts, "the verdict")
            with pytest.raises(TransactionRefused) as standing:
                await mq.prepare([compose("T", b"again")], tx_id=ORDER, name="order")
            assert standing.value.standing == "COMMITTED"
            assert asked == [ORDER]
            async with mq.consumer("T", group="readers") as consumer:
                got = [await consumer.get(20) for _ in range(earlier)]
            assert [message.body for message in got if message] == [b"first"] * earlier
