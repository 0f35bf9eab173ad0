"""The client as a whole: it opens or fails at once, reconnects, and closes without losing what is on its way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.in_process import serving
from tests.support.scripted_broker import BROKER, NAMES, Network, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client import forks
from halfmq.client.async_client import AsyncClient, environment
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, HalfmqError, InvalidName, SendTimeout, UsageError
from halfmq.wire.remoting.codes import HMQ_UNDECIDED, RequestCode
from halfmq.wire.remoting.header import encode_request, encode_response


@in_virtual_time
async def test_no_name_server_fails_at_once() -> None:
    start = asyncio.get_running_loop().time()
    with pytest.raises(ConnectError, match="names:9876"):
        async with client_of(Network()):
            raise AssertionError("not reached")
    assert asyncio.get_running_loop().time() == start


@in_virtual_time
async def test_name_server_without_its_broker_fails_at_once() -> None:
    names, broker = ScriptedBroker(), ScriptedBroker()
    broker.up = False
    network = names.network()
    network.servers = {NAMES: names, BROKER: broker}
    with pytest.raises(ConnectError, match="10911"):
        async with client_of(network):
            raise AssertionError("not reached")


@in_virtual_time
async def test_server_that_does_not_speak_the_protocol_fails_within_the_timeout() -> None:
    broker = ScriptedBroker()
    broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(ConnectError):
        async with client_of(broker.network()):
            raise AssertionError("not reached")


@in_virtual_time
async def test_client_that_is_not_open_says_so() -> None:
    mq = client_of(ScriptedBroker().network())
    for use in (lambda: mq.begin(), lambda: mq.new_transaction_id(), lambda: mq.consumer("t")):
        with pytest.raises(UsageError, match="not open"):
            use()
    with pytest.raises(UsageError, match="not open"):
        await mq.send("t", b"x")
    async with mq:
        with pytest.raises(UsageError, match="open already"):
            await mq.connect()
    await mq.close()
    with pytest.raises(UsageError, match="not open"):
        await mq.send("t", b"x")
    assert not await mq.healthy()


@in_virtual_time
async def test_client_can_be_opened_again() -> None:
    broker = ScriptedBroker()
    mq = client_of(broker.network())
    for _ in range(2):
        async with mq:
            await mq.send("t", b"x")
    assert len(broker.visible("t")) == 2


def test_arguments_are_checked_when_the_client_is_made() -> None:
    with pytest.raises(InvalidName):
        AsyncClient("rocketmq://a:1", group="two words")
    with pytest.raises(UsageError):
        AsyncClient("kafka://a:1")


@in_virtual_time
async def test_heartbeats_go_on_every_thirty_seconds() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()):
        await asyncio.sleep(95)
    assert len(broker.requests(RequestCode.HEART_BEAT)) == 4


@in_virtual_time
async def test_checks_reach_the_client_again_soon_after_a_broker_restart() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("n", lambda _: Outcome.COMMIT)
        await mq.prepare([compose("t", b"x")], tx_id="T-1", name="n")
        broker.stop()
        await asyncio.sleep(20)
        broker.start()
        await asyncio.sleep(2.5)
        assert broker.check(0, "orders") == 1  # nothing was sent meanwhile: it reconnected by itself
        await asyncio.sleep(0.1)
    assert broker.visible("t") == [b"x"]


@in_virtual_time
async def test_check_registered_before_opening_is_announced_with_the_first_heartbeat() -> None:
    broker = ScriptedBroker()
    mq = client_of(broker.network())
    mq.add_check("n", lambda _: Outcome.COMMIT)
    async with mq:
        assert [body.producer_groups for body in broker.heartbeats.values()] == [("orders",)]


@in_virtual_time
async def test_check_registered_later_is_announced_at_once() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("n", lambda _: Outcome.COMMIT)
        await asyncio.sleep(0.1)
        assert [body.producer_groups for body in broker.heartbeats.values()] == [("orders",)]


@in_virtual_time
async def test_close_lets_running_checks_and_late_verdicts_finish() -> None:
    async def slow(_: Transaction) -> Outcome:
        await asyncio.sleep(1)
        return Outcome.COMMIT

    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("n", slow)
        await mq.prepare([compose("t", b"x")], tx_id="T-1", name="n")
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert broker.visible("t") == [b"x"]
    await asyncio.sleep(0.01)
    assert not broker.peers


@in_virtual_time
async def test_cancelled_close_goes_on_and_the_next_call_waits_for_it() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"x")

    def slow(peer: Any, request: Any) -> bytes | None:
        asyncio.get_running_loop().call_later(0.5, lambda: peer.send(broker.usual(peer, request)))
        return None

    mq = client_of(broker.network())
    await mq.connect()
    messages = await mq.consumer("t", group="g").__aenter__()
    message = await messages.get(5)
    assert message is not None
    message.ack()
    broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mq.close(), 0.1)
    assert not mq.is_open
    await mq.close()
    assert broker.offsets["g", "t", 0] == 1
    await asyncio.sleep(0.01)
    assert not broker.peers
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_sends_of_a_client_that_is_closed_end_at_once() -> None:
    """Written and not answered: it may have happened. Never written: it did not, and the client cannot send it any more."""
    broker = ScriptedBroker()
    mq = client_of(broker.network(), timeout=60)
    await mq.connect()
    broker.on[RequestCode.SEND_MESSAGE_V2] = lambda *_: None
    written = asyncio.ensure_future(mq.send("t", b"x"))
    await asyncio.sleep(0.1)
    for peer in broker.peers:
        peer.protocol.pause_writing()
    never = asyncio.ensure_future(mq.send("t", b"y"))
    await asyncio.sleep(0.1)
    await mq.close()
    closed = asyncio.get_running_loop().time()
    with pytest.raises(SendTimeout):
        await written
    with pytest.raises(ConnectError, match="the client is closed"):
        await never
    assert asyncio.get_running_loop().time() == closed


@in_virtual_time
async def test_request_that_is_not_known_is_answered_so() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()):
        for peer in broker.heartbeats:
            peer.send(
                encode_request(RequestCode.GET_CONSUMER_RUNNING_INFO, 77, {"consumerGroup": "C", "clientId": "me"})
            )
        await asyncio.sleep(0.1)
    answers = [request for request in broker.seen if request.is_response]
    assert [(answer.opaque, answer.code) for answer in answers] == [(77, 3)]


@in_virtual_time
async def test_healthy_asks_a_broker() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        assert await mq.healthy()
        broker.stop()
        await asyncio.sleep(0.1)
        assert not await mq.healthy()


@in_virtual_time
async def test_broker_that_is_stopping_is_left_and_the_message_goes_through() -> None:
    broker = ScriptedBroker()
    said: list[int] = []

    def go_away_once(peer: Any, request: Any) -> bytes | None:
        if not said:
            said.append(1)
            return encode_response(request, 1500, "go away")
        return broker.usual(peer, request)

    broker.on[RequestCode.SEND_MESSAGE_V2] = go_away_once
    async with client_of(broker.network()) as mq:
        await mq.send("t", b"x")
    assert broker.visible("t") == [b"x"]


def test_environment_gives_url_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HALFMQ_URL", "HALFMQ_GROUP", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="HALFMQ_URL"):
        AsyncClient.from_env()
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert environment({}) == ("a:1;b:2",)
    monkeypatch.setenv("HALFMQ_URL", "rocketmq://c:3")
    monkeypatch.setenv("HALFMQ_GROUP", "orders")
    mq = AsyncClient.from_env()
    assert (mq.url, mq.group) == ("rocketmq://c:3", "orders")
    assert AsyncClient.from_env(group="mine").group == "mine"
    monkeypatch.delenv("HALFMQ_GROUP")
    with pytest.raises(UsageError, match="HALFMQ_GROUP"):
        AsyncClient.from_env().add_check("n", lambda tx: Outcome.COMMIT)


def test_failure_of_a_close_that_nobody_waits_for_any_more_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        mq = client_of(ScriptedBroker().network())
        await mq.connect()

        async def leave(*_: object, **__: object) -> None:
            await asyncio.sleep(1)
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr(mq._context.membership, "leave", leave)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mq.close(), 0.1)
        await asyncio.sleep(2)

    run(test())
    assert "a bug of ours" in caplog.text


def test_client_serves_on_uvloop(tmp_path: Path) -> None:
    """A web server runs its application there, so the client too. Its transports are no subclass of asyncio's."""

    async def test() -> None:
        async with (
            serving(tmp_path) as running,
            AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}", group="orders", connect_timeout=2) as mq,
        ):
            assert (await mq.send("t", b"sent")).status == "SEND_OK"
            async with mq.begin() as tx:
                tx.send("t", b"committed")
            async with mq.consumer("t", group="g") as messages:
                found = [await messages.get(10), await messages.get(10)]
                assert {message.body for message in found if message is not None} == {b"sent", b"committed"}

    uvloop.run(test())


def silent(broker: ScriptedBroker) -> None:
    """Its process stands still: connections stay and are made, and nothing is answered."""
    for code in RequestCode:
        broker.on[code] = lambda *_: None
    broker.on[HMQ_UNDECIDED] = lambda *_: None


def silent_on_new_connections(broker: ScriptedBroker) -> None:
    silent(broker)
    for peer in list(broker.peers):
        peer.cut()


def unreachable(broker: ScriptedBroker) -> None:
    """Connections are lost, and packets to it too."""
    for peer in list(broker.peers):
        peer.cut()
    broker.unreachable = True


async def elapsed(call: Awaitable[Any]) -> float:
    now = asyncio.get_running_loop().time
    start = now()
    with suppress(HalfmqError):
        await call
    return now() - start


@pytest.mark.parametrize("befalls", [silent, silent_on_new_connections, unreachable])
@in_virtual_time
async def test_timeout_bounds_every_call_whatever_the_servers_do(befalls: Callable[[ScriptedBroker], None]) -> None:
    """Routes, connecting, heartbeats, attempts and pauses together. 50 ms is what a connection's deadlines are exact to."""

    async def of(name: str, call: Callable[[AsyncClient], Awaitable[Any]], *, halfmq: bool = True) -> tuple[str, float]:
        broker = ScriptedBroker(halfmq=halfmq)
        async with client_of(broker.network(), timeout=4.0) as mq:
            await mq.send("t", b"before")
            befalls(broker)
            await asyncio.sleep(0.1)
            return name, await elapsed(call(mq))

    async def of_verdict(*, halfmq: bool) -> tuple[str, float]:
        broker = ScriptedBroker(halfmq=halfmq)
        async with client_of(broker.network(), timeout=4.0) as mq:
            prepared = await mq.prepare([compose("t", b"1"), compose("t", b"2"), compose("t", b"3")], tx_id="T-1")
            befalls(broker)
            await asyncio.sleep(0.1)
            return f"commit at {halfmq=}", await elapsed(mq.commit(prepared))

    large = [b"x" * 3_000_000] * 3  # a request for each
    took = [
        await of("send", lambda mq: mq.send("t", b"x")),
        await of("send to a topic that is new", lambda mq: mq.send("u", b"x")),
        await of("send_many", lambda mq: mq.send_many("t", large)),
        await of("prepare", lambda mq: mq.prepare([compose("t", b"1"), compose("u", b"2")], tx_id="T-1")),
        await of("undecided", lambda mq: mq.undecided(["T-1"])),
        await of("healthy", lambda mq: mq.healthy()),
        await of_verdict(halfmq=True),
        await of_verdict(halfmq=False),
    ]
    assert all(seconds > 0.9 for _, seconds in took), took  # it did meet what it was to meet
    assert {name: seconds for name, seconds in took if seconds > 4.06} == {}


@in_virtual_time
async def test_timeout_of_send_many_is_for_all_its_requests() -> None:
    broker = ScriptedBroker()

    def slowly(peer: Any, request: Any) -> None:
        asyncio.get_running_loop().call_later(2.5, lambda: peer.send(broker.usual(peer, request)))

    async with client_of(broker.network(), timeout=4.0) as mq:
        await mq.send("t", b"before")
        broker.on[RequestCode.SEND_BATCH_MESSAGE] = slowly
        assert await elapsed(mq.send_many("t", [b"x" * 3_000_000] * 3)) == pytest.approx(4.0, abs=0.06)
        assert len(broker.requests(RequestCode.SEND_BATCH_MESSAGE)) == 2  # no time for the third


@pytest.mark.parametrize("befalls", [silent, unreachable])
@in_virtual_time
async def test_timeout_bounds_connecting_too(befalls: Callable[[ScriptedBroker], None]) -> None:
    broker = ScriptedBroker()
    befalls(broker)
    mq = client_of(broker.network(), timeout=2.0)
    assert await elapsed(mq.connect()) == pytest.approx(2.0, abs=0.06)
    assert not mq.is_open


@in_virtual_time
async def test_prepare_that_ran_out_of_time_is_rolled_back_behind_its_caller() -> None:
    """One half was acknowledged, the other never: cleaning up takes none of the caller's time."""
    broker = ScriptedBroker(queues=1)
    async with client_of(broker.network(), timeout=4.0) as mq:
        await mq.send("t", b"before")
        first: list[Any] = []

        def answers_once(peer: Any, request: Any) -> bytes | None:
            first.append(request)
            return broker.usual(peer, request) if len(first) == 1 else None

        broker.on[RequestCode.SEND_MESSAGE_V2] = answers_once
        broker.on[RequestCode.END_TRANSACTION] = lambda *_: None
        assert await elapsed(mq.prepare([compose("t", b"1"), compose("t", b"2")], tx_id="T-1")) <= 4.06
        del broker.on[RequestCode.END_TRANSACTION]
        await asyncio.sleep(10)
    assert broker.verdicts == {"T-1": 12}


@in_virtual_time
async def test_client_of_a_process_that_was_forked_off_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        monkeypatch.setattr(forks, "generation", forks.generation + 1)
        with pytest.raises(UsageError, match="forked from"):
            mq.new_transaction_id()
        await mq.close()  # of the parent's: nothing is said to its broker
        assert not broker.requests(RequestCode.UNREGISTER_CLIENT)
        monkeypatch.undo()
        assert mq.new_transaction_id()
