"""Halves: one write, one broker, the same ids when sent again; and when sending again would make two."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.errors import (
    RequestFailed,
    SendTimeout,
    TransactionRefused,
    UnsupportedCombination,
)
from halfmq.model import properties
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
THREE = [compose("orders", b"a"), compose("stock", b"b", key="k"), compose("orders", b"c")]


def pairs(request: Request[Any]) -> dict[str, str]:
    return properties.to_dict(request.ext.properties)


@in_virtual_time
async def test_halves_carry_id_index_count_name_and_query_id() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(THREE, tx_id="T-1", name="order.create", query_id="42")
    requests = broker.requests(SEND)
    found = [pairs(request) for request in requests]
    for index, one in enumerate(found):
        assert one["TRAN_MSG"] == "true"
        assert (one["PGROUP"], one["HMQ_TX_ID"], one["HMQ_TX_INDEX"]) == ("orders", "T-1", str(index))
        assert (one["HMQ_TX_NAME"], one["HMQ_QUERY_ID"]) == ("order.create", "42")
    assert [one.get("HMQ_TX_COUNT") for one in found] == [None, None, "3"]
    assert {request.ext.sys_flag for request in requests} == {4}
    assert [half.message_id for half in prepared.halves] == [one["UNIQ_KEY"] for one in found]
    assert [half.half_index for half in prepared.halves] == [0, 1, 2]
    assert [half.log_offset for half in prepared.halves] == [0, 1000, 2000]
    assert prepared.atomic
    assert broker.visible("orders") == []


@in_virtual_time
async def test_a_half_keeps_the_message_id_that_it_has() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare([THREE[0]._replace(message_id="MINE"), THREE[1]], tx_id="T-1")
    found = [pairs(request)["UNIQ_KEY"] for request in broker.requests(SEND)]
    assert found == [half.message_id for half in prepared.halves]
    assert (found[0], len(found[1])) == ("MINE", 32)


@pytest.mark.parametrize("halfmq", [True, False])
@in_virtual_time
async def test_block_whose_halves_are_not_answered_may_be_begun_again(halfmq: bool) -> None:
    broker = ScriptedBroker(halfmq=halfmq)
    broker.on[SEND] = lambda *_: None
    async with client_of(broker.network()) as mq:
        with pytest.raises(SendTimeout, match="begin a new transaction") as error:
            async with mq.begin(timeout=0.5) as tx:
                tx.send("orders", b"x")
    assert "do not send" not in str(error.value)


@pytest.mark.parametrize("halfmq", [True, False])
@in_virtual_time
async def test_halves_that_are_answered_after_the_block_gave_up_are_rolled_back_at_once(halfmq: bool) -> None:
    broker = ScriptedBroker(halfmq=halfmq)

    def late(peer: Peer, request: Request[Any]) -> None:
        answer = broker.usual(peer, request)
        asyncio.get_running_loop().call_later(2.0, lambda: peer.send(answer or b""))

    broker.on[SEND] = late
    async with client_of(broker.network()) as mq:
        with pytest.raises(SendTimeout):
            async with mq.begin(timeout=0.5) as tx:
                tx.send("orders", b"x")
        assert broker.requests(END) == []
        await asyncio.sleep(2)
        (end,) = broker.requests(END)
        assert end.ext.commit_or_rollback == Outcome.ROLLBACK.value
        assert end.ext.msg_id == pairs(broker.requests(SEND)[0])["UNIQ_KEY"]


@in_virtual_time
async def test_lost_answers_are_repeated_under_the_same_ids() -> None:
    broker = ScriptedBroker()
    count = [0]

    def lose(peer: Peer, request: Request[Any]) -> bytes | None:
        count[0] += 1
        answer = broker.usual(peer, request)
        return None if count[0] in (2, 3) else answer

    broker.on[SEND] = lose
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(THREE, tx_id="T-1")
    found = [pairs(request)["UNIQ_KEY"] for request in broker.requests(SEND)]
    assert found == [half.message_id for half in prepared.halves] + found[1:3]


MANY = [compose("orders", bytes([number]) * 20_000) for number in range(40)]
PREPARE_BATCH, DECISION = 29_012, 29_014


def with_half_batches(broker: ScriptedBroker, refused: int = -1) -> list[int]:
    """Let the broker take half batches in order; the request of number ``refused`` is refused as at a limit. Returns what came."""
    came: list[int] = []
    stored: set[int] = set()

    def prepare(_: Peer, request: Request[Any]) -> bytes:
        index = int(request.ext["index"])
        came.append(index)
        if len(came) - 1 == refused:
            return encode_response(request, 2, "the group has as many as it may")
        if index > len(stored):
            return encode_response(request, 29, "they come in order")
        stored.add(index)
        return encode_response(request, 0, None, {"offset": 1_000 + index, "halfIndex": index})

    broker.on[PREPARE_BATCH] = prepare
    broker.on[DECISION] = lambda _, request: encode_response(request, 0, None, {"storeHost": "7f00000100002a9f"})
    return came


@in_virtual_time
async def test_half_batch_behind_one_that_a_limit_refused_is_sent_again_after_it() -> None:
    """It is refused too, for good, but only because it comes too early."""
    broker = ScriptedBroker(queues=1)
    came = with_half_batches(broker, refused=1)
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(MANY, tx_id="T-1")
    number = max(came) + 1
    assert number >= 3
    assert came == [*range(number), *range(1, number)]
    assert len(prepared.halves) == 40
    assert sorted({half.half_index for half in prepared.halves}) == list(range(number))
    assert broker.requests(SEND) == []


@in_virtual_time
async def test_broker_that_dies_when_it_is_asked_for_half_batches_is_asked_again() -> None:
    broker = ScriptedBroker(queues=1)
    came, asked = with_half_batches(broker), []

    def dies_once(peer: Peer, request: Request[Any]) -> bytes | None:
        asked.append(request)
        if len(asked) == 1:
            peer.cut()
            return None
        return encode_response(request, 0, None, {"storeHost": "7f00000100002a9f"})

    broker.on[DECISION] = dies_once
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(MANY, tx_id="T-1")
    assert len(asked) == 2
    assert len(prepared.halves) == 40
    assert came == [*range(max(came) + 1)]
    assert broker.requests(SEND) == []


@in_virtual_time
async def test_broker_without_half_batches_gets_single_halves() -> None:
    broker = ScriptedBroker(queues=1)
    broker.on[DECISION] = lambda _, request: encode_response(request, 3, "not supported")
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(MANY, tx_id="T-1")
    assert len(prepared.halves) == len(broker.requests(SEND)) == 40
    assert pairs(broker.requests(SEND)[-1])["HMQ_TX_COUNT"] == "40"


@in_virtual_time
async def test_settled_transaction_is_refused_with_its_verdict_and_not_rolled_back_by_us() -> None:
    broker = ScriptedBroker()
    broker.on[SEND] = lambda _, request: encode_response(request, 604, "settled", {"HMQ_VERDICT": "ROLLED_BACK"})
    async with client_of(broker.network()) as mq:
        with pytest.raises(TransactionRefused) as caught:
            await mq.prepare(THREE, tx_id="T-1")
        assert mq.verdicts.get("T-1") is None  # the verdict is the broker's; we claim none
    assert caught.value.standing == "ROLLED_BACK"
    assert broker.requests(END) == []


@in_virtual_time
async def test_one_refused_half_rolls_the_others_back() -> None:
    broker = ScriptedBroker()

    def refuse_second(peer: Peer, request: Request[Any]) -> bytes | None:
        if pairs(request)["HMQ_TX_INDEX"] == "1":
            return encode_response(request, 13, "too large")
        return broker.usual(peer, request)

    broker.on[SEND] = refuse_second
    async with client_of(broker.network()) as mq:
        with pytest.raises(RequestFailed, match="too large"):
            await mq.prepare(THREE, tx_id="T-1")
    (end,) = broker.requests(END)
    assert (end.ext.commit_or_rollback, end.ext.tx_id) == (12, "T-1")


@in_virtual_time
async def test_stock_broker_is_never_sent_a_half_twice() -> None:
    broker = ScriptedBroker(halfmq=False)
    broker.on[SEND] = lambda *_: None
    async with client_of(broker.network()) as mq:
        with pytest.raises(SendTimeout, match="begin a new transaction"):
            await mq.prepare(THREE[:1], tx_id="T-1")
        # The half may be there. Whoever asks hears ROLLBACK: nothing local has happened.
        verdict = mq.verdicts.get("T-1")
        assert verdict is not None
        assert verdict.name == "ROLLBACK"
    assert len(broker.requests(SEND)) == 1


@in_virtual_time
async def test_half_that_is_stored_but_not_safe_does_not_run() -> None:
    broker = ScriptedBroker(halfmq=False)

    def unsafe(peer: Peer, request: Request[Any]) -> bytes | None:
        broker.usual(peer, request)
        ext = {"msgId": "7F00000100002A9F0000000000000000", "queueId": 0, "queueOffset": 0}
        return encode_response(request, 10, "flush", ext)

    broker.on[SEND] = unsafe
    async with client_of(broker.network()) as mq:
        with pytest.raises(RequestFailed, match="FLUSH_DISK_TIMEOUT"):
            await mq.prepare(THREE[:1], tx_id="T-1")
    assert [request.ext.commit_or_rollback for request in broker.requests(END)] == [12]


@in_virtual_time
async def test_delay_in_a_transaction_is_refused_where_it_would_be_lost() -> None:
    late = [compose("t", b"x", delay=10)]
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        with pytest.raises(UnsupportedCombination):
            await mq.prepare(late, tx_id="T-1")
    assert broker.requests(SEND) == []
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.prepare(late, tx_id="T-1")
    assert pairs(broker.requests(SEND)[0])["DELAY"] == "3"
