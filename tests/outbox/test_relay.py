"""A relay and a broker: what is in the broker after each thing that can happen to a relay at each of its steps."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halfmq.client import AsyncClient
from halfmq.client.outgoing import compose
from halfmq.client.receipts import COMMITTED, ROLLED_BACK
from halfmq.client.transaction import Transactions
from halfmq.errors import TransactionRefused, TransactionUndecided, UsageError
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.relay import Relay
from tests.outbox.chance import LEASE_S, FaultyPublisher, FaultyRows
from tests.outbox.conftest import Shelf, bodies, other_key_in_the_lane_of
from tests.support import half_batches
from tests.support.faults import FAULTS, Faults, Killed, Once
from tests.support.in_process import Running, serving
from tests.support.waiting import soon, until
from tests.unit.sql.faces import DRIVERS, MARKS, on

EACH = pytest.mark.parametrize(
    "shelf",
    [
        pytest.param(
            driver,
            id=driver.name,
            marks=() if driver.database == "sqlite" else (*MARKS[driver.database], pytest.mark.thorough),
        )
        for driver in DRIVERS
        if not driver.is_async
    ],
    indirect=True,
)
#: A topic of the broker's own.
NOBODY_MAY_WRITE = "SCHEDULE_TOPIC_XXXX"
CALLS = ("claim", "publish", "recover", "finish")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "broker") as running:
        yield running


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url_of(broker), group="orders") as client:
        yield client


def url_of(broker: Running) -> str:
    return f"rocketmq://127.0.0.1:{broker.ports.names}"


async def relay(shelf: Shelf, broker: Running, **options: Any) -> Relay:
    publisher = HalfmqPublisher(url_of(broker), group="orders-relay")
    return Relay(await shelf.rows(lease_s=LEASE_S, **options), publisher, workers=1, poll_s=0.02)


async def read(broker: Running, name: str = "t") -> list[str]:
    """Bodies of all messages of a topic that a consumer sees, by queue."""
    client = await broker.client()
    topic = broker.state.topics_by_name.get(name)
    queues = range(len(topic.ends)) if topic is not None else ()
    return [body.decode() for queue in queues for body in await half_batches.bodies(client, name, queue)]


@EACH
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
async def test_each_fault_at_each_step(shelf: Shelf, broker: Running, call: str, fault: str) -> None:
    shelf.send("k", "k", "k", "k2", "")
    faults = Once(call, fault, LEASE_S)
    if call == "recover":
        # There is something to recover only after a relay was killed.
        with pytest.raises(Killed):
            await run_until_empty(shelf, broker, Once("publish", "kill after", LEASE_S))
    try:
        await run_until_empty(shelf, broker, faults)
    except Killed:
        await run_until_empty(shelf, broker, Once("", "", LEASE_S))
    assert faults.story, "it has happened"
    found = await read(broker)
    assert sorted(found) == ["1", "2", "3", "4", "5"]
    assert [body for body in found if body in "123"] == ["1", "2", "3"], "the order of a key"


async def run_until_empty(shelf: Shelf, broker: Running, faults: Faults) -> None:
    made = await relay(shelf, broker, messages_max=2)
    made._rows = FaultyRows(made._rows, faults)  # type: ignore[assignment]
    made._publisher = FaultyPublisher(made._publisher, faults)  # type: ignore[assignment]
    stop = asyncio.Event()
    task = asyncio.create_task(made.run(stop))
    try:
        await until(lambda: task.done() or not shelf.states(), "the outbox is empty")
    finally:
        stop.set()
        await soon(task)


@EACH
async def test_killed_between_prepare_and_commit(shelf: Shelf, broker: Running) -> None:
    shelf.send("k", "k")
    made = await relay(shelf, broker)
    publisher: Any = made._publisher
    await publisher.open()

    async def commit(_prepared: object) -> None:
        raise Killed

    publisher._client.commit = commit
    with pytest.raises(Killed):
        await soon(made.run(asyncio.Event()))
    assert shelf.states() == {"1": "W", "2": "W"}
    await run_until_empty(shelf, broker, Once("", "", LEASE_S))
    assert await read(broker) == ["1", "2"]
    assert not [group for group in broker.state.producer_groups.values() if group.undecided]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_message_that_is_refused_stops_its_key_only(shelf: Shelf, broker: Running) -> None:
    shelf.send("bad", topic=NOBODY_MAY_WRITE)
    shelf.send("bad", "good", "good")
    made = await relay(shelf, broker, attempts_max=1)
    async with made.running():
        await until(
            lambda: shelf.states() in ({"1": "A", "2": "B"}, {"1": "A", "2": "W"}), "others went on",
            unless=lambda: "2" not in shelf.states() and "it overtook the refused one",
        )  # fmt: skip
    assert await read(broker) == ["3", "4"]
    assert made.refused == 1


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_batch_that_is_refused_leaves_nothing_undecided(
    shelf: Shelf, broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ROLLBACK of its other messages is lost, and nobody would know them any more once they are published one by one."""

    async def lost(*_: object) -> None: ...

    monkeypatch.setattr(Transactions, "_clean_up", lost)
    for _ in range(20):
        shelf.send("k")
    shelf.send("k", topic=NOBODY_MAY_WRITE)
    async with (await relay(shelf, broker, attempts_max=1)).running():
        await until(lambda: shelf.states() == {"21": "A"}, "the others were published")
    assert not any(group.undecided for group in broker.state.producer_groups.values())


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_refused_message_in_a_batch_of_a_killed_relay_stops_its_key_only(shelf: Shelf, broker: Running) -> None:
    """The batch cannot be settled with its first message, since the broker takes no such message."""
    shelf.send("bad", topic=NOBODY_MAY_WRITE)
    shelf.send(other_key_in_the_lane_of("bad"))
    assert bodies(await (await shelf.rows()).claim()) == ["1", "2"]  # and is killed
    shelf.end_leases()
    async with (await relay(shelf, broker, attempts_max=1)).running():
        await until(lambda: shelf.states() == {"1": "A"}, "the other one was published")
    assert await read(broker) == ["2"]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_refusals_of_a_topic_are_said_once_a_minute(
    shelf: Shelf, broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.send("a", "b", "c", topic=NOBODY_MAY_WRITE)
    made = await relay(shelf, broker, attempts_max=1)
    async with made.running():
        await until(lambda: made.refused == 3, "all are refused")
    assert caplog.text.count("refuses message") == 1


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_broker_that_is_away_is_waited_for(shelf: Shelf, tmp_path: Path) -> None:
    async with serving(tmp_path / "broker") as running:
        ports = running.ports
        made = await relay(shelf, running)
    shelf.send("k")
    stop = asyncio.Event()
    task = asyncio.create_task(made.run(stop))
    async with serving(tmp_path / "broker", port=ports.broker, name_port=ports.names) as again:
        await until(lambda: not shelf.states(), "it was published")
        stop.set()
        await soon(task)
        assert await read(again) == ["1"]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_tables_that_do_not_exist_are_said(shelf: Shelf, broker: Running) -> None:
    shelf.metadata.drop_all(shelf.engine)
    engine = shelf.new_engine()
    made = shelf.outbox.relay(engine, HalfmqPublisher(url_of(broker), group="orders-relay"))
    with pytest.raises(UsageError, match="no table mq_outbox"):
        await soon(made.run(asyncio.Event()))


class TestSettleEarlier:
    """``settle_earlier``: a transaction of an earlier process never becomes visible, unless it is committed."""

    async def test_of_one_that_is_prepared(self, client: AsyncClient, broker: Running) -> None:
        for count in (1, 40):  # single halves, and half batches
            messages = [compose("t", str(number)) for number in range(count)]
            prepared = await client.prepare(messages, tx_id=f"chosen-{count}")
            assert await client.settle_earlier(f"chosen-{count}", compose("t", "x"), broker="halfmq") == ROLLED_BACK
            with pytest.raises(TransactionRefused) as refused:
                await client.commit(prepared)
            assert refused.value.standing == ROLLED_BACK

    async def test_of_one_that_is_committed(self, client: AsyncClient) -> None:
        for count in (1, 40):
            messages = [compose("t", str(number)) for number in range(count)]
            await client.commit(await client.prepare(messages, tx_id=f"chosen-{count}"))
            for _ in range(2):
                assert await client.settle_earlier(f"chosen-{count}", compose("t", "x"), broker="halfmq") == COMMITTED

    async def test_of_one_that_has_not_arrived_yet(self, client: AsyncClient, broker: Running) -> None:
        assert await client.settle_earlier("chosen", compose("t", "x"), broker="halfmq") == ROLLED_BACK
        with pytest.raises(TransactionRefused) as refused:
            await client.prepare([compose("t", "late")], tx_id="chosen")
        assert refused.value.standing == ROLLED_BACK
        assert await read(broker) == []

    async def test_half_of_it_has_arrived(self, client: AsyncClient, broker: Running) -> None:
        """A process died within its prepare: the broker has some of the half batches."""
        from halfmq.client.prepare import Preparation

        context = client._here()
        preparation = Preparation(context, "orders", "chosen", "")
        await preparation.compose([compose("t", bytes(100_000)) for _ in range(40)], "", "halfmq")
        connections = await preparation._connections()
        await preparation._divide(connections)
        assert preparation._batches is not None
        whole, preparation._batches = preparation._batches, preparation._batches[:1]
        assert len(whole) > 1
        await preparation._send_missing_batches(connections)
        with pytest.raises(TransactionUndecided):
            await client.prepare([compose("t", "other")], tx_id="chosen")
        assert await client.settle_earlier("chosen", compose("t", "x"), broker="halfmq") == ROLLED_BACK
        assert not broker.state.producer_groups["orders"].undecided

    async def test_with_a_message_that_the_broker_does_not_take(self, client: AsyncClient) -> None:
        """What is known of the transaction is said nevertheless."""
        refused = compose(NOBODY_MAY_WRITE, "x")
        assert await client.settle_earlier("new", refused, broker="halfmq") is None
        prepared = {
            name: await client.prepare([compose("t", str(number)) for number in range(count)], tx_id=f"{name}-{count}")
            for name, count in (("committed", 40), ("rolled-back", 1), ("undecided", 1), ("batches", 40))
        }
        await client.commit(prepared["committed"])
        await client.rollback(prepared["rolled-back"])
        found = [await client.settle_earlier(one.tx_id, refused, broker="halfmq") for one in prepared.values()]
        assert found == [COMMITTED, ROLLED_BACK, ROLLED_BACK, ROLLED_BACK]
        for name in ("undecided", "batches"):
            with pytest.raises(TransactionRefused):
                await client.commit(prepared[name])
