"""``crash``: a service dies between any two steps, and its database and its messages agree nevertheless."""

import ast
import asyncio
import inspect
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import insert
from tests.documents.pages import ROOT
from tests.support.waiting import until
from tests.unit.testing.conftest import Shop

from halfmq import App, AsyncClient, Client, Message, Outcome, UsageError
from halfmq.client.direct_delivery import Handling
from halfmq.sql.rules.block import LocalWork
from halfmq.testing import CRASH_POINTS, HANDLER_POINTS, TRANSACTION_POINTS, Broker, SimulatedCrash, crash
from halfmq.testing.crashes import _Work

pytestmark = pytest.mark.slow

#: From here on the local transaction is committed.
COMMITTED = ("after-local-commit", "before-verdict", "after-verdict")


def sent_ids(broker: Broker, sent: object, topic: str = "order-created") -> list[int]:
    return sorted(message.json()["id"] for message in sent(topic))  # type: ignore[operator]


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_rows_and_messages_agree_wherever_the_service_dies(broker: Broker, shop: Shop, point: str) -> None:
    sent = broker.sent()
    with shop.client() as client:
        shop.place(client, 1)
        with crash(point) as died:
            shop.place(client, 2)
        assert died.happened
        broker.settle()
        shop.place(client, 3)
        orders = shop.rows(shop.orders)
        assert orders == ([1, 2, 3] if point in COMMITTED else [1, 3])
        assert sent_ids(broker, sent) == orders


@pytest.mark.parametrize("caught", ["by the service", "as another error", "in a thread"])
def test_the_client_is_opened_again_whoever_sees_the_crash(broker: Broker, shop: Shop, caught: str) -> None:
    with shop.client() as client:

        def place() -> None:
            with suppress(BaseException):
                shop.place(client, 1)

        if caught == "as another error":
            with suppress(KeyError), crash("after-local-commit"):
                place()
                raise KeyError
        elif caught == "in a thread":
            with crash("after-local-commit") as died:
                thread = threading.Thread(target=place)
                thread.start()
                died.wait()
                thread.join()
        else:
            with crash("after-local-commit"):
                place()
        shop.place(client, 2)
        broker.settle()
        assert shop.rows(shop.orders) == [1, 2]


def test_a_crash_that_can_never_happen_is_refused() -> None:
    with pytest.raises(UsageError, match="times=0"):
        crash("after-prepare", times=0)


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
async def test_the_asynchronous_client_dies_as_well(broker: Broker, shop: Shop, point: str) -> None:
    sent = broker.sent()
    async with shop.async_client() as client:
        async with crash(point):
            await shop.place_async(client, 2)
        await asyncio.to_thread(broker.settle)
        await shop.place_async(client, 3)
    orders = shop.rows(shop.orders)
    assert orders == ([2, 3] if point in COMMITTED else [3])
    assert sent_ids(broker, sent) == orders


async def test_a_blocking_block_around_an_asynchronous_client_says_where_the_fixture_for_it_is(
    broker: Broker, shop: Shop
) -> None:
    async with shop.async_client() as client:
        with pytest.raises(UsageError, match="an AsyncClient died") as raised, crash("before-prepare"):
            await shop.place_async(client, 1)
        page, _, heading = raised.value.hint.rpartition(": ")[2].partition(", ")
        assert f"## {heading}\n" in (ROOT / page).read_text()
        await client.connect()


def test_only_the_check_knows_after_the_crash(broker: Broker, shop: Shop) -> None:
    """Goal: nothing of the dead process speaks any more. Method: its memory said COMMIT, and the transaction stays undecided."""
    sent = broker.sent()
    with shop.client() as client:
        with crash("before-verdict", restart=False):
            shop.place(client, 1)
        with pytest.raises(UsageError, match="not open"):
            client.send("t", "x")
        assert len(broker.undecided()) == 1
        broker.advance(600)
        assert [one.checks for one in broker.undecided()] == [0], "nobody is there to be asked"
        assert sent("order-created") == []
        client.connect()
        broker.settle()
        assert sent_ids(broker, sent) == [1]


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_no_database_transaction_is_left_open(broker: Broker, shop: Shop, point: str) -> None:
    """Goal: it is as if the connection had ended. Method: the session lives longer than the block, and holds a lock until then."""
    with shop.client() as client, shop.sessions() as session:
        with crash(point), client.transaction(session, markers=shop.markers) as tx:
            session.execute(insert(shop.orders).values(id=1))
            tx.send("order-created", {"id": 1})
        assert not session.in_transaction()
        shop.place(client, 2)
        broker.settle()
    assert shop.rows(shop.orders)[-1] == 2


def test_a_block_without_a_session_has_the_broker_s_steps(broker: Broker) -> None:
    broker.clear()
    committed: list[str] = []
    with Client(broker.url, group="g") as client:
        client.add_check("n", lambda tx: Outcome.COMMIT if tx.id in committed else Outcome.ROLLBACK)
        for point, is_visible in (
            ("before-prepare", False), ("after-prepare", False), ("before-verdict", True), ("after-verdict", True),
        ):  # fmt: skip
            sent = broker.sent()
            with crash(point), client.begin("n") as tx:
                tx.send("t", point)
                tx.prepare()
                committed.append(tx.id)
            broker.settle()
            assert [message.text() for message in sent("t")] == [point] * is_visible


@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("point", HANDLER_POINTS)
async def test_a_message_has_its_effect_once_wherever_the_consumer_dies(
    broker: Broker, shop: Shop, point: str, awaits: bool
) -> None:
    with shop.client() as client:
        shop.place(client, 1)
        async with crash(point), shop.app(awaits=awaits).run():
            await asyncio.Event().wait()
        has_committed = point in ("after-inbox-commit", "before-ack", "after-ack")
        assert shop.rows(shop.parcels) == [1] * has_committed
        shop.place(client, 2)
        async with shop.app(awaits=awaits).run():
            await until(lambda: shop.rows(shop.parcels) == [1, 2])


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
async def test_a_handler_that_sends_dies_with_rows_and_messages_that_agree(
    broker: Broker, shop: Shop, point: str
) -> None:
    sent = broker.sent()
    app = shop.app(awaits=True, sends=True)
    async with app.run():
        async with crash(point):
            await app.test.deliver("order-created", {"id": 1})
        await asyncio.to_thread(broker.settle)
        assert sent_ids(broker, sent, "parcel-packed") == shop.rows(shop.parcels) == [1] * (point in COMMITTED)


async def test_a_delivery_that_died_is_repeated(shop: Shop) -> None:
    app = shop.app(awaits=True)
    done = await app.test.deliver("order-created", {"id": 1})
    async with crash("before-ack"):
        await app.test.redeliver(done)
    assert (await app.test.redeliver(done)).outcome is Handling.DUPLICATE
    with suppress(SimulatedCrash):
        async with crash("before-inbox-commit"):
            await app.test.deliver("order-created", {"id": 2})
    assert shop.rows(shop.parcels) == [1]


def test_a_point_that_is_not_reached_fails_the_test(broker: Broker, shop: Shop) -> None:
    with shop.client() as client:
        with pytest.raises(AssertionError, match="the crash point before-ack was not reached"), crash("before-ack"):
            shop.place(client, 1)
        with crash("after-verdict", times=2):
            shop.place(client, 2)
            shop.place(client, 3)
        with pytest.raises(KeyError), crash("after-verdict"):
            raise KeyError
        with pytest.raises(UsageError, match="no crash point 'never'"):
            crash("never")
        with crash("after-verdict"):
            with pytest.raises(UsageError, match="open already"), crash("before-ack"):
                pass
            shop.place(client, 4)
        shop.place(client, 5)
        assert shop.rows(shop.orders) == [1, 2, 3, 4, 5]


async def test_a_crash_in_a_task_group_is_one(broker: Broker, shop: Shop) -> None:
    async with shop.async_client() as client:
        async with crash("after-verdict"), asyncio.TaskGroup() as tasks:
            tasks.create_task(shop.place_async(client, 1))
        await shop.place_async(client, 2)


def test_afterwards_the_client_is_what_it_was() -> None:
    before = [AsyncClient.prepare, AsyncClient.commit, Message.ack, App.__init__]
    with pytest.raises(AssertionError, match="not reached"), crash("before-ack"):
        meanwhile = [AsyncClient.prepare, AsyncClient.commit, Message.ack, App.__init__]
    assert [one is other for one, other in zip(meanwhile, before, strict=True)] == [False, False, False, True]
    assert [AsyncClient.prepare, AsyncClient.commit, Message.ack, App.__init__] == before


def test_every_step_of_a_block_is_known() -> None:
    """A step that is added to ``LocalWork`` has no crash points until somebody has thought of it here."""
    steps = {
        name
        for name, one in vars(LocalWork).items()
        if (not name.startswith("_") and callable(one)) or name == "may_fall_back"
    }
    #: Those with a point before and after, and those that are between two points.
    pointed = {name for name in vars(_Work) if not name.startswith("_")}
    assert pointed == {"begin", "call_after_commit", "commit"}
    assert steps - pointed == {"refuse_ended", "collect", "ready", "may_fall_back", "fall_back", "abandon"}
    names = {point.partition("-")[2] for point in CRASH_POINTS}
    assert len(CRASH_POINTS) == 2 * len(names) == 16


def test_every_request_of_a_block_has_a_crash_point() -> None:
    import halfmq.client.transaction_block as own
    import halfmq.sql.rules.block as sql

    asked = set()
    for module in (own, sql):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if (
                isinstance(node, ast.Await)
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Attribute)
            ):
                owner = ast.unparse(node.value.func.value)
                if owner in ("self._calls", "calls"):
                    asked.add(node.value.func.attr)
    assert asked == {"prepare", "commit", "rollback", "finish"}
    before = {name: getattr(AsyncClient, name) for name in asked}
    with pytest.raises(AssertionError, match="not reached"), crash("before-ack"):
        replaced = {name for name in asked if getattr(AsyncClient, name) is not before[name]}
    assert replaced == asked


_PROGRAM = """
import sys
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert
from sqlalchemy.orm import sessionmaker
from halfmq import Client
from halfmq.sql import MarkerTable

engine = create_engine("sqlite:///shop.db")
metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
markers = MarkerTable(metadata)
metadata.create_all(engine)
with Client(sys.argv[1], group="shop") as client:
    client.answer_checks(markers, sessionmaker(engine))
    with sessionmaker(engine)() as session, client.transaction(session, markers=markers) as tx:
        session.execute(insert(orders).values(id=7))
        tx.send("order-created", {"id": 7})
print("not reached")
"""


@pytest.mark.parametrize("point", ["before-local-commit", "after-local-commit"])
def test_a_program_kills_itself_at_a_crash_point(broker: Broker, shop: Shop, tmp_path: Path, point: str) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "halfmq.testing.crashes", point, "program.py", broker.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-9, ""), done.stderr
    assert len(broker.undecided()) == 1
    sent = broker.sent()
    with shop.client():
        broker.settle()
    with sqlite3.connect(tmp_path / "shop.db") as database:
        rows = [number for (number,) in database.execute("SELECT id FROM orders")]
    assert rows == [7] * (point == "after-local-commit")
    assert sent_ids(broker, sent) == rows
    wrong = subprocess.run([*command[:3], "never"], capture_output=True, text=True, timeout=120, check=False)
    assert wrong.returncode == 1
    assert "points: before-marker" in wrong.stderr
