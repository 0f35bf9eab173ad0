"""Plain sends: acknowledged, repeated under the same id, batched; and what the caller is told when it fails."""

import asyncio
import inspect
from typing import Any

import pytest
from tests.support.scripted_broker import Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.producer import batches
from halfmq.errors import ConnectError, RequestFailed, SendTimeout, ServerBusy, TopicNotFound, UsageError
from halfmq.model import properties
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.message_codec import split_batch

SEND = RequestCode.SEND_MESSAGE_V2


def ids(broker: ScriptedBroker) -> list[str]:
    return [properties.to_dict(r.ext.properties)["UNIQ_KEY"] for r in broker.requests(SEND)]


@in_virtual_time
async def test_receipt_says_where_it_is() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        receipt = await mq.send("t", {"id": 7}, tag="web", keys=["7"])
    (request,) = broker.requests(SEND)
    assert request.body == b'{"id":7}'
    assert request.ext.group == "orders"
    assert (receipt.topic, receipt.broker, receipt.queue, receipt.offset) == (
        "t",
        "broker-a",
        request.ext.queue_id,
        0,
    )
    assert receipt.message_id == ids(broker)[0]
    assert len(receipt.offset_id) == 32


@in_virtual_time
async def test_lost_answer_is_sent_again_under_the_same_id_on_another_queue() -> None:
    broker = ScriptedBroker()
    lost = [True]

    def lose_first(peer: Peer, request: Request[Any]) -> bytes | None:
        answer = broker.usual(peer, request)
        if lost.pop() if lost else False:
            peer.cut()
            return None
        return answer

    broker.on[SEND] = lose_first
    async with client_of(broker.network()) as mq:
        receipt = await mq.send("t", b"x")
    first, second = broker.requests(SEND)
    assert ids(broker) == [receipt.message_id] * 2
    assert first.ext.queue_id != second.ext.queue_id


@pytest.mark.parametrize("code", [SEND, RequestCode.SEND_BATCH_MESSAGE])
@in_virtual_time
async def test_repetition_says_that_it_is_one_also_on_the_same_connection(code: RequestCode) -> None:
    broker = ScriptedBroker()
    silent = [False, False, True]

    def seldom(peer: Peer, request: Request[Any]) -> bytes | None:
        return None if silent.pop() else broker.usual(peer, request)

    broker.on[code] = seldom
    async with client_of(broker.network()) as mq:
        for _ in range(2):
            await (mq.send("t", b"x") if code == SEND else mq.send_many("t", [b"x", b"y"]))
    assert [request.ext.sent_again for request in broker.requests(code)] == [False, True, False]


@in_virtual_time
async def test_queue_that_did_not_answer_is_avoided_also_when_others_send_meanwhile() -> None:
    broker = ScriptedBroker(queues=2)
    slow: list[int] = []

    def first_queue_is_silent(peer: Peer, request: Request[Any]) -> bytes | None:
        slow.append(request.ext.queue_id)
        return None if request.ext.queue_id == slow[0] else broker.usual(peer, request)

    broker.on[SEND] = first_queue_is_silent
    async with client_of(broker.network()) as mq:
        waiting = asyncio.ensure_future(mq.send("t", b"x"))
        await asyncio.sleep(1)
        await mq.send("t", b"y")  # takes the other queue: by turns, the silent one would be next
        assert (await waiting).queue != slow[0]
    assert len(slow) == 3


@in_virtual_time
async def test_three_lost_answers_are_a_timeout_with_unknown_outcome() -> None:
    broker = ScriptedBroker()
    broker.on[SEND] = lambda *_: None
    async with client_of(broker.network()) as mq:
        start = asyncio.get_running_loop().time()
        with pytest.raises(SendTimeout) as caught:
            await mq.send("t", b"x")
        assert not caught.value.outcome_known
        assert caught.value.retriable
        assert asyncio.get_running_loop().time() - start < 10.5
    assert len(set(ids(broker))) == 1
    assert len(ids(broker)) == 3


@in_virtual_time
async def test_broker_restart_is_survived() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.send("t", b"before")
        broker.stop()
        asyncio.get_running_loop().call_later(4.0, broker.start)
        await mq.send("t", b"after")
    assert sorted(broker.visible("t")) == [b"after", b"before"]
    assert len(broker.requests(SEND)) == 2


@in_virtual_time
async def test_broker_that_stays_away_is_a_connect_error_within_the_timeout() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.send("t", b"before")
        broker.stop()
        await asyncio.sleep(0.1)
        start = asyncio.get_running_loop().time()
        with pytest.raises(ConnectError) as caught:
            await mq.send("t", b"after", timeout=2.0)
        assert caught.value.outcome_known
        assert asyncio.get_running_loop().time() - start == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize(
    ("code", "kind", "requests"), [(13, RequestFailed, 1), (17, TopicNotFound, 1), (2, ServerBusy, 3)]
)
@in_virtual_time
async def test_refusal_is_its_error_and_only_a_busy_broker_is_asked_again(
    code: int, kind: type[RequestFailed], requests: int
) -> None:
    broker = ScriptedBroker()
    broker.on[SEND] = lambda _, request: encode_response(request, code, "because")
    async with client_of(broker.network()) as mq:
        with pytest.raises(kind, match="because"):
            await mq.send("t", b"x")
    assert len(broker.requests(SEND)) == requests


@pytest.mark.parametrize(("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE")])
@in_virtual_time
async def test_stored_but_not_yet_safe_is_a_receipt_that_says_so(code: int, status: str) -> None:
    broker = ScriptedBroker()
    ext = {"msgId": "7F00000100002A9F0000000000000000", "queueId": 0, "queueOffset": 0}
    broker.on[SEND] = lambda _, request: encode_response(request, code, None, ext)
    async with client_of(broker.network()) as mq:
        assert (await mq.send("t", b"x")).status == status


@in_virtual_time
async def test_sharding_key_stays_on_its_queue_also_when_sent_again() -> None:
    broker = ScriptedBroker(queues=8)
    broker.on[SEND] = lambda *_: None
    async with client_of(broker.network()) as mq:
        with pytest.raises(SendTimeout):
            await mq.send("t", b"x", sharding_key="k")
    assert len({request.ext.queue_id for request in broker.requests(SEND)}) == 1


@in_virtual_time
async def test_many_go_in_batches_with_an_id_and_a_receipt_each() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        bodies: list[object] = [{"id": number} for number in range(1_500)]
        bodies[3] = compose("t", b"own", tag="special")
        receipts = await mq.send_many("t", bodies, tag="all")
    requests = broker.requests(RequestCode.SEND_BATCH_MESSAGE)
    assert len(requests) == 2
    entries = [entry for request in requests for entry in split_batch(request.body)]
    found = [properties.to_dict(entry.properties) for entry in entries]
    assert [one["UNIQ_KEY"] for one in found] == [receipt.message_id for receipt in receipts]
    assert len({receipt.message_id for receipt in receipts}) == 1_500
    assert (found[3]["TAGS"], found[4]["TAGS"]) == ("special", "all")
    assert [receipt.offset for receipt in receipts[:3]] == [0, 1, 2]
    assert len({receipt.offset_id for receipt in receipts}) == 1_500
    # Brokers up to 5.0 append the outer properties to each entry's: an id there would replace theirs.
    assert "UNIQ_KEY" not in requests[0].ext.properties


@in_virtual_time
async def test_a_composed_message_is_sent_under_the_id_that_it_has() -> None:
    broker = ScriptedBroker()
    mine = compose("t", b"x", tag="web", sharding_key="k")._replace(message_id="MINE")
    async with client_of(broker.network()) as mq:
        receipt = await mq.send("t", mine)
        without = await mq.send("t", compose("t", b"x"))
        (batched,) = await mq.send_many("t", [compose("t", b"x")._replace(message_id="THINE")])
        with pytest.raises(UsageError, match="is for topic t"):
            await mq.send("u", mine)
    first, second = broker.requests(SEND)
    (batch,) = broker.requests(RequestCode.SEND_BATCH_MESSAGE)
    found = properties.to_dict(first.ext.properties)
    assert (receipt.message_id, found["UNIQ_KEY"], found["TAGS"]) == ("MINE", "MINE", "web")
    assert properties.to_dict(second.ext.properties)["UNIQ_KEY"] == without.message_id
    assert len(without.message_id) == 32
    (entry,) = split_batch(batch.body)
    assert batched.message_id == properties.to_dict(entry.properties)["UNIQ_KEY"] == "THINE"


BESIDE: dict[str, Any] = {
    "tag": "web", "key": 7, "keys": ["7"], "sharding_key": "k", "delay": 5, "properties": {"a": "b"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("sends", "name"),
    [*(("send", one) for one in BESIDE), *(("send_many", one) for one in ("tag", "keys", "properties"))],
)
@in_virtual_time
async def test_what_is_given_beside_a_composed_message_is_not_dropped(sends: str, name: str) -> None:
    assert BESIDE.keys() == inspect.signature(compose).parameters.keys() - {"topic", "body"}
    broker, composed = ScriptedBroker(), compose("t", b"x")
    async with client_of(broker.network()) as mq:
        with pytest.raises(UsageError, match=rf"{name} beside a composed message"):
            await getattr(mq, sends)("t", composed if sends == "send" else [composed], **{name: BESIDE[name]})
    assert not broker.visible("t")


def test_a_composed_message_is_no_body() -> None:
    """Of ``request``, ``tx.send``, an outbox, a reply: they compose, and it has a JSON form."""
    with pytest.raises(UsageError, match="is a composed message"):
        compose("t", compose("t", b"x"))


@in_virtual_time
async def test_batch_refuses_what_it_cannot_carry() -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        for message in (compose("t", b"x", delay=5), compose("t", b"x", sharding_key=1), compose("u", b"x")):
            with pytest.raises(UsageError):
                await mq.send_many("t", [message])
        assert await mq.send_many("t", []) == []


def test_batches_are_cut_by_size_and_count() -> None:
    small = [OutgoingMessage("t", b"x", b"", "", 0)] * 2_500
    assert [len(batch) for batch in batches(small)] == [1_024, 1_024, 452]
    large = [OutgoingMessage("t", b"x" * 1_500_000, b"", "", 0)] * 5
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert list(batches([])) == []


@in_virtual_time
async def test_delay_uses_what_the_broker_understands() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        await mq.send("t", b"x", delay=10)
        with pytest.raises(UsageError, match="cannot delay"):
            await mq.send("t", b"x", delay=7)  # a 4.9 broker knows levels only
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.send("t", b"x", delay=7)
    assert properties.to_dict(broker.requests(SEND)[0].ext.properties)["TIMER_DELAY_SEC"] == "7"
