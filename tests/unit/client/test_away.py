"""A broker that answers nobody is noticed: blocks fail at once, before they use anything, until it answers again."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from tests.support.scripted_broker import BROKER, URL, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

from halfmq.client.async_client import ATTEMPT_TIMEOUT_S, AsyncClient
from halfmq.client.connection_pool import PROBE_TIMEOUT_S, TRY_AGAIN_S, TRY_S
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.errors import ConnectError, SendTimeout, TransactionUnknown, UsageError
from halfmq.model.address import Address
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.route import BrokerData, QueueData, Route, encode_cluster_info, encode_route

MESSAGE = [compose("t", b"x")]


class Markers:
    """As ``halfmq.sql.MarkerTable``; its block does nothing."""

    name = "markers"

    def bind(self, client: Any, session: Any, **options: Any) -> Any:
        return nullcontext()

    bind_async = checker = bind


#: Whatever begins a transaction, as a block; and calls that send one.
BEGINNINGS: list[Callable[[AsyncClient], Any]] = [
    lambda mq: mq.begin(),
    lambda mq: mq.transaction(None, markers=Markers(), checked_elsewhere=True),
]


async def begun(mq: AsyncClient) -> None:
    for begin in BEGINNINGS:
        async with begin(mq):
            pass


def stall(broker: ScriptedBroker) -> None:
    """As SIGSTOP: connections are made by the system, and nothing is answered."""
    broker.handle = lambda peer, request: None  # type: ignore[method-assign]


def go_on(broker: ScriptedBroker) -> None:
    del broker.handle  # type: ignore[method-assign]


def now() -> float:
    return asyncio.get_running_loop().time()


SILENT = rf"no broker of {URL} has answered .*\({BROKER.host}:\d+\).*the client asks by itself about every second"
GONE = rf"no broker of {URL} has answered .*\({BROKER.host}:\d+\)"


async def refused(
    mq: AsyncClient,
    text: str = SILENT,
    within_s: float = 0,
) -> None:
    """The bodies of blocks do not run; and that takes no time, or that of one attempt to connect."""
    for begin in BEGINNINGS:
        began = now()
        with pytest.raises(ConnectError, match=text) as error:
            async with begin(mq):
                pytest.fail("a block was entered while no broker answers")
        assert error.value.retriable
        assert now() - began <= within_s


async def ready_again(mq: AsyncClient, within_s: float) -> None:
    """Although nothing calls it."""
    began = now()
    while not mq.is_ready:
        await asyncio.sleep(0.05)
        assert now() - began < within_s
    await begun(mq)


async def known(mq: AsyncClient) -> None:
    """The topic exists, and the client has its route."""
    for number in range(2):
        await mq.commit(await mq.prepare(MESSAGE, tx_id=f"first-{number}"))
        await asyncio.sleep(1.5)


@pytest.mark.parametrize("has_check", [True, False])
@in_virtual_time
async def test_a_stalled_broker_is_noticed_with_the_first_request_that_times_out(has_check: bool) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        if has_check:
            mq.add_check("", lambda _: Outcome.UNKNOWN)
        await known(mq)
        stall(broker)
        assert mq.is_ready
        began = now()
        preparing = asyncio.ensure_future(mq.prepare(MESSAGE, tx_id="T-2"))
        await asyncio.sleep(ATTEMPT_TIMEOUT_S + PROBE_TIMEOUT_S + 0.2)
        assert not mq.is_ready
        await refused(mq, GONE, TRY_S)
        with pytest.raises(ConnectError, match="has answered"):
            await mq.prepare(MESSAGE, tx_id="T-3")
        with pytest.raises(SendTimeout, match=r"may have been executed \(no broker has answered for 3 s"):
            await preparing
        assert now() - began < 2 * ATTEMPT_TIMEOUT_S + 0.5, "what has begun is given up as well"
        await asyncio.sleep(100)
        await refused(mq, GONE, TRY_S)
        go_on(broker)
        await ready_again(mq, within_s=8)
        assert (await mq.commit(await mq.prepare(MESSAGE, tx_id="T-4"))).acknowledged


@in_virtual_time
async def test_a_stall_is_noticed_also_by_a_call_that_waits_for_a_route() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await known(mq)
        stall(broker)
        began = now()
        preparing = asyncio.ensure_future(mq.prepare([compose("another", b"x")], tx_id="T-2"))
        await asyncio.sleep(ATTEMPT_TIMEOUT_S + 2 * PROBE_TIMEOUT_S + 0.5)
        await refused(mq)
        with pytest.raises(ConnectError):
            await preparing
        assert now() - began < 2 * ATTEMPT_TIMEOUT_S + 0.5
        go_on(broker)
        await ready_again(mq, within_s=8)


@in_virtual_time
async def test_a_broker_that_is_slow_and_answers_heartbeats_is_waited_for() -> None:
    """A disk that takes four seconds: the half is sent again, and the first one's answer counts."""
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await known(mq)
        stalled_until = now() + 4

        def slow(peer: Any, request: Any) -> bytes | None:
            asyncio.get_running_loop().call_at(
                max(now(), stalled_until), lambda: peer.send(broker.usual(peer, request) or b"")
            )
            return None

        broker.on[RequestCode.SEND_MESSAGE_V2] = slow
        preparing = asyncio.ensure_future(mq.prepare(MESSAGE, tx_id="T-2"))
        while not preparing.done():
            assert mq.is_ready
            await begun(mq)
            await asyncio.sleep(0.1)
        assert (await mq.commit(preparing.result())).acknowledged


@in_virtual_time
async def test_a_callers_short_timeout_starts_the_question_and_the_time_of_an_attempt_answers_it() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await known(mq)
        stall(broker)
        with pytest.raises(SendTimeout):
            await mq.prepare(MESSAGE, tx_id="T-2", timeout=0.5)
        await asyncio.sleep(ATTEMPT_TIMEOUT_S - 0.6)
        assert mq.is_ready, "others wait longer than that caller"
        await begun(mq)
        await asyncio.sleep(PROBE_TIMEOUT_S + 0.3)
        await refused(mq)
        go_on(broker)
        await ready_again(mq, within_s=8)


@pytest.mark.parametrize("has_check", [True, False])
@in_virtual_time
async def test_a_broker_that_is_down_is_away_after_the_time_of_an_attempt_so_that_a_restart_is_waited_for(
    has_check: bool,
) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        if has_check:
            mq.add_check("", lambda _: Outcome.UNKNOWN)
        await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))
        broker.stop()
        preparing = asyncio.ensure_future(mq.prepare(MESSAGE, tx_id="T-2"))
        await asyncio.sleep(ATTEMPT_TIMEOUT_S - 0.5)
        await begun(mq)
        broker.start()
        await mq.commit(await preparing)
        broker.stop()
        await asyncio.sleep(ATTEMPT_TIMEOUT_S + 0.5)
        await refused(mq, GONE, TRY_S)
        broker.start()
        await ready_again(mq, within_s=5)


#: Each waits until a broker has answered, or raises.
FIRST_CALLS: dict[str, Callable[[AsyncClient], Any]] = {
    "begin": lambda mq: BEGINNINGS[0](mq).__aenter__(),
    "transaction": lambda mq: BEGINNINGS[1](mq).__aenter__(),
    "tcc": lambda mq: mq.tcc(None, markers=Markers(), checked_elsewhere=True).__aenter__(),  # type: ignore[arg-type]
    "prepare": lambda mq: mq.prepare(MESSAGE, tx_id=mq.new_transaction_id()),
    "send": lambda mq: mq.send("t", b"x"),
}


@pytest.mark.parametrize("absence_s", [ATTEMPT_TIMEOUT_S + 1, 60])
@pytest.mark.parametrize("call", FIRST_CALLS)
@in_virtual_time
async def test_the_first_call_after_a_brokers_return_succeeds(call: str, absence_s: float) -> None:
    """Whenever that is between two attempts that the client makes by itself, and though another call has just failed."""
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        for number in range(8):
            await mq.commit(await mq.prepare(MESSAGE, tx_id=f"T-{number}"))
            broker.stop()
            await asyncio.sleep(absence_s + 0.31 * number)
            if number % 2:
                await refused(mq, GONE, TRY_S)
            assert not mq.is_ready
            broker.start()
            await FIRST_CALLS[call](mq)
            assert mq.is_ready


@pytest.mark.parametrize("unreachable", [False, True])
@in_virtual_time
async def test_calls_while_the_broker_is_away_share_one_attempt_to_connect_at_a_time(unreachable: bool) -> None:
    broker = ScriptedBroker()
    network = broker.network()
    async with client_of(network, connect_timeout=5) as mq:
        await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))
        broker.unreachable = unreachable
        broker.stop()
        await asyncio.sleep(20)
        network.connects.clear()
        began, failed, longest = now(), 0, 0.0

        async def calls() -> None:
            nonlocal failed, longest
            while now() < began + 20:
                called = now()
                with pytest.raises(ConnectError):
                    await FIRST_CALLS["prepare"](mq)
                failed, longest = failed + 1, max(longest, now() - called)
                await asyncio.sleep(0.03)

        await asyncio.gather(*(calls() for _ in range(10)))
        attempts = network.connects.count(BROKER)
        assert failed > 500
        assert longest <= TRY_S + 1e-6
        if unreachable:
            assert 3 <= attempts <= 5, "each takes the client's connect_timeout, and there is one at a time"
        else:
            # Those of calls, and a few of the background.
            assert 20 / TRY_AGAIN_S * 0.5 <= attempts <= 20 / TRY_AGAIN_S + 20


@pytest.mark.parametrize("call", ["begin", "transaction", "prepare"])
@in_virtual_time
async def test_a_call_with_less_time_than_an_attempt_waits_no_longer(call: str) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))
        broker.unreachable = True
        broker.stop()
        await asyncio.sleep(20)
        await until(mq._context._tries)
        began = now()
        with pytest.raises(ConnectError, match=GONE):
            await {
                "begin": lambda: mq.begin(timeout=0.02).__aenter__(),
                "transaction": lambda: mq.transaction(
                    None,
                    markers=Markers(),
                    checked_elsewhere=True,
                    timeout=0.02,  # type: ignore[arg-type]
                ).__aenter__(),
                "prepare": lambda: mq.prepare(MESSAGE, tx_id="T-2", timeout=0.02),
            }[call]()
        assert now() - began < 0.03


@in_virtual_time
async def test_a_broker_that_comes_back_at_another_address_is_found() -> None:
    broker = ScriptedBroker()
    network = broker.network()
    async with client_of(network) as mq:
        await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))
        del network.servers[BROKER]
        for peer in list(broker.peers):
            peer.cut()
        await asyncio.sleep(ATTEMPT_TIMEOUT_S + 1)
        await refused(mq, GONE, TRY_S)
        moved = Address("127.0.0.1", 20_911)
        network.servers[moved] = broker
        route = Route((BrokerData("C", broker.name, {0: str(moved)}),), (QueueData(broker.name, 2, 2, 6),))
        broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: encode_response(
            request, 0, body=encode_route(route, request.version)
        )
        await ready_again(mq, within_s=10)
        assert (await mq.commit(await mq.prepare(MESSAGE, tx_id="T-2"))).acknowledged


@in_virtual_time
async def test_one_broker_of_two_that_answers_is_enough_to_begin() -> None:
    one, two = ScriptedBroker(name="a"), ScriptedBroker(name="b")
    other = Address("127.0.0.1", 10_912)
    route = Route(
        (BrokerData("C", "a", {0: str(BROKER)}), BrokerData("C", "b", {0: str(other)})),
        (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)),
    )
    network = one.network()
    network.servers[other] = two
    one.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: encode_response(
        request, 0, body=encode_route(route, request.version)
    )
    async with client_of(network) as mq:
        await asyncio.sleep(1)
        stall(two)
        for number in range(2):
            try:
                await mq.commit(await mq.prepare(MESSAGE, tx_id=f"T-{number}"))
            except (SendTimeout, ConnectError):
                assert mq.is_ready
        await begun(mq)


@pytest.mark.parametrize("what", ["prepare", "commit", "rollback"])
@in_virtual_time
async def test_timeout_of_a_block_bounds_each_of_its_two_calls(what: str) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))
        silent = RequestCode.SEND_MESSAGE_V2 if what == "prepare" else RequestCode.END_TRANSACTION
        broker.on[silent] = lambda *_: None
        began = now()
        raised = {"prepare": SendTimeout, "commit": TransactionUnknown, "rollback": KeyError}[what]
        with pytest.raises(raised):  # noqa: PT012 - what is tested is a block that raises
            async with mq.begin(timeout=0.5) as tx:
                tx.send("t", b"x")
                if what == "rollback":
                    await tx.prepare()
                    raise KeyError
        assert 0.5 <= now() - began < 0.7


@in_virtual_time
async def test_timeout_must_be_a_duration() -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        with pytest.raises(UsageError, match="timeout=0"):
            mq.begin(timeout=0)
        with pytest.raises(UsageError, match="timeout=-1"):
            mq.transaction(None, markers=Markers(), checked_elsewhere=True, timeout=-1)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timeout=0"):
            await mq.prepare(MESSAGE, tx_id="T-1", timeout=0)


@in_virtual_time
async def test_client_that_does_not_wait_for_a_broker_is_ready_later() -> None:
    broker = ScriptedBroker()
    broker.stop()
    mq = client_of(broker.network())
    await mq.connect(wait=False)
    assert not mq.is_ready
    await refused(mq, f"no broker of {URL} was found yet", TRY_S)
    await refused(mq, f"no broker of {URL} was found yet")
    await asyncio.sleep(100)
    assert not mq.is_ready
    broker.start()
    await mq.found()
    assert mq.is_ready
    assert (await mq.commit(await mq.prepare(MESSAGE, tx_id="T-1"))).acknowledged
    await mq.close()
    assert not mq.is_ready


@in_virtual_time
async def test_the_first_block_of_a_client_that_does_not_wait_for_a_broker_waits_for_its_first_attempt() -> None:
    for begin in BEGINNINGS:
        mq = client_of(ScriptedBroker().network())
        await mq.connect(wait=False)
        assert not mq.is_ready
        async with begin(mq):
            assert mq.is_ready
        await mq.close()


@in_virtual_time
async def test_a_name_server_that_knows_no_broker_has_not_been_enough() -> None:
    broker = ScriptedBroker()
    broker.topics.clear()
    known: list[BrokerData] = []
    broker.on[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda _, request: encode_response(
        request, 0, body=encode_cluster_info(known, request.version)
    )
    with pytest.raises(ConnectError, match="knows no broker"):
        await client_of(broker.network()).connect()
    mq = client_of(broker.network())
    await mq.connect(wait=False)
    await asyncio.sleep(5)
    assert not mq.is_ready
    assert not await mq.healthy()
    known.append(BrokerData("C", broker.name, {0: str(BROKER)}))
    await mq.found()
    assert mq.is_ready
    assert await mq.healthy()
    await mq.close()
