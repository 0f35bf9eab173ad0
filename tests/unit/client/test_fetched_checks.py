"""Fetched checks: by hand, and by the client's own check functions; against a real broker where that is what counts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.scripted_broker import Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq import AsyncClient, Client, FetchedCheck, Outcome, Transaction, TransactionListener, compose
from halfmq.errors import (
    ConnectError,
    InvalidName,
    RequestFailed,
    TransactionRefused,
    TransactionUnknown,
    UnsupportedCombination,
    UsageError,
)
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import encode
from halfmq.wire.remoting.codes import HMQ_POLL_CHECKS, RequestCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.message_codec import with_check_times

QUICK = BrokerSettings(check_immunity_ms=50, check_interval_ms=50, check_interval_max_ms=100, check_answer_ms=300)


async def undecided(mq: AsyncClient, tx_id: str = "T-1", name: str = "", query_id: str = "") -> None:
    await mq.prepare([compose("orders", b"body", key="k1")], tx_id=tx_id, name=name, query_id=query_id)


async def settled(running: Any, tx_id: str, group: str = "orders") -> bool:
    for _ in range(500):
        verdict = running.state.producer_groups[group].settled.get(tx_id)
        if verdict is not None:
            return bool(verdict.committed)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{tx_id} was never settled")


async def test_a_client_that_fetches_answers_by_its_check_functions_and_is_sent_nothing(tmp_path: Path) -> None:
    asked: list[Transaction] = []

    def check(tx: Transaction) -> Outcome:
        asked.append(tx)
        return Outcome.COMMIT if tx.query_id == "order-7" else Outcome.ROLLBACK

    async with serving(tmp_path, settings=QUICK) as running:
        url = f"127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="orders", fetches_checks=True) as mq:
            mq.add_check("order.create", check)
            await undecided(mq, "T-1", "order.create", "order-7")
            await undecided(mq, "T-2", "order.create", "order-8")
            assert running.state.producer_groups["orders"].session.members == {}
            assert await settled(running, "T-1") is True
            assert await settled(running, "T-2") is False
    assert {tx.id for tx in asked} == {"T-1", "T-2"}
    assert {tx.key for tx in asked} == {"k1"}
    assert all(tx.checks >= 1 for tx in asked)


async def test_checks_registered_before_entering_are_fetched_too_and_after_a_broker_was_away(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        ports = running.ports
        mq = AsyncClient(f"127.0.0.1:{ports.names}", group="orders", fetches_checks=True)
        mq.add_check("", lambda tx: Outcome.COMMIT)
        await mq.connect()
        other = AsyncClient(f"127.0.0.1:{ports.names}", group="orders", fetches_checks=True)
        await other.connect()
        await undecided(other, "T-1")
        assert await settled(running, "T-1") is True
        await other.close()
    try:
        async with serving(tmp_path, settings=QUICK, port=ports.broker, name_port=ports.names) as running:
            url = f"127.0.0.1:{ports.names}"
            async with AsyncClient(url, group="orders", fetches_checks=True) as other:
                await undecided(other, "T-2")
                assert await settled(running, "T-2") is True
    finally:
        await mq.close()


async def test_by_hand_a_check_is_fetched_leased_answered_and_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        url = f"127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="orders", fetches_checks=True) as mq:
            assert await mq.fetch_checks(wait=0) == []
            await undecided(mq, "T-1", "some.name", "order-7")
            (check,) = await mq.fetch_checks(wait=5)
            tx = check.transaction
            assert (tx.id, tx.name, tx.query_id, tx.key, tx.checks) == ("T-1", "some.name", "order-7", "k1", 1)
            assert "T-1" in repr(check)
            assert await mq.fetch_checks(wait=0.1) == [], "leased"
            unknown = await mq.answer_check(check, Outcome.UNKNOWN)
            assert (unknown.verdict, unknown.position) == ("UNDECIDED", None)
            (again,) = await mq.fetch_checks(wait=5)
            assert again.transaction.checks == 2
            receipt = await mq.answer_check(again, Outcome.COMMIT)
            assert (receipt.verdict, receipt.repeated, receipt.durability) == ("COMMITTED", False, "memory")
            assert receipt.position is not None
            assert receipt.message_ids
            assert (await mq.answer_check(again, Outcome.COMMIT)).repeated
            with pytest.raises(TransactionRefused):
                await mq.answer_check(again, Outcome.ROLLBACK)


async def test_the_blocking_client_fetches_and_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        url = f"127.0.0.1:{running.ports.names}"

        def blocking() -> str:
            with Client(url, group="orders", fetches_checks=True) as mq:
                mq.prepare([compose("orders", b"one")], tx_id="T-1")
                (check,) = mq.fetch_checks(count=5, wait=5)
                return mq.answer_check(check, Outcome.ROLLBACK).verdict

        assert await asyncio.to_thread(blocking) == "ROLLED_BACK"


async def test_the_blocking_client_answers_fetched_checks_by_its_functions(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        url = f"127.0.0.1:{running.ports.names}"

        def prepare(mq: Client) -> None:
            mq.add_check("", lambda tx: Outcome.COMMIT)
            mq.prepare([compose("orders", b"one")], tx_id="T-1")

        mq = Client(url, group="orders", fetches_checks=True)
        await asyncio.to_thread(mq.connect)
        try:
            await asyncio.to_thread(prepare, mq)
            assert await settled(running, "T-1") is True
        finally:
            await asyncio.to_thread(mq.close)


async def test_an_application_may_give_its_own_transaction_id(tmp_path: Path) -> None:
    class Listener(TransactionListener):
        def execute(self, message: Any, arg: Any) -> Outcome:
            return Outcome.COMMIT

        def check(self, message: Any) -> Outcome:
            return Outcome.UNKNOWN

    async with serving(tmp_path) as running:
        url = f"127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="orders") as mq:
            async with mq.begin("order.create", tx_id="order:7", checked_elsewhere=True) as tx:
                tx.send("orders", b"one")
            assert tx.receipt is not None
            assert (tx.id, tx.receipt.tx_id) == ("order:7", "order:7")
            async with mq.begin() as tx:
                tx.send("orders", b"two")
            assert tx.id.startswith("1-"), "the form of the client's own"
            receipt = await mq.send_in_transaction("orders", b"x", listener=Listener(), tx_id="order:8")
            assert (receipt.tx_id, receipt.verdict) == ("order:8", "COMMITTED")
            with pytest.raises(InvalidName):
                mq.begin(tx_id="a b")
            with pytest.raises(InvalidName):
                await mq.send_in_transaction("orders", b"x", listener=Listener(), tx_id="a b")

        def blocking() -> tuple[str, str]:
            with Client(url, group="orders") as mq:
                with mq.begin(tx_id="order:9") as tx:
                    tx.send("orders", b"one")
                return tx.id, mq.send_in_transaction("orders", b"x", listener=Listener(), tx_id="order:10").tx_id

        assert await asyncio.to_thread(blocking) == ("order:9", "order:10")
        assert set(running.state.producer_groups["orders"].settled) >= {"order:7", "order:8", "order:9", "order:10"}


# --- against a broker that does as it is told -------------------------------------------------------------------------


def handing_out(broker: ScriptedBroker, times: int = 1) -> Callable[[Peer, Request[Any]], bytes]:
    given = 0

    def behave(peer: Peer, request: Request[Any]) -> bytes:
        nonlocal given
        body = b""
        if broker.halves and given < times:
            given += 1
            body = b"".join(
                with_check_times(b"".join(encode(half, number * 1000)), given)
                for number, half in enumerate(broker.halves)
            )
        return encode_response(request, 0, body=body)

    return behave


@in_virtual_time
async def test_a_client_fetches_no_more_than_it_can_answer_at_once() -> None:
    broker = ScriptedBroker()
    release = asyncio.Event()

    async def slow(tx: Transaction) -> Outcome:
        await release.wait()
        return Outcome.COMMIT

    def behave(peer: Peer, request: Request[Any]) -> bytes | None:
        return handed(peer, request) if not broker.requests(HMQ_POLL_CHECKS)[1:] else None

    handed = handing_out(broker)
    async with client_of(broker.network(), fetches_checks=True, checks=2) as mq:
        for number in range(2):
            await undecided(mq, f"T-{number}")
        broker.on[HMQ_POLL_CHECKS] = behave
        mq.add_check("", slow)
        await asyncio.sleep(1)
        assert [one.ext["max"] for one in broker.requests(HMQ_POLL_CHECKS)][:1] == ["2"]
        polls = len(broker.requests(HMQ_POLL_CHECKS))
        await asyncio.sleep(3)
        assert len(broker.requests(HMQ_POLL_CHECKS)) == polls, "both turns are taken"
        release.set()
        await asyncio.sleep(1)
        assert len(broker.requests(HMQ_POLL_CHECKS)) > polls
        assert len(broker.requests(RequestCode.END_TRANSACTION)) == 2


@in_virtual_time
async def test_a_broker_that_hands_out_none_is_named_and_left_alone() -> None:
    for broker in (ScriptedBroker(halfmq=False), ScriptedBroker()):
        async with client_of(broker.network(), fetches_checks=True) as mq:
            mq.add_check("", lambda tx: Outcome.COMMIT)
            await asyncio.sleep(30)
            assert len(broker.requests(HMQ_POLL_CHECKS)) <= 1
            with pytest.raises(UnsupportedCombination, match="hands out no checks"):
                await mq.fetch_checks()


@in_virtual_time
async def test_a_broker_that_fails_is_asked_again_with_pauses() -> None:
    broker = ScriptedBroker()
    broker.on[HMQ_POLL_CHECKS] = lambda peer, request: encode_response(request, 2, "busy")
    async with client_of(broker.network(), fetches_checks=True) as mq:
        mq.add_check("", lambda tx: Outcome.COMMIT)
        await asyncio.sleep(60)
        assert 20 <= len(broker.requests(HMQ_POLL_CHECKS)) <= 80


@in_virtual_time
async def test_an_answer_says_what_became_of_it() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network(), fetches_checks=True) as mq:
        await undecided(mq)
        broker.on[HMQ_POLL_CHECKS] = handing_out(broker, times=3)
        (check,) = await mq.fetch_checks()
        with pytest.raises(TypeError):
            await mq.answer_check(check, "COMMIT")  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await mq.answer_check("T-1", Outcome.COMMIT)  # type: ignore[arg-type]
        broker.on[RequestCode.END_TRANSACTION] = lambda peer, request: encode_response(
            request, 1, "never prepared here"
        )
        with pytest.raises(RequestFailed, match="never prepared here") as failed:
            await mq.answer_check(check, Outcome.COMMIT)
        assert "drop this check, and fetch again" in failed.value.hint
        broker.on[RequestCode.END_TRANSACTION] = lambda peer, request: None
        with pytest.raises(TransactionUnknown):
            await mq.answer_check(check, Outcome.COMMIT)
        (check,) = await mq.fetch_checks()
        for peer in list(broker.peers):
            peer.cut()
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectError, match="lease"):
            await mq.answer_check(check, Outcome.COMMIT)


@in_virtual_time
async def test_without_a_group_or_a_broker_it_says_so() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network(), group="") as mq:
        with pytest.raises(UsageError, match="group"):
            await mq.fetch_checks()
    broker.on[HMQ_POLL_CHECKS] = lambda peer, request: peer.cut()  # type: ignore[func-returns-value]
    async with client_of(broker.network()) as mq:
        with pytest.raises(UsageError):
            await mq.fetch_checks(count=0)
        with pytest.raises(UsageError, match="256 checks at once"):
            await mq.fetch_checks(count=257)
        with pytest.raises(UsageError, match="25 s at most"):
            await mq.fetch_checks(wait=25.1)
        with pytest.raises(ConnectError):
            await mq.fetch_checks()


@in_virtual_time
async def test_a_damaged_half_is_not_handed_to_anybody() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network(), fetches_checks=True) as mq:
        await undecided(mq)
        broker.halves[0] = broker.halves[0]._replace(body_crc=1)
        broker.on[HMQ_POLL_CHECKS] = handing_out(broker)
        assert await mq.fetch_checks() == []


def test_public_name() -> None:
    assert FetchedCheck.__module__ == "halfmq.client.fetched_checks"
