"""Requests of the sink: half batches on the way at once, lost connections, refusals."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.scripted_server import ScriptedServer
from tests.support.sink_runs import options

from halfmq.client.blocking import Connection
from halfmq.errors import (
    ConnectError,
    NotAuthorized,
    ProtocolError,
    RequestFailed,
    TransactionIncomplete,
    TransactionRefused,
    UsageError,
)
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink.broker import IN_FLIGHT_MAX, AlreadyDecided, SinkBroker
from halfmq.spark.sink.encoder import Payload
from halfmq.wire.remoting.codes import HMQ_DECIDE, HMQ_DECISION, HMQ_PREPARE_BATCH, RequestCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.route import BrokerData, encode_cluster_info

BATCH = QueryBatch("q", 3, "r")
PAYLOAD = Payload(b"payload", 1, 7, False)
STORE = b"\x7f\0\0\1\0\0\x2a\x9f"


class Script:
    """A name server and broker; ``answers`` by request code."""

    def __init__(self) -> None:
        self.server = ScriptedServer(self._answer)
        self.brokers = [BrokerData("c", "b", {0: f"127.0.0.1:{self.server.port}"})]
        self.answers: dict[int, Callable[[Request[Any]], bytes | None]] = {
            HMQ_DECISION: lambda request: encode_response(
                request,
                0,
                ext={"storeHost": STORE.hex(), "decided": False, "digest": "", "position": -1, "lastBatch": -1},
            ),
            HMQ_PREPARE_BATCH: lambda request: encode_response(request, 0, ext={"offset": 1, "halfIndex": 1}),
            HMQ_DECIDE: lambda request: encode_response(request, 0, ext={"position": 9, "repeated": False}),
        }
        self.broker = SinkBroker(options(self.server.port, brokerTimeout="1"))

    def _answer(self, request: Request[Any]) -> bytes | None:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return encode_response(request, 0, body=encode_cluster_info(self.brokers, 500))
        return self.answers[request.code](request)

    def refuse(self, code: int, response: int, remark: str = "no", **ext: object) -> None:
        self.answers[code] = lambda request: encode_response(request, response, remark, ext)

    def prepare(self, index: int) -> None:
        self.broker.prepare(BATCH, "0.1", index, "T", 2, PAYLOAD)

    def indexes(self) -> list[int]:
        return [int(request.ext["index"]) for request in self.server.requests if request.code == HMQ_PREPARE_BATCH]

    def close(self) -> None:
        self.broker.close()
        self.server.close()


@pytest.fixture
def script() -> Any:
    made = Script()
    yield made
    made.close()


def test_fields_of_a_half_batch(script: Script) -> None:
    script.prepare(0)
    script.broker.finish()
    (request,) = [request for request in script.server.requests if request.code == HMQ_PREPARE_BATCH]
    names = ("group", "topic", "queueId", "messages", "checksum", "index", "query", "batch", "run", "attempt")
    assert [request.ext[name] for name in names] == [
        "halfmq-spark", "T", "2", "1", "7", "0", "q", "3", "r", "0.1",
    ]  # fmt: skip
    assert bytes(request.body) == b"payload"


def test_some_are_sent_before_the_first_is_confirmed_and_no_more(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.prepare(0)  # it connects
    waits: list[int] = []  # number of half batches on the way when it waits for a response
    receive = Connection.receive

    def wait(connection: Connection, number: int) -> Any:
        waits.append(len(script.broker._on_the_way))
        return receive(connection, number)

    monkeypatch.setattr(Connection, "receive", wait)
    for index in range(1, IN_FLIGHT_MAX - 1):
        script.prepare(index)
    assert waits == []
    script.prepare(IN_FLIGHT_MAX - 1)
    assert waits == [IN_FLIGHT_MAX]
    script.broker.finish()
    assert script.indexes() == list(range(IN_FLIGHT_MAX))


def test_what_is_not_confirmed_is_sent_again_after_the_connection_broke(script: Script) -> None:
    answer = script.answers[HMQ_PREPARE_BATCH]
    broken: list[int] = []

    def breaks(request: Request[Any]) -> bytes | None:
        index = int(request.ext["index"])
        if index == 1 and not broken:
            broken.append(index)
            return None
        return answer(request)

    script.answers[HMQ_PREPARE_BATCH] = breaks
    for index in range(4):
        script.prepare(index)
    script.broker.finish()
    found = script.indexes()
    assert found.index(1) < len(found) - 1 - found[::-1].index(1), found  # twice
    again = found[len(found) - 1 - found[::-1].index(1) :]
    assert again == [1, 2, 3]
    assert found.count(0) == 1


def test_what_was_on_the_way_is_sent_again_also_if_the_name_server_is_another_one(script: Script) -> None:
    """Its connection stays, so that only the broker's is new."""
    names = ScriptedServer(script._answer)
    confirmed: list[int] = []
    answer = script.answers[HMQ_PREPARE_BATCH]

    def breaks_once(request: Request[Any]) -> bytes | None:
        index = int(request.ext["index"])
        if index == 1 and script.indexes().count(1) == 1:
            return None
        confirmed.append(index)
        return answer(request)

    script.answers[HMQ_PREPARE_BATCH] = breaks_once
    broker = SinkBroker(options(names.port, brokerTimeout="1"))
    try:
        for index in range(3):
            broker.prepare(BATCH, "0.1", index, "T", 2, PAYLOAD)
        broker.finish()
        assert confirmed == [0, 1, 2]
    finally:
        broker.close()
        names.close()


def test_temporary_refusal_is_waited_for_and_all_from_it_on_are_sent_again(script: Script) -> None:
    answer = script.answers[HMQ_PREPARE_BATCH]
    stored: list[int] = []
    busy = 3

    def one_is_busy(request: Request[Any]) -> bytes | None:
        nonlocal busy
        index = int(request.ext["index"])
        if index == 0 and busy:
            busy -= 1
            return encode_response(request, 2, "busy")
        if index > len(stored):
            return encode_response(request, 29, "they come in order")
        stored.append(index)
        return answer(request)

    script.answers[HMQ_PREPARE_BATCH] = one_is_busy
    script.prepare(0)
    script.prepare(1)
    script.broker.finish()
    assert stored == [0, 1]
    assert script.indexes() == [0, 1] * 4


def test_decided_batch_is_known_by_its_verdict(script: Script) -> None:
    script.refuse(HMQ_PREPARE_BATCH, 604, HMQ_VERDICT="COMMITTED", HMQ_POSITION=5)
    script.prepare(0)
    with pytest.raises(AlreadyDecided):
        script.broker.finish()


@pytest.mark.parametrize(
    ("code", "ext", "kind", "said"),
    [
        (604, {"fenced": True}, TransactionRefused, "another run of this query"),
        (604, {"missing": True}, TransactionIncomplete, "it repeats the batch"),
        (604, {"HMQ_VERDICT": "COMMITTED"}, TransactionRefused, "do not delete or restore a checkpoint"),
        (604, {"HMQ_VERDICT": "ROLLED_BACK"}, TransactionRefused, "start the query again"),
        (16, {}, NotAuthorized, "refused it: no"),
        (13, {}, RequestFailed, "refused it: no"),
        (1, {}, RequestFailed, "refused it: no"),
    ],
)
def test_refusals_of_a_decision(
    script: Script, code: int, ext: dict[str, object], kind: type[Exception], said: str
) -> None:
    script.refuse(HMQ_DECIDE, code, **ext)
    with pytest.raises(kind, match=said) as caught:
        script.broker.decide(BATCH, bytes(16), [])
    assert type(caught.value) is kind


def test_decision_is_sent_again_until_there_is_an_answer(script: Script) -> None:
    lost = [None, None]
    answer = script.answers[HMQ_DECIDE]
    script.answers[HMQ_DECIDE] = lambda request: lost.pop() if lost else answer(request)
    assert script.broker.decide(BATCH, bytes(16), []) is False
    assert [request.code for request in script.server.requests].count(HMQ_DECIDE) == 3


def test_broker_that_is_away_and_one_that_stays_busy(script: Script) -> None:
    script.refuse(HMQ_DECISION, 2)
    with pytest.raises(ConnectError, match="waited 1 s"):
        script.broker.decision(BATCH)
    script.server.close()
    with pytest.raises(ConnectError, match="waited 1 s"):
        script.broker.decision(BATCH)


def test_rocketmq_broker_is_refused(script: Script) -> None:
    script.refuse(HMQ_DECISION, 3)
    with pytest.raises(UsageError, match=r"does not know half batches.*guarantee=atLeastOnce.*visible one by one"):
        script.broker.decision(BATCH)


def test_several_brokers_are_refused(script: Script) -> None:
    script.brokers.append(BrokerData("c", "other", {0: "127.0.0.1:1"}))
    with pytest.raises(
        UsageError, match=r"several brokers: b .*, other .127.0.0.1:1.; a query writes to one.*guarantee=atLeastOnce"
    ):
        script.broker.decision(BATCH)


def test_malformed_answer(script: Script) -> None:
    script.answers[HMQ_DECISION] = lambda request: encode_response(request, 0, ext={"storeHost": "xyz"})
    with pytest.raises(ProtocolError, match="storeHost"):
        script.broker.decision(BATCH)


async def test_queues_of_topics(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        made = SinkBroker(options(running.ports.names))
        assert await asyncio.to_thread(made.write_queues, "new") == 4
        await client.ask(17, {"topic": "wide", "readQueueNums": "9", "writeQueueNums": "7", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})  # fmt: skip
        assert await asyncio.to_thread(made.write_queues, "wide") == 7
        await client.ask(17, {"topic": "wide", "readQueueNums": "9", "writeQueueNums": "7", "perm": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})  # fmt: skip
        with pytest.raises(NotAuthorized, match="no queue to write to"):
            await asyncio.to_thread(made.write_queues, "wide")
        made.close()
