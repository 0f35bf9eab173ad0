# ruff: noqa: PT012 - what is tested is a block that raises
"""Blocks: nothing leaves before their end, an exception leaves nothing, and doubt is left to the check."""

import asyncio

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.outcome import Outcome
from halfmq.client.transaction_block import Transaction, checked_outcome
from halfmq.errors import SendTimeout, TransactionUnknown, UsageError
from halfmq.wire.remoting.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION


@in_virtual_time
async def test_block_sends_late_and_commits_all() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        async with mq.begin("order.create", topic="orders", query_id="7") as tx:
            tx.send({"id": 7}, key=7)
            tx.send("stock", b"s")
            await asyncio.sleep(10)
            assert broker.requests(SEND) == []
        assert tx.receipt is not None
        assert (tx.receipt.tx_id, tx.receipt.verdict) == (tx.id, "COMMITTED")
    assert (broker.visible("orders"), broker.visible("stock")) == ([b'{"id":7}'], [b"s"])


@in_virtual_time
async def test_exception_leaves_nothing_and_goes_on() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        with pytest.raises(KeyError):
            async with mq.begin() as tx:
                tx.send("orders", b"x")
                raise KeyError("order")
    assert broker.requests(SEND) == []


@in_virtual_time
async def test_exception_after_prepare_rolls_back_where_nobody_else_could_answer() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        with pytest.raises(KeyError):
            async with mq.begin() as tx:
                tx.send("orders", b"x")
                await tx.prepare()
                with pytest.raises(UsageError, match="prepared"):
                    tx.send("orders", b"late")
                raise KeyError("order")
        assert tx.receipt is not None
        assert tx.receipt.verdict == "ROLLED_BACK"
    assert broker.visible("orders") == []
    assert [end.ext.commit_or_rollback for end in broker.requests(END)] == [12]


@pytest.mark.parametrize("error", [ConnectionError("COMMIT's answer was lost"), asyncio.CancelledError("gone")])
@in_virtual_time
async def test_exception_after_prepare_is_left_to_the_check_where_there_is_one(error: BaseException) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        with pytest.raises(type(error)):
            async with mq.begin("order.create") as tx:
                tx.send("orders", b"x")
                tx.send("stock", b"y")
                await tx.prepare()
                raise error
        assert tx.receipt is not None
        assert tx.receipt.verdict == "UNDECIDED"
        await asyncio.sleep(0.1)
        (end,) = broker.requests(END)
        assert (end.ext.commit_or_rollback, end.ext.tx_id) == (0, tx.id)
        assert end.remark == f"the block raised {type(error).__name__}: {error}"
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert broker.visible("orders") == [b"x"]


@in_virtual_time
async def test_name_without_its_check_is_refused_before_the_block_begins() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.cancel", lambda _: Outcome.COMMIT)
        with pytest.raises(
            UsageError, match=r"'order\.create'.*add_check\('order\.create', check\).*checked_elsewhere"
        ):
            mq.begin("order.create")
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        async with mq.begin("order.create"):
            pass
    assert broker.requests(SEND) == []


@in_virtual_time
async def test_client_that_fetches_checks_by_itself_may_begin_under_any_name() -> None:
    async with client_of(ScriptedBroker().network(), fetches_checks=True) as mq:
        mq.begin("order.create")
        mq.add_check("order.cancel", lambda _: Outcome.COMMIT)  # now the client answers, and knows only this one
        with pytest.raises(UsageError, match="undecided forever"):
            mq.begin("order.create")


@in_virtual_time
async def test_exception_in_a_block_that_is_checked_elsewhere_is_left_to_that_check() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        with pytest.raises(KeyError):
            async with mq.begin("order.create", checked_elsewhere=True) as tx:
                tx.send("orders", b"x")
                await tx.prepare()
                raise KeyError("order")
    assert [end.ext.commit_or_rollback for end in broker.requests(END)] == [0]


@pytest.mark.parametrize("prepared", [False, True])
@in_virtual_time
async def test_explicit_rollback_rolls_back_whoever_could_be_asked(prepared: bool) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        with pytest.raises(KeyError):
            async with mq.begin("order.create") as tx:
                tx.send("orders", b"x")
                if prepared:
                    await tx.prepare()
                await tx.rollback()
                with pytest.raises(UsageError, match="no more messages"):
                    tx.send("orders", b"late")
                raise KeyError("order")
        async with mq.begin("order.create") as tx:
            tx.send("orders", b"x")
            await tx.rollback()
    assert [end.ext.commit_or_rollback for end in broker.requests(END)] == [12] * prepared
    assert broker.visible("orders") == []


@in_virtual_time
async def test_cancellation_after_prepare_without_a_check_decides_nothing() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:

        async def work() -> None:
            async with mq.begin() as tx:
                tx.send("orders", b"x")
                await tx.prepare()
                assert mq.verdicts.get(tx.id) is Outcome.UNKNOWN  # a check waits for the block
                ids.append(tx.id)
                await asyncio.sleep(60)  # the local commit, perhaps done, perhaps not

        ids: list[str] = []
        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mq.verdicts.get(ids[0]) is None  # now the listener is asked
    assert broker.requests(END) == []


@in_virtual_time
async def test_block_without_messages_costs_nothing() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        async with mq.begin() as tx:
            await tx.prepare()
        assert tx.receipt is None
        with pytest.raises(UsageError, match="block ended"):
            tx.send("orders", b"x")
    assert broker.requests(SEND) == []


@in_virtual_time
async def test_failed_prepare_is_raised_and_nothing_is_visible() -> None:
    broker = ScriptedBroker()
    broker.on[SEND] = lambda *_: None
    async with client_of(broker.network()) as mq:
        with pytest.raises(SendTimeout):
            async with mq.begin() as tx:
                tx.send("orders", b"x")
    assert broker.visible("orders") == []


@in_virtual_time
async def test_unanswered_commit_is_unknown() -> None:
    broker = ScriptedBroker()
    broker.on[END] = lambda *_: None
    async with client_of(broker.network()) as mq:
        with pytest.raises(TransactionUnknown) as caught:
            async with mq.begin() as tx:
                tx.send("orders", b"x")
        assert caught.value.tx_id == tx.id


def test_body_alone_needs_a_topic() -> None:
    tx = Transaction("T-1")
    with pytest.raises(UsageError, match="no topic"):
        tx.send(b"x")
    assert (tx.key, tx.keys) == (None, ())


@pytest.mark.parametrize("value", [None, True, "COMMIT", 8])
def test_what_is_no_outcome_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"Outcome\.COMMIT"):
        checked_outcome(value, "f")
    assert checked_outcome(Outcome.UNKNOWN, "f") is Outcome.UNKNOWN
