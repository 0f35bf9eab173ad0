"""Checks: routed by name, answered once, and every doubt is UNKNOWN and reported."""

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client import check_listener
from halfmq.client.async_client import AsyncClient
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.transaction_block import Transaction
from halfmq.errors import TransactionUnknown
from halfmq.model import properties
from halfmq.model.stored_message import SYS_COMPRESSED, body_crc_of
from halfmq.wire.remoting import message_codec
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.compression import ZLIB
from halfmq.wire.remoting.header import Request, encode_oneway_request
from halfmq.wire.remoting.message_codec import PulledMessage, unpack

END = RequestCode.END_TRANSACTION


async def left_undecided(mq: AsyncClient, name: str = "order.create", tx_id: str = "T-1", query_id: str = "q") -> None:
    await mq.prepare([compose("orders", b"body", key="k1")], tx_id=tx_id, name=name, query_id=query_id)


def answers(broker: ScriptedBroker) -> list[int]:
    return [end.ext.commit_or_rollback for end in broker.requests(END)]


@pytest.mark.parametrize("halfmq", [True, False])
@in_virtual_time
async def test_check_that_a_marker_answers_says_so_to_a_broker_that_keeps_it(halfmq: bool) -> None:
    def by_marker(tx: Transaction) -> Outcome:
        tx.decided_by = "marker"
        return Outcome.COMMIT

    broker = ScriptedBroker(halfmq=halfmq)
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", by_marker)
        await left_undecided(mq)
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    (end,) = broker.requests(END)
    assert end.ext.decided_by == ("marker" if halfmq else "")


@in_virtual_time
async def test_what_a_check_remarks_goes_with_unknown_and_with_nothing_else() -> None:
    def look(tx: Transaction) -> Outcome:
        tx.remark = f"looked for {tx.marker}" + "." * 1_000
        return Outcome.UNKNOWN if tx.checks == 1 else Outcome.COMMIT

    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", look)
        half = compose("orders", b"body")
        half = half._replace(properties=properties.encode([(properties.HMQ_TX_MARKER, "7.9")]))
        await mq.prepare([half], tx_id="T-1", name="order.create")
        for checks in (1, 2):
            broker.check(0, "orders", checks=checks)
            await asyncio.sleep(0.1)
    unknown, commit = broker.requests(END)
    assert unknown.remark is not None
    assert unknown.remark.startswith("looked for 7.9...")
    assert len(unknown.remark) == 500
    assert commit.remark is None


@in_virtual_time
async def test_check_finds_its_function_by_name_and_its_answer_settles() -> None:
    asked: list[Transaction] = []

    async def commit(tx: Transaction) -> Outcome:
        asked.append(tx)
        return Outcome.COMMIT

    def rollback(tx: Transaction) -> Outcome:
        return Outcome.ROLLBACK

    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", commit)
        mq.add_check("order.cancel", rollback)
        await left_undecided(mq)
        await left_undecided(mq, "order.cancel", "T-2")
        assert broker.check(0, "orders", checks=3) == 1
        broker.check(1, "orders")
        await asyncio.sleep(0.1)
    first, second = broker.requests(END)
    assert [first.ext.commit_or_rollback, second.ext.commit_or_rollback] == [8, 12]
    assert first.is_oneway
    assert first.ext.from_transaction_check
    assert (first.ext.tx_id, first.ext.producer_group) == ("T-1", "orders")
    assert (first.ext.tran_state_table_offset, first.ext.commit_log_offset) == (0, 0)
    assert first.ext.decided_by == "", "the application's own code"
    (tx,) = asked
    assert (tx.id, tx.name, tx.query_id, tx.key, tx.keys, tx.checks) == (
        "T-1",
        "order.create",
        "q",
        "k1",
        ("k1",),
        3,
    )
    assert tx.message is not None
    assert tx.message.body == b"body"
    assert tx.prepared_at_ms == 1_795_000_000_500
    assert broker.visible("orders") == [b"body"]


def test_packed_halves_are_unpacked_when_their_checks_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    seen: list[bytes] = []

    def counted(half: PulledMessage) -> PulledMessage:
        unpacked.append(len(half.message.body))
        return unpack(half)

    async def test() -> None:
        go_on = asyncio.Event()

        async def look(tx: Transaction) -> Outcome:
            await go_on.wait()
            assert tx.message is not None
            seen.append(tx.message.body)
            return Outcome.COMMIT

        broker = ScriptedBroker()
        async with client_of(broker.network(), checks=1) as mq:
            mq.add_check("order.create", look)
            for number in range(3):
                await left_undecided(mq, tx_id=f"T-{number}")
                packed = zlib.compress(bytes(50_000))
                broker.halves[number] = broker.halves[number]._replace(
                    body=packed, body_crc=body_crc_of(packed), sys_flag=SYS_COMPRESSED | ZLIB
                )
                broker.check(number, "orders")
            await asyncio.sleep(0.1)
            assert len(unpacked) == 1
            go_on.set()
            await asyncio.sleep(0.1)

    monkeypatch.setattr(check_listener, "unpack", counted)
    run(test())
    assert seen == [bytes(50_000)] * 3
    assert max(unpacked) < 1_000


def test_number_of_checks_that_is_none_costs_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own is left out where there is no room for it; then the half's is there, which its sender chose."""
    counted: list[int] = []

    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            mq.add_check("order.create", lambda tx: counted.append(tx.checks) or Outcome.COMMIT)
            for number, text in enumerate(("abc", "-1", "٣", "9" * 5_000, "7")):
                half = compose("orders", b"body")
                half = half._replace(properties=properties.encode([(properties.TRANSACTION_CHECK_TIMES, text)]))
                await mq.prepare([half], tx_id=f"T-{number}", name="order.create")
                broker.check(number, "orders")
            await asyncio.sleep(0.1)
            assert len(answers(broker)) == 5

    monkeypatch.setattr(message_codec, "with_check_times", lambda stored, checks: stored)
    run(test())
    assert counted == [1, 1, 1, 1, 7]


def test_unknown_name_is_unknown_and_remarked_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            await left_undecided(mq, "gone.in.this.release")
            for _ in range(3):
                broker.check(0, "orders")
                await asyncio.sleep(0.1)
            assert mq._check_listener.counts["unknown-name"] == 3
        assert answers(broker) == [0, 0, 0]
        said = "no check is registered for transactions named 'gone.in.this.release'"
        assert [end.remark for end in broker.requests(END)] == [said] * 3

    with caplog.at_level(logging.WARNING):
        run(test())
    assert caplog.text.count("gone.in.this.release") == 1


def raises(_: Transaction) -> Outcome:
    raise RuntimeError("database is down")


async def awaits_what_somebody_cancelled(_: Transaction) -> Outcome:
    query: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    query.cancel()
    return await query


@pytest.mark.parametrize(
    ("check", "reported"),
    [
        (raises, "database is down"),
        (awaits_what_somebody_cancelled, "CancelledError"),
        (lambda _: None, "returned None"),
        (lambda _: "COMMIT", "returned 'COMMIT'"),
    ],
)
def test_failing_check_is_unknown_and_reported_with_its_traceback(
    check: Callable[[Transaction], Any], reported: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            mq.add_check("order.create", check)
            await left_undecided(mq)
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
        assert answers(broker) == [0]

    with caplog.at_level(logging.ERROR):
        run(test())
    assert reported in caplog.text
    assert "Traceback" in caplog.text


@in_virtual_time
async def test_at_most_so_many_checks_run_at_once_and_one_is_not_asked_twice() -> None:
    running, most, asked = 0, 0, 0

    async def slow(_: Transaction) -> Outcome:
        nonlocal running, most, asked
        running += 1
        asked += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return Outcome.COMMIT

    broker = ScriptedBroker()
    async with client_of(broker.network(), checks=4) as mq:
        mq.add_check("order.create", slow)
        for number in range(12):
            await left_undecided(mq, tx_id=f"T-{number}")
        for _ in range(2):
            for number in range(12):
                broker.check(number, "orders")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
    assert (most, asked) == (4, 12)
    assert answers(broker) == [8] * 12


@in_virtual_time
async def test_own_decided_transaction_is_answered_without_the_listener() -> None:
    broker = ScriptedBroker()
    broker.on[END] = lambda *_: None  # the broker never got it
    async with client_of(broker.network(), timeout=1.0) as mq:
        mq.add_check("order.create", raises)
        with pytest.raises(TransactionUnknown, match="not acknowledged"):
            async with mq.begin("order.create") as tx:
                tx.send("orders", b"x")
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
        told = [end for end in broker.requests(END) if end.ext.from_transaction_check]
    assert [end.ext.commit_or_rollback for end in told] == [8]


@in_virtual_time
async def test_stock_brokers_check_of_a_copy_of_what_it_committed_makes_no_second_message() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        async with mq.begin("order.create", checked_elsewhere=True) as tx:
            tx.send("orders", b"x")
        for _ in range(2):
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
    assert answers(broker) == [8, 12, 12]
    assert broker.visible("orders") == [b"x"]


@in_virtual_time
async def test_stock_broker_that_checks_again_after_a_listeners_commit_gets_no_second_one() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        await left_undecided(mq)
        for _ in range(3):
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
    assert answers(broker) == [8, 12, 12]
    assert broker.visible("orders") == [b"body"]


@in_virtual_time
async def test_stock_broker_that_was_restarted_may_have_lost_the_commit_and_gets_it_again() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        async with mq.begin("order.create", checked_elsewhere=True) as tx:
            tx.send("orders", b"x")
        broker.stop()
        await asyncio.sleep(1)
        broker.start()
        await asyncio.sleep(5)
        assert broker.check(0, "orders") == 1
        await asyncio.sleep(0.1)
    assert answers(broker) == [8, 8]


@in_virtual_time
async def test_verdict_that_is_on_its_way_is_not_overtaken_by_a_check() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:

        def slow(peer: Any, request: Request[Any]) -> bytes | None:
            answer = broker.usual(peer, request)
            if not request.ext.from_transaction_check:
                broker.check(0, "orders")  # the broker looks between END and its answer
                asyncio.get_running_loop().call_later(1.0, peer.send, answer)
                return None
            return answer

        broker.on[END] = slow
        async with mq.begin("order.create", checked_elsewhere=True) as tx:
            tx.send("orders", b"x")
    assert answers(broker) == [8, 0]
    assert broker.visible("orders") == [b"x"]


def test_check_of_another_group_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            mq.add_check("order.create", raises)
            await left_undecided(mq)
            half = broker.halves[0]
            foreign = properties.append(properties.without(half.properties, "PGROUP"), b"PGROUP\x01other\x02")
            broker.halves[0] = half._replace(properties=foreign)
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
        assert answers(broker) == []

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "other" in caplog.text


def test_unreadable_check_is_reported_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            ext = {"tranStateTableOffset": 0, "commitLogOffset": 0}
            for fields, body in ((ext, b""), (ext, b"garbage"), ({}, b"")):
                for peer in broker.heartbeats:
                    peer.send(encode_oneway_request(RequestCode.CHECK_TRANSACTION_STATE, 1, fields, body))
            await asyncio.sleep(0.1)
            await mq.send("t", b"still works")

    with caplog.at_level(logging.WARNING):
        run(test())
    assert caplog.text.count("cannot be read") == 3


@in_virtual_time
async def test_stock_clients_half_goes_to_the_nameless_check() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        asked: list[str] = []

        def check(tx: Transaction) -> Outcome:
            asked.append(tx.id)
            return Outcome.COMMIT

        mq.add_check("", check)
        await left_undecided(mq)
        half = broker.halves[0]
        java = properties.encode({"TRAN_MSG": "true", "PGROUP": "orders", "UNIQ_KEY": "JAVA1"})
        broker.halves[0] = half._replace(properties=java)
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
        assert asked == ["JAVA1"]


class Orders(TransactionListener):
    def __init__(self, says: Any = Outcome.COMMIT) -> None:
        self.says = says
        self.executed: list[tuple[Message, Any]] = []
        self.checked: list[Message] = []

    def execute(self, message: Message, arg: Any) -> Outcome:
        self.executed.append((message, arg))
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says  # type: ignore[no-any-return]

    async def check(self, message: Message) -> Outcome:
        self.checked.append(message)
        return Outcome.COMMIT


async def send(mq: AsyncClient, listener: Orders) -> Any:
    return await mq.send_in_transaction("orders", {"id": 7}, arg="the order", key="7", listener=listener)


@pytest.mark.parametrize(("says", "verdict"), [(Outcome.COMMIT, "COMMITTED"), (Outcome.ROLLBACK, "ROLLED_BACK")])
@in_virtual_time
async def test_listeners_outcome_is_the_verdict(says: Outcome, verdict: str) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        listener = Orders(says)
        receipt = await send(mq, listener)
    assert (receipt.verdict, receipt.acknowledged) == (verdict, True)
    ((message, arg),) = listener.executed
    assert (message.json(), message.key, arg) == ({"id": 7}, "7", "the order")
    assert (message.transaction_id, message.message_id) == (receipt.tx_id, receipt.message_ids[0])


@in_virtual_time
async def test_unknown_is_undecided_and_the_check_finds_the_listener_by_its_class() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        listener = Orders(Outcome.UNKNOWN)
        receipt = await send(mq, listener)
        assert receipt.verdict == "UNDECIDED"
        assert properties.to_dict(broker.halves[0].properties)["HMQ_TX_NAME"] == "Orders"
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert [message.transaction_id for message in listener.checked] == [receipt.tx_id]
    assert answers(broker) == [0, 8]


@pytest.mark.parametrize("halfmq", [True, False])
@pytest.mark.parametrize("error", [ConnectionError("COMMIT's answer was lost"), asyncio.CancelledError("gone")])
@in_virtual_time
async def test_exception_of_execute_is_raised_and_left_to_the_check(error: BaseException, halfmq: bool) -> None:
    broker = ScriptedBroker(halfmq=halfmq)
    async with client_of(broker.network()) as mq:
        with pytest.raises(type(error)):
            await send(mq, Orders(error))
        await asyncio.sleep(0.1)
        (end,) = broker.requests(END)
        assert (end.ext.commit_or_rollback, end.is_oneway) == (0, True)
        assert end.remark == f"execute raised {type(error).__name__}: {error}"
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert answers(broker) == [0, 8]
    assert broker.visible("orders") == [b'{"id":7}']


@in_virtual_time
async def test_forgotten_return_is_a_type_error_and_left_to_the_check() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        with pytest.raises(TypeError, match=r"Orders\.execute returned None"):
            await send(mq, Orders(None))
        assert answers(broker) == []  # the local transaction ran: ROLLBACK would be a guess
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert answers(broker) == [8]


@in_virtual_time
async def test_refused_half_does_not_execute() -> None:
    from halfmq.errors import TransactionRefused
    from halfmq.wire.remoting.header import encode_response

    def settled(_: Any, request: Request[Any]) -> bytes:
        return encode_response(request, 604, "settled", {"HMQ_VERDICT": "COMMITTED"})

    broker = ScriptedBroker()
    broker.on[RequestCode.SEND_MESSAGE_V2] = settled
    async with client_of(broker.network()) as mq:
        listener = Orders()
        with pytest.raises(TransactionRefused):
            await send(mq, listener)
    assert listener.executed == []


def test_check_with_a_damaged_half_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with client_of(broker.network()) as mq:
            mq.add_check("order.create", lambda _: Outcome.ROLLBACK)
            await left_undecided(mq)
            broker.halves[0] = broker.halves[0]._replace(body=b"b0dy")
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
        assert answers(broker) == []

    run(test())
    assert "the body of half 0 is damaged" in caplog.text


@in_virtual_time
async def test_delay_is_that_of_the_half_which_counts_from_the_commit() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.send_in_transaction("orders", b"x", listener=Orders(), delay=2.5)
    assert properties.to_dict(broker.halves[0].properties)["TIMER_DELAY_MS"] == "2500"
