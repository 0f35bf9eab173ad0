"""Views of transactions over the network: the rows are those of the files, and what happens when something is wrong."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.outcomes import COMMIT, TRANSACTIONS, UNDECIDED, fill
from tests.support.scripted_server import ScriptedServer
from tests.support.table_reads import read_view

from halfmq import limits
from halfmq.errors import ConnectError, DataLost, ProtocolError, UsageError
from halfmq.model.queue_reads import Position
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.store.layout import TRANSACTION_ROW
from halfmq.store.table_block import ENTRY_HEAD
from halfmq.wire.remoting import route
from halfmq.wire.remoting.codes import HMQ_POSITION, HMQ_TABLE_READ, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response, encode_response_head
from halfmq.wire.remoting.position import encode_answer
from halfmq.wire.remoting.raw_read import HEAD_BYTES, body_bytes, complete_frame
from halfmq.wire.remoting.table_read import TOPICS, TableFound, TableReadFields

STORE = "ab" * 16


async def test_rows_are_those_of_the_files_and_stand_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several pages, so that transactions are split between them.
    monkeypatch.setattr(limits, "TABLE_READ_ROWS_MAX", 3)
    monkeypatch.setattr(limits, "TABLE_SCAN_ROWS_MAX", 5)
    monkeypatch.setattr(limits, "TABLE_READ_BYTES_MAX", 3_000)
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        url, path = {"url": f"rocketmq://127.0.0.1:{running.ports.names}"}, {"path": str(tmp_path)}
        loop = asyncio.get_running_loop()

        def decide() -> None:
            asyncio.run_coroutine_threadsafe(more(), loop).result(20)

        async def more() -> None:
            assert (await client.ask(29_004, {"txId": "undecided", "verdict": "COMMIT", "operator": "me"})).code == 0
            assert (
                await client.ask(29_004, {"txId": "two-undecided", "verdict": "COMMIT", "operator": "me"})
            ).code == 0
            half = await client.half("orders", b"new", unique="new")
            assert (await client.end(half, "new", COMMIT)).code == 0

        for view, number in (("transactions", len(TRANSACTIONS)), ("half", sum(UNDECIDED.values()))):
            files = await asyncio.to_thread(read_view, view, **path, minPartitions="4")
            assert len(files) == number
            assert await asyncio.to_thread(read_view, view, **url, minPartitions="4") == files
        before = await asyncio.to_thread(read_view, "transactions", **url)
        assert await asyncio.to_thread(read_view, "transactions", between=decide, **url) == before
        after = await asyncio.to_thread(read_view, "transactions", **url)
        changed = {row["transaction_id"] for row in after if row not in before}
        assert changed == {"undecided", "two-undecided", "new"}
        assert {row["decided_by"] for row in after if row["transaction_id"] in changed} == {"operator", "producer"}
        start = next(row["first_half"] for row in after if row["transaction_id"] == "new")
        (new,) = await asyncio.to_thread(read_view, "transactions", startingHalf=str(start), **url)
        assert new["transaction_id"] == "new"


# --- a scripted broker


@dataclasses.dataclass
class Broker:
    """A table of ten rows, all rolled back, three in a response."""

    store: str = STORE
    knows_table: bool = True
    is_halfmq: bool = True
    first: int = 0
    names: tuple[str, ...] = ("broker-a",)
    #: Responses to table reads that are changed, taken from the front; None: unchanged.
    changes: list[Any] = dataclasses.field(default_factory=list)
    reads: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self.answer)

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.server.url, "brokerTimeout": "2s"}

    def answer(self, request: Request[Any]) -> bytes | None:
        match request.code:
            case int() if request.code == HMQ_POSITION and self.is_halfmq:
                ext, body = encode_answer(Position(self.store, 2, 500, {}))
                return encode_response(request, 0, ext=ext, body=body)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = [route.BrokerData("c", name, {0: f"127.0.0.1:{self.server.port}"}) for name in self.names]
                return encode_response(request, 0, body=route.encode_cluster_info(brokers, 401))
            case int() if request.code == HMQ_TABLE_READ and self.knows_table:
                return self.table(request)
        return encode_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def table(self, request: Request[Any]) -> bytes:
        fields = read_fields(TableReadFields, request.ext)
        self.reads.append((fields.wanted, fields.first))
        if fields.store != self.store:
            return encode_response(request, 22, "another store", {"store": self.store})
        last = min(fields.end, fields.first + 3)
        wanted = range(max(self.first, fields.first), last) if fields.wanted in ("transactions", "rows") else range(0)
        records = [rolled_back(number) for number in wanted]
        entries = [
            ENTRY_HEAD.pack(number, place * len(record), len(record)) + row(number)
            for place, (number, record) in enumerate(zip(wanted, records, strict=True))
        ]
        data = bytearray(HEAD_BYTES) + b"".join([*entries, *records, TOPICS.encode({1: "orders"})])
        found = TableFound(len(records), sum(map(len, records)), last, 10_000, self.first, 10, 0)
        ext = write_fields(found)
        frame = bytes(complete_frame(encode_response_head(request, 0, None, ext, body_bytes(data)), data))
        change = self.changes.pop(0) if self.changes else None
        return frame if change is None else change(frame)


def rolled_back(number: int) -> bytes:
    tx_id = b"t%d" % number
    head = bytes((5, 0, 0, 0)) + (25 + len(tx_id)).to_bytes(4, "big") + bytes((1, 0, 0, 1, 0, len(tx_id), 0, 1))
    return head + b"P" + tx_id + number.to_bytes(8, "big")


def row(number: int) -> bytes:
    return TRANSACTION_ROW.pack(number, 1, 1, 9, 1, 0, 0, 1, 0, 0, 100, 0, 0, 3, 1, 0, 50 + number, 200, -1, 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.server.close()


def test_all_pages_are_read_in_order(broker: Broker) -> None:
    rows = read_view("transactions", **broker.options)
    assert [one["transaction_id"] for one in rows] == [f"t{number}" for number in range(10)]
    assert {(one["group"], one["outcome"], one["latency_ms"], one["topics"][0]) for one in rows} == {
        ("P", "ROLLED_BACK", 100, "orders")
    }
    assert [at for wanted, at in broker.reads if wanted == "transactions"] == [0, 3, 6, 9]


def test_a_wrong_checksum_is_read_again_once(broker: Broker) -> None:
    def flip(frame: bytes) -> bytes:
        return frame[:-1] + bytes((frame[-1] ^ 1,))

    broker.changes = [None] * 5 + [flip]
    assert len(read_view("transactions", **broker.options)) == 10
    broker.changes = [None] * 5 + [flip, flip, flip]
    with pytest.raises(ProtocolError, match="wrong checksum"):
        read_view("transactions", **broker.options)


def test_apache_rocketmq_is_refused_by_name_with_the_reason(broker: Broker) -> None:
    broker.is_halfmq = False
    with pytest.raises(
        UsageError, match=r"Apache RocketMQ keeps no table of transactions .* knows broker-a \(127.0.0.1"
    ):
        read_view("transactions", **broker.options)


def test_a_rocketmq_broker_in_the_place_of_the_halfmq_broker_is_refused(broker: Broker) -> None:
    answer = broker.answer

    def replaced(request: Request[Any]) -> bytes | None:
        broker.is_halfmq = broker.is_halfmq and request.code != HMQ_TABLE_READ
        return answer(request)

    broker.knows_table, broker.server.answer = False, replaced
    with pytest.raises(UsageError, match="needs the transaction table of a halfmq broker"):
        read_view("half", **broker.options)


def test_several_brokers_are_refused(broker: Broker) -> None:
    broker.names = ("broker-a", "broker-b")
    with pytest.raises(UsageError, match=r"several brokers: broker-a .*, broker-b"):
        read_view("half", **broker.options)


def test_another_store_in_the_place_of_the_planned_one_is_a_loss(broker: Broker) -> None:
    def replace() -> None:
        broker.store = "cd" * 16

    with pytest.raises(DataLost, match=f"this is store {'cd' * 16}, but store {STORE} was planned"):
        read_view("transactions", between=replace, **broker.options)


def test_rows_that_retention_takes_during_the_read_are_a_loss(broker: Broker) -> None:
    def trim() -> None:
        broker.first = 4

    with pytest.raises(DataLost, match="transactions of halves 0 to 3 are past retention since the read began"):
        read_view("transactions", between=trim, **broker.options)
    broker.first = 0
    rows = read_view("transactions", between=trim, failOnDataLoss="false", **broker.options)
    assert [one["first_half"] for one in rows] == list(range(4, 10))


def test_a_named_start_that_is_past_retention_is_a_loss(broker: Broker) -> None:
    broker.first = 4
    assert len(read_view("transactions", **broker.options)) == 6
    with pytest.raises(DataLost, match="the halves 2 to 3 are past retention"):
        read_view("transactions", startingHalf="2", **broker.options)


def test_a_broker_that_goes_away_is_waited_for(broker: Broker) -> None:
    with pytest.raises(ConnectError, match="brokerTimeout"):
        read_view("transactions", between=broker.server.close, **{**broker.options, "brokerTimeout": "300ms"})
