"""Reads of the transaction table from a running broker: rows, names, bodies, refusals."""

import asyncio
import json
from pathlib import Path

from tests.support.in_process import Hand, Running, serving
from tests.support.outcomes import TRANSACTIONS, UNDECIDED, fill
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import until

from halfmq.store.half_names import half_names
from halfmq.store.layout import TRANSACTION_ROW
from halfmq.store.store import Durability
from halfmq.store.table_block import ENTRY_BYTES, ENTRY_HEAD
from halfmq.store.transaction_table import TransactionRow
from halfmq.wire.remoting.raw_read import CHECKSUM_BYTES, is_intact

TABLE = 29_016
COMMIT = 8
ID = "AC10000100002A9F0000000000000001"


async def read(running: Running, client: RawClient, wanted: str, **changes: str) -> Answer:
    ext = {
        "store": running.broker._store.uuid, "wanted": wanted, "firstHalf": "0", "endHalf": "1000", "position": "0",
        "maxBytes": "1000000", **changes,
    }  # fmt: skip
    return await client.ask(TABLE, ext)


def rows_of(answer: Answer) -> tuple[list[tuple[int, TransactionRow, bytes]], dict[str, str]]:
    """((half index, row, record) of each row, topics)."""
    assert answer.code == 0, answer
    assert is_intact(memoryview(answer.body))
    count = int(answer.ext["rows"])
    records_at = CHECKSUM_BYTES + count * ENTRY_BYTES
    found = []
    for at in range(CHECKSUM_BYTES, records_at, ENTRY_BYTES):
        half, start, size = ENTRY_HEAD.unpack_from(answer.body, at)
        row = TransactionRow._make(TRANSACTION_ROW.unpack_from(answer.body, at + ENTRY_HEAD.size))
        found.append((half, row, answer.body[records_at + start : records_at + start + size]))
    return found, json.loads(answer.body[records_at + int(answer.ext["recordBytes"]) :])


async def test_all_rows_undecided_ones_and_whole_halves(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        answer = await read(running, client, "transactions")
        rows, topics = rows_of(answer)
        halves = sum(one[2] for one in TRANSACTIONS.values())
        assert [half for half, _, _ in rows] == list(range(halves))
        assert sorted(topics.values()) == ["loyalty", "orders"]
        assert (answer.ext["nextHalf"], answer.ext["tableFirst"], answer.ext["tableEnd"]) == (
            str(halves),
            "0",
            str(halves),
        )
        assert answer.ext["position"] == str(running.broker._store.high_watermark)
        assert b"body of undecided" not in answer.body
        assert {half_names(record).tx_id for _, row, record in rows if row.state == 1} == UNDECIDED.keys()
        whole, _ = rows_of(await read(running, client, "halves"))
        assert sum(half_names(record).messages for _, _, record in whole) == sum(UNDECIDED.values())
        assert any(b"body of undecided" in record for _, _, record in whole)
        listed, _ = rows_of(await read(running, client, "undecided"))
        assert [half for half, _, _ in listed] == [half for half, _, _ in whole]
        some = await read(running, client, "rows", firstHalf="3", endHalf="5")
        assert [half for half, _, _ in rows_of(some)[0]] == [3, 4]


async def test_a_half_that_is_not_durable_is_not_returned(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        client = await running.client()
        first = asyncio.ensure_future(client.half("T", b"one", unique=ID))
        await until(lambda: not hand.flush.run() and first.done())
        end = asyncio.ensure_future(client.end(await first, ID, COMMIT))
        task = asyncio.ensure_future(client.half("T", b"not durable", unique=ID[:-1] + "2"))
        await until(lambda: running.state.next_half_index == 2)
        rows, _ = rows_of(await read(running, client, "transactions"))
        assert [(half, row.state) for half, row, _ in rows] == [(0, 1)]
        hand.flush.run()
        await asyncio.gather(task, end)
        rows, _ = rows_of(await read(running, client, "transactions"))
        assert [(half, row.state) for half, row, _ in rows] == [(0, 2), (1, 1)]


async def test_reasons_to_read_nothing_have_their_codes(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        empty = await read(running, client, "transactions")
        assert (rows_of(empty), empty.ext["nextHalf"]) == (([], {}), "0")
        other = await read(running, client, "rows", store="ab" * 16)
        assert (other.code, other.ext["store"]) == (22, running.broker._store.uuid)
        later = await read(running, client, "rows", position=str(1 << 40))
        assert (later.code, "before 1099511627776" in str(later.remark)) == (2, True)
