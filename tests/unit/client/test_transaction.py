"""Verdicts: one END on halfmq, repeated until answered; one for each half on Apache RocketMQ, never repeated."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.connection import Connection
from halfmq.client.context import ClientContext
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.transaction_block import Transaction
from halfmq.errors import (
    HalfmqError,
    InvalidName,
    RequestFailed,
    TransactionIncomplete,
    TransactionRefused,
    TransactionUnknown,
    UsageError,
)
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response

END = RequestCode.END_TRANSACTION
TWO = [compose("orders", b"a"), compose("stock", b"b")]


@in_virtual_time
async def test_commit_shows_every_message_and_is_acknowledged() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        receipt = await mq.commit(prepared)
    assert (broker.visible("orders"), broker.visible("stock")) == ([b"a"], [b"b"])
    (end,) = broker.requests(END)
    first = prepared.halves[0]
    assert not end.is_oneway
    assert (end.ext.producer_group, end.ext.tx_id, end.ext.msg_id) == ("orders", "T-1", first.message_id)
    assert (end.ext.commit_log_offset, end.ext.tran_state_table_offset) == (first.log_offset, first.half_index)
    assert (receipt.tx_id, receipt.verdict, receipt.acknowledged, receipt.atomic) == (
        "T-1",
        "COMMITTED",
        True,
        True,
    )
    assert (receipt.position, receipt.durability, receipt.repeated) == (4096, "fsync", False)
    assert receipt.message_ids == tuple(half.message_id for half in prepared.halves)


@in_virtual_time
async def test_rollback_shows_nothing() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        receipt = await mq.rollback(await mq.prepare(TWO, tx_id="T-1"))
    assert broker.visible("orders") == []
    assert receipt.verdict == "ROLLED_BACK"


@in_virtual_time
async def test_lost_answer_to_commit_is_asked_again_and_is_one_commit() -> None:
    broker = ScriptedBroker()
    lost = [True]

    def lose_first(peer: Peer, request: Request[Any]) -> bytes | None:
        answer = broker.usual(peer, request)
        if lost:
            lost.clear()
            peer.cut()
            return None
        return answer

    broker.on[END] = lose_first
    async with client_of(broker.network()) as mq:
        receipt = await mq.commit(await mq.prepare(TWO, tx_id="T-1"))
    assert receipt.repeated
    assert len(broker.requests(END)) == 2
    assert broker.visible("orders") == [b"a"]


@in_virtual_time
async def test_commit_that_is_never_answered_is_unknown_and_repeated_in_the_background() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda *_: None
        with pytest.raises(TransactionUnknown) as caught:
            await mq.commit(prepared)
        assert caught.value.tx_id == "T-1"
        assert mq.verdicts.get("T-1") is Outcome.COMMIT  # a check gets the truth meanwhile
        del broker.on[END]
        await asyncio.sleep(15)
        assert broker.visible("orders") == [b"a"]
        assert mq.verdicts.get("T-1") is None


@pytest.mark.parametrize(
    ("ends", "other", "line"),
    [
        ("commit", 12, "DAMAGE: the messages of T-1 never appear, and its local transaction is committed: "),
        ("rollback", 8, "DAMAGE: the messages of T-1 are visible, and its local transaction is rolled back: "),
    ],
)
@in_virtual_time
async def test_a_verdict_that_is_refused_when_nobody_waits_for_it_is_logged_as_damage(
    ends: str, other: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker dies before it answers, and somebody else has settled the transaction."""
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda *_: None
        with pytest.raises(TransactionUnknown):
            await getattr(mq, ends)(prepared)
        del broker.on[END]
        broker.verdicts["T-1"] = other
        await asyncio.sleep(15)
    (record,) = [one for one in caplog.records if one.message.startswith("DAMAGE")]
    assert (record.levelname, record.message.startswith(line)) == ("ERROR", True)


@in_virtual_time
async def test_a_late_clean_up_that_is_refused_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        await mq.commit(prepared)
        mq._transactions._roll_back_late(prepared)
        await asyncio.sleep(15)
    assert "late ROLLBACK of T-1 was refused" in caplog.text
    assert "DAMAGE" not in caplog.text


@in_virtual_time
async def test_opposite_verdict_is_refused_with_the_standing_one() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        await mq.commit(prepared)
        with pytest.raises(TransactionRefused) as caught:
            await mq.rollback(prepared)
        assert caught.value.standing == "COMMITTED"
        assert (await mq.commit(prepared)).repeated


@in_virtual_time
async def test_cancelled_commit_goes_on_in_the_background() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda *_: None
        commit = asyncio.ensure_future(mq.commit(prepared))
        await asyncio.sleep(0.5)
        commit.cancel()
        del broker.on[END]
        await asyncio.sleep(1)
    assert broker.visible("orders") == [b"a"]


@in_virtual_time
async def test_stock_broker_gets_an_end_for_each_half_once() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        receipt = await mq.commit(prepared)
        await asyncio.sleep(60)
    assert [end.ext.tran_state_table_offset for end in broker.requests(END)] == [0, 1]
    assert (broker.visible("orders"), broker.visible("stock")) == ([b"a"], [b"b"])
    assert not prepared.atomic
    assert (receipt.acknowledged, receipt.atomic, receipt.position) == (True, False, None)


@in_virtual_time
async def test_stock_brokers_lost_answer_is_not_asked_for_again() -> None:
    broker = ScriptedBroker(halfmq=False)

    def lose(peer: Peer, request: Request[Any]) -> None:
        broker.usual(peer, request)

    broker.on[END] = lose
    async with client_of(broker.network()) as mq:
        receipt = await mq.commit(await mq.prepare(TWO, tx_id="T-1"))
        assert mq.verdicts.get("T-1") is Outcome.COMMIT
        await asyncio.sleep(60)
    assert not receipt.acknowledged
    assert (broker.visible("orders"), broker.visible("stock")) == ([b"a"], [b"b"])


@in_virtual_time
async def test_stock_brokers_refusal_of_one_half_does_not_keep_the_others_from_their_verdict() -> None:
    broker = ScriptedBroker(halfmq=False)

    def refuse_first(peer: Peer, request: Request[Any]) -> bytes | None:
        if request.ext.tran_state_table_offset == 0:
            return encode_response(request, 1, "Find prepared transaction message failed")
        return broker.usual(peer, request)

    broker.on[END] = refuse_first
    async with client_of(broker.network()) as mq:
        with pytest.raises(RequestFailed, match="Find prepared"):
            await mq.commit(await mq.prepare(TWO, tx_id="T-1"))
    assert broker.visible("stock") == [b"b"]


@in_virtual_time
async def test_stock_broker_that_goes_away_between_two_ends_gets_only_the_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network(), timeout=2.0) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        real = ClientContext.broker
        calls = [0]

        async def fail_second(context: ClientContext, name: str) -> Connection:
            calls[0] += 1
            if calls[0] == 2:
                await asyncio.sleep(0.01)
                broker.stop()
                await asyncio.sleep(0.01)
            return await real(context, name)

        monkeypatch.setattr(ClientContext, "broker", fail_second)
        monkeypatch.setattr(ClientContext, "established", lambda *_: None)  # so that it is asked each time
        with pytest.raises(TransactionUnknown):
            await mq.commit(prepared)
        broker.start()
        await asyncio.sleep(5)
    assert [end.ext.tran_state_table_offset for end in broker.requests(END)] == [0, 1]


@in_virtual_time
async def test_refused_commit_is_raised_and_left_to_the_check() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda _, request: encode_response(request, 13, "too large")
        with pytest.raises(RequestFailed, match="too large"):
            await mq.commit(prepared)
        assert mq.verdicts.get("T-1") is Outcome.COMMIT


@in_virtual_time
async def test_commit_of_an_incomplete_transaction_leaves_it_undecided_and_says_so() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda _, request: encode_response(request, 604, "2 messages are here, 3 messages")
        with pytest.raises(TransactionIncomplete, match="roll back") as caught:
            await mq.commit(prepared)
        assert caught.value.outcome_known
        assert mq.verdicts.get("T-1") is Outcome.COMMIT, "not settled: a check still hears what the application said"
        del broker.on[END]
        assert (await mq.rollback(prepared)).verdict == "ROLLED_BACK"
        assert mq.verdicts.get("T-1") is None


@in_virtual_time
async def test_refusal_of_an_end_that_cannot_change_is_not_asked_for_again() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")
        broker.on[END] = lambda _, request: encode_response(request, 1, "has no half 7 at log offset 9")
        with pytest.raises(RequestFailed, match="no half 7"):
            await mq.commit(prepared)
        assert len(broker.requests(END)) == 1


@in_virtual_time
async def test_busy_broker_is_asked_for_the_verdict_again() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        prepared = await mq.prepare(TWO, tx_id="T-1")

        def busy_once(peer: Peer, request: Request[Any]) -> bytes | None:
            del broker.on[END]
            return encode_response(request, 14, "stopping")

        broker.on[END] = busy_once
        assert (await mq.commit(prepared)).acknowledged
        assert len(broker.requests(END)) == 2


@in_virtual_time
async def test_unknown_is_told_and_settles_nothing() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq._transactions.tell_unknown(await mq.prepare(TWO, tx_id="T-1"))
        await asyncio.sleep(0.1)
    (end,) = broker.requests(END)
    assert (end.ext.commit_or_rollback, end.is_oneway) == (0, True)
    assert broker.verdicts == {}


@pytest.mark.parametrize("tx_id", ["", "x" * 65, "with space", "ž"])
@in_virtual_time
async def test_transaction_id_must_be_one(tx_id: str) -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        with pytest.raises(InvalidName):
            await mq.prepare(TWO, tx_id=tx_id)


@in_virtual_time
async def test_empty_and_oversized_transactions_are_refused_before_anything_is_sent() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        for messages in ([], TWO * 513, [compose("t", b"x" * (4 << 20))] * 17):
            with pytest.raises(UsageError):
                await mq.prepare(messages, tx_id="T-1")
    assert broker.requests(RequestCode.SEND_MESSAGE_V2) == []


@in_virtual_time
async def test_client_without_group_has_no_transactions() -> None:
    async with client_of(ScriptedBroker().network(), group="") as mq:
        await mq.send("t", b"x")
        with pytest.raises(UsageError, match="group"):
            mq.begin()
        with pytest.raises(UsageError, match="group"):
            await mq.prepare(TWO, tx_id="T-1")


@pytest.mark.parametrize("failure", ["no server", "no answer", "no room"])
@in_virtual_time
async def test_failed_prepare_with_a_chosen_id_decides_nothing_for_an_earlier_run_with_that_id(failure: str) -> None:
    """The earlier run has committed locally, and its verdict was lost: the check decides, not what happened to this one."""
    broker = ScriptedBroker()
    asked: list[str] = []

    def check(transaction: Transaction) -> Outcome:
        asked.append(transaction.id)
        return Outcome.COMMIT

    async with client_of(broker.network(), seed=1) as earlier:
        await earlier.prepare(TWO[:1], tx_id="order-7", name="order")
    async with client_of(broker.network(), seed=2) as mq:
        mq.add_check("order", check)
        await mq.send("orders", b"x")
        if failure == "no server":
            broker.stop()
        else:
            broker.on[RequestCode.SEND_MESSAGE_V2] = lambda _, request: (
                None if failure == "no answer" else encode_response(request, 14, "no room")
            )
        with pytest.raises(HalfmqError):
            await mq.prepare(TWO[:1], tx_id="order-7", name="order")
        broker.start()
        await asyncio.sleep(5)
        assert broker.check(0, "orders") == 1
        await asyncio.sleep(1)
    assert asked == ["order-7"]
    assert broker.verdicts == {"order-7": Outcome.COMMIT.value}
