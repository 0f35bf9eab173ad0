"""Decorated transactions, checks and consumers."""

import asyncio
import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from tests.support.scripted_broker import URL, Dice, Network, ScriptedBroker, in_place
from tests.support.virtual_time import LoopClock, in_virtual_time, run

from halfmq.client.app import App
from halfmq.client.delivery import DEAD_CALLS
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.transaction_block import AsyncTransaction, Transaction
from halfmq.errors import ConnectError, MissingTable, UsageError
from halfmq.model import properties


@dataclass
class Order:
    id: int


def app_of(network: Network, **options: Any) -> App:
    return App(
        URL, group="orders", connector=network, clock=LoopClock(), entropy=Dice(), run_blocking=in_place, **options
    )


@in_virtual_time
async def test_decorated_transaction_commits_on_return_and_rolls_back_on_exception() -> None:
    broker = ScriptedBroker()
    app = app_of(broker.network())

    @app.transaction("order.create", topic="order-created")
    async def create_order(tx: AsyncTransaction, order: Order) -> int:
        tx.send(order, keys=[order.id])
        if order.id < 0:
            raise ValueError("no such order")
        return order.id

    @create_order.check
    async def was_created(tx: Transaction) -> Outcome:
        return Outcome.COMMIT

    async with app.run():
        assert await create_order(Order(7)) == 7
        with pytest.raises(ValueError, match="no such order"):
            await create_order(Order(-1))
    assert broker.visible("order-created") == [b'{"id":7}']


@in_virtual_time
async def test_each_transaction_has_its_own_check() -> None:
    broker = ScriptedBroker()
    app = app_of(broker.network())
    asked: list[str] = []

    @app.transaction("a", topic="t")
    def first(tx: AsyncTransaction) -> None:
        raise AssertionError("not called here")

    @first.check
    def first_check(tx: Transaction) -> Outcome:
        asked.append(f"a {tx.key}")
        return Outcome.COMMIT

    @app.transaction("b", topic="t")
    async def second(tx: AsyncTransaction) -> None:
        tx.send(b"b", key="kb")
        await tx.prepare()
        raise asyncio.CancelledError  # as a crash before the verdict

    @second.check
    async def second_check(tx: Transaction) -> Outcome:
        asked.append(f"b {tx.key}")
        return Outcome.ROLLBACK

    async with app.run():
        with pytest.raises(asyncio.CancelledError):
            await second()
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert asked == ["b kb"]
    assert list(broker.verdicts.values()) == [12]


def test_transaction_without_check_is_warned_of_and_refused_and_a_name_is_taken_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        app = app_of(ScriptedBroker().network())

        @app.transaction("unchecked")
        async def one(tx: AsyncTransaction) -> None:
            raise AssertionError("not called here")

        with pytest.raises(UsageError, match="taken"):

            @app.transaction("unchecked")
            async def two(tx: AsyncTransaction) -> None: ...

        async with app.run():
            with pytest.raises(UsageError, match="undecided forever"):
                await one()  # the function is not run

        @app.transaction("elsewhere", checked_elsewhere=True)
        async def two_(tx: AsyncTransaction) -> str:
            return "ran"

        async with app.run():
            assert await two_() == "ran"

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "unchecked" in caplog.text
    assert "elsewhere" not in caplog.text


@in_virtual_time
async def test_listener_class_for_those_who_come_from_java() -> None:
    broker = ScriptedBroker()
    app = app_of(broker.network())

    @app.transaction_listener("order.create")
    class OrderListener(TransactionListener):
        def execute(self, message: Message, arg: Any) -> Outcome:
            return Outcome.UNKNOWN

        def check(self, message: Message) -> Outcome:
            return Outcome.COMMIT

    async with app.run() as mq:
        receipt = await mq.send_in_transaction("t", b"x", listener=app.listener("order.create"))
        assert receipt.verdict == "UNDECIDED"
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    assert broker.visible("t") == [b"x"]
    with pytest.raises(UsageError, match="nobody"):
        app.listener("nobody")


@in_virtual_time
async def test_consumer_functions_get_decoded_bodies_and_failures_come_again() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    app = app_of(broker.network())
    got: list[Any] = []

    @app.consumer("t", group="billing", concurrency=2)
    async def bill(order: Order) -> None:
        got.append(order)
        if len(got) == 1:
            raise RuntimeError("try again")

    broker.append("t", 0, b'{"id":7}')
    async with app.run():
        await asyncio.sleep(5)
        broker.append("t", 0, b'{"id":8}')
        await asyncio.sleep(4)  # before the first one comes again
    assert got == [Order(7), Order(8)]
    assert len(broker.requests(36)) == 1
    assert broker.offsets["billing", "t", 0] == 2


@in_virtual_time
async def test_end_of_run_waits_for_handlers() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    app = app_of(broker.network())
    done: list[str] = []

    @app.consumer("t", group="g")
    async def slow(message: Message) -> None:
        await asyncio.sleep(5)
        done.append(message.text())

    broker.append("t", 0, b"x")
    async with app.run():
        await asyncio.sleep(2)
    assert done == ["x"]
    assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_end_of_run_starts_no_handler_more_under_a_backlog() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    app = app_of(broker.network())
    begun = 0

    @app.consumer("t", group="g")
    async def handle(message: Message) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.05)

    for _ in range(10_000):
        broker.append("t", 0, b"x")
    async with app.run():
        await asyncio.sleep(2)
        before, end = begun, asyncio.get_running_loop().time()
    assert begun == before > 0
    assert asyncio.get_running_loop().time() - end < 1
    assert broker.offsets["g", "t", 0] == begun


@in_virtual_time
async def test_handler_that_does_not_end_is_cancelled_and_its_message_stays() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    app = app_of(broker.network())

    @app.consumer("t", group="g")
    async def endless(message: Message) -> None:
        await asyncio.sleep(3_600)

    broker.append("t", 0, b"x")
    start = asyncio.get_running_loop().time()
    async with app.run():
        await asyncio.sleep(2)
    assert asyncio.get_running_loop().time() - start < 40
    assert broker.offsets["g", "t", 0] == 0


@in_virtual_time
async def test_health_and_lifespan() -> None:
    app = app_of(ScriptedBroker().network())
    assert not await app.healthy()
    assert not app.is_ready
    async with app.lifespan(object()) as state:
        assert state is None
        assert app.is_ready
        assert await app.healthy()
    assert not app.is_ready


def test_service_starts_without_a_broker_says_so_and_is_ready_later(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        broker.stop()
        app = app_of(broker.network())
        got: list[str] = []

        @app.consumer("t", group="g")
        async def handle(message: Message) -> None:
            got.append(message.text())

        with pytest.raises(ConnectError):
            async with app.run():
                raise AssertionError("not reached")
        async with app.lifespan(object()):
            assert not app.is_ready
            await asyncio.sleep(600)
            assert not app.is_ready
            assert [record.levelname for record in caplog.records if "starts without" in record.message] == ["WARNING"]
            broker.start()
            await asyncio.sleep(4)
            assert app.is_ready
            assert (await app.client().send("t", b"x")).status == "SEND_OK"
            await asyncio.sleep(30)
            assert got == ["x"]
        assert not app.client().is_open

    run(test())
    assert len([line for line in caplog.messages if "the service is ready" in line]) == 1


def test_service_that_ends_before_a_broker_came_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        broker.stop()
        app = app_of(broker.network())
        async with app.lifespan(object()):
            before = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before < 5

    run(test())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_consumers_that_cannot_start_are_said(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        app = app_of(broker.network())
        for _ in range(2):
            app.consumer("t", group="g")(lambda message: None)
        with pytest.raises(UsageError, match="already"):
            async with app.lifespan(object()):
                raise AssertionError("not reached")
        broker.stop()
        async with app.lifespan(object()):
            broker.start()
            await asyncio.sleep(20)
            assert not app.is_ready

    run(test())
    assert len([line for line in caplog.messages if "did not start" in line]) == 1


# --- sharding keys --------------------------------------------------------------------------------------------------


def with_keys(*bodies: str) -> ScriptedBroker:
    """One queue; the first letter of each body is its sharding key, ``-`` for none."""
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    for body in bodies:
        key = {} if body[0] == "-" else {properties.SHARDING_KEY: body[0]}
        broker.append("t", 0, body.encode(), properties.encode({"UNIQ_KEY": body, **key}))
    return broker


class Handling:
    """A handler that notes what begins and ends when."""

    def __init__(self, app: App, **options: Any) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.under_way: list[str] = []
        self.most_at_once = 0
        self.two_of_one_key: list[str] = []
        self.fails: dict[str, int] = {}
        app.consumer("t", group="g", **options)(self.handle)

    async def handle(self, message: Message) -> None:
        body = message.text()
        self.begun.append(body)
        if body[0] != "-" and body[0] in {other[0] for other in self.under_way}:
            self.two_of_one_key.append(body)
        self.under_way.append(body)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        # Earlier ones take longer: whoever handles two of one key at once ends them in the wrong order.
        await asyncio.sleep(5 / (1 + int(body[1:])))
        self.under_way.remove(body)
        if self.fails.get(body):
            self.fails[body] -= 1
            raise RuntimeError("not now")
        self.ended.append(body)

    def ended_of(self, key: str) -> list[str]:
        return [body for body in self.ended if body[0] == key]


@in_virtual_time
async def test_one_sharding_key_is_handled_in_order_and_others_at_the_same_time() -> None:
    bodies = [f"{key}{number}" for number in range(30) for key in "abc-"]
    broker = with_keys(*bodies)
    app = app_of(broker.network())
    handling = Handling(app)
    async with app.run():
        await asyncio.sleep(60)
        for key in "abc":
            assert handling.ended_of(key) == [f"{key}{number}" for number in range(30)]
        assert len(handling.ended_of("-")) == 30
        assert handling.two_of_one_key == []
        assert handling.most_at_once > 4  # the three, and those without a key
        await asyncio.sleep(2)
        assert broker.offsets["g", "t", 0] == len(bodies)


@in_virtual_time
async def test_message_with_a_key_that_fails_holds_its_key_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    broker = with_keys("a0", "a1", "b0", "a2", "-0", "b1")
    app = app_of(broker.network())
    handling = Handling(app)
    handling.fails = {"a0": 2, "a1": 1}
    async with app.run():
        await asyncio.sleep(12)  # a0: 5 s, a pause of 1 s, 5 s, one of 2 s
        assert handling.ended_of("b") == ["b0", "b1"]
        assert handling.ended_of("-") == ["-0"]
        assert handling.begun.count("a0") == 2
        assert "a1" not in handling.begun
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 0  # a kill now brings a0 again, and all behind it
        await asyncio.sleep(30)
        assert handling.ended_of("a") == ["a0", "a1", "a2"]
        assert (handling.begun.count("a0"), handling.begun.count("a1")) == (3, 2)
        assert broker.offsets["g", "t", 0] == 6
    assert broker.requests(36) == []
    assert "1 of 17 times; its key 'a' waits, and it is handled again in 1 s" in caplog.text


@in_virtual_time
async def test_handler_that_awaits_what_was_cancelled_has_failed_and_neither_its_key_nor_its_worker_stops() -> None:
    broker = with_keys("a0", "-0", "a1", "a2")
    app = app_of(broker.network())
    begun: list[str] = []

    @app.consumer("t", group="g", concurrency=1)
    async def handle(message: Message) -> None:
        begun.append(message.text())
        if begun.count(message.text()) == 1 and message.text() in ("a0", "-0"):
            other = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            other.cancel()
            await other

    async with app.run():
        await asyncio.sleep(5)
        assert [body for body in begun if body[0] == "a"] == ["a0", "a0", "a1", "a2"]
        assert [request.ext.origin_msg_id for request in broker.requests(36)] == ["-0"]


@in_virtual_time
async def test_message_that_never_succeeds_goes_to_the_dead_letters_and_its_key_goes_on() -> None:
    broker = with_keys("a0", "a1", "a2")
    app = app_of(broker.network())
    handling = Handling(app, retries=2)
    handling.fails = {"a0": 99}
    async with app.run():
        await asyncio.sleep(60)
    assert handling.begun == ["a0", "a0", "a0", "a1", "a2"]
    assert [back.ext.delay_level for back in broker.requests(36)] == [-1]
    assert broker.offsets["g", "t", 0] == 3


@in_virtual_time
@pytest.mark.parametrize("key", ["-", "a"])
async def test_on_dead_gets_what_would_be_a_dead_letter_and_its_failure_makes_it_one(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a sharding key the broker counts the failures, with one the client does."""
    broker = with_keys(f"{key}0")
    app = app_of(broker.network())
    handled: list[int] = []
    dead: list[int] = []

    async def on_dead(message: Message) -> None:
        dead.append(message.attempt)
        if len(dead) > 1:
            raise RuntimeError("nobody can help")

    @app.consumer("t", group="g", retries=1, on_dead=on_dead)
    async def handle(message: Message) -> None:
        handled.append(message.attempt)
        raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(60)
        assert (len(handled), len(dead)) == (2, 1)
        broker.append("t", 0, b"x", broker.logs["t", 0][0].properties)
        await asyncio.sleep(60)
    assert (len(handled), len(dead)) == (4, 1 + DEAD_CALLS)
    assert [back.ext.delay_level for back in broker.requests(36) if back.ext.delay_level < 0] == [-1]
    assert f"{DEAD_CALLS} of {DEAD_CALLS} times" in caplog.text


@in_virtual_time
@pytest.mark.parametrize("key", ["-", "a"])
async def test_on_dead_that_fails_is_called_again(key: str) -> None:
    """A lost connection to its database must not leave a message that nobody compensates."""
    broker = with_keys(f"{key}0")
    app = app_of(broker.network())
    dead: list[float] = []
    acknowledged: list[int] = []

    async def on_dead(_message: Message) -> None:
        dead.append(asyncio.get_running_loop().time())
        acknowledged.append(broker.offsets.get(("g", "t", 0), 0))
        if len(dead) < DEAD_CALLS:
            raise OSError("the database is away")

    @app.consumer("t", group="g", retries=0, on_dead=on_dead)
    async def handle(_message: Message) -> None:
        raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(60)
    assert [round(later - earlier) for earlier, later in pairwise(dead)] == [1, 2, 4, 8, 16]
    assert not broker.requests(36)
    assert (acknowledged, broker.offsets["g", "t", 0]) == ([0] * DEAD_CALLS, 1)


@in_virtual_time
async def test_a_broker_that_is_away_for_long_makes_no_dead_letter_of_what_on_dead_would_handle() -> None:
    broker = with_keys("-0")
    app = app_of(broker.network())
    calls: list[float] = []

    async def on_dead(_message: Message) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 2 * DEAD_CALLS:
            raise ConnectError("the broker is away")

    @app.consumer("t", group="g", retries=0, on_dead=on_dead)
    async def handle(_message: Message) -> None:
        raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(3600)
    assert len(calls) == 2 * DEAD_CALLS
    assert calls[-1] - calls[0] > 1000
    assert not broker.requests(36)
    assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
@pytest.mark.parametrize("key", ["-", "a"])
@pytest.mark.parametrize("has_on_dead", [False, True])
async def test_a_missing_table_uses_up_no_message(
    key: str, has_on_dead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the message's fault, and the next one would fail as well."""
    broker = with_keys(f"{key}0", f"{key}1")
    app = app_of(broker.network())
    attempts: list[int] = []
    dead: list[str] = []

    async def on_dead(message: Message) -> None:
        dead.append(message.text())
        if len(dead) < 2 * DEAD_CALLS:
            raise MissingTable("there is no table mq_outbox", hint="create it")

    @app.consumer("t", group="g", retries=0, on_dead=on_dead if has_on_dead else None)
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 100:
            raise MissingTable(f"there is no table mq_inbox_{key}{has_on_dead}", hint="create it")
        if has_on_dead:
            raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(3600)
    assert set(attempts) == {1}
    assert not broker.requests(36), "nothing was handed back"
    assert broker.offsets["g", "t", 0] == 2
    assert len(dead) == (2 * DEAD_CALLS + 1 if has_on_dead else 0)
    assert f"wait, since there is no table mq_inbox_{key}{has_on_dead} (create it)" in caplog.text


@in_virtual_time
async def test_on_dead_that_is_to_be_called_again_does_not_hold_up_the_end() -> None:
    broker = with_keys("-9")
    app = app_of(broker.network())

    async def fails(_message: Message) -> None:
        raise OSError("the database is away")

    app.consumer("t", group="g", retries=0, on_dead=fails)(fails)
    async with app.run():
        await asyncio.sleep(20)
        end = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - end < 1
    assert broker.offsets["g", "t", 0] == 0
    assert not broker.requests(36)


@in_virtual_time
async def test_on_dead_that_waits_takes_no_worker() -> None:
    broker = with_keys(*(f"{chr(97 + number)}9" for number in range(10)), *["-9"] * 10, "A9")
    app = app_of(broker.network())
    ended: list[float] = []

    async def fails(message: Message) -> None:
        if message.sharding_key == "A":
            ended.append(asyncio.get_running_loop().time())
        else:
            raise OSError("the database is away")

    app.consumer("t", group="g", retries=0, concurrency=2, on_dead=fails)(fails)
    async with app.run():
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
    assert len(ended) == 1
    assert ended[0] - began < 2
    assert len([back for back in broker.requests(36) if back.ext.delay_level < 0]) == 20


@pytest.mark.parametrize("retries", [0, 1])
@in_virtual_time
async def test_the_log_says_of_the_last_failure_that_the_message_is_a_dead_letter(
    retries: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = with_keys("-9")
    app = app_of(broker.network())

    @app.consumer("t", group="g", retries=retries)
    async def handle(_message: Message) -> None:
        raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(60)
    lines = [line.split("> ", 1)[1] for line in caplog.messages if line.startswith("processing of")]
    last = "failed; this attempt was its last, and it goes to the dead-letter queue %DLQ%g"
    # This broker delivers it nevertheless, with the same number.
    assert lines[: 1 + retries] == ["failed; it is delivered again later"] * retries + [last]


@in_virtual_time
async def test_on_dead_gets_no_message_whose_handler_did_not_fail_when_its_queue_came_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What waits for its next ``on_dead`` is dropped with its queue, and memory of a dropped message is used again for a later one."""
    caplog.set_level(logging.CRITICAL)  # a kept log record keeps its traceback, and so the message
    broker = with_keys(*["-9"] * 50)
    app = app_of(broker.network())
    handled, dead = [], []
    is_well = False

    async def on_dead(message: Message) -> None:
        dead.append(message.offset)
        raise OSError("the database is away")

    @app.consumer("t", group="g", retries=0, on_dead=on_dead)
    async def handle(message: Message) -> None:
        if not is_well:
            raise RuntimeError("not now")
        handled.append(message.offset)

    async with app.run():
        await asyncio.sleep(0.9)
        assert dead == list(range(50))
        is_well = True
        (member,) = app.client()._members.values()
        member._release([queue for queue in member._pullers if queue.topic == "t"])  # and it is taken up anew
        for _ in range(50):
            await asyncio.sleep(0.1)
            broker.append("t", 0, b"-9", b"")
            broker.append("t", 0, b"-9", b"")
        await asyncio.sleep(20)
    assert handled == list(range(150))
    assert dead == list(range(50))


@in_virtual_time
async def test_keys_that_wait_take_no_worker() -> None:
    broker = with_keys(*(f"{chr(97 + number)}9" for number in range(20)), "-9", "A9")
    app = app_of(broker.network())
    handling = Handling(app, concurrency=2)
    handling.fails = {f"{chr(97 + number)}9": 99 for number in range(20)}
    async with app.run():
        await asyncio.sleep(20)
        assert sorted(handling.ended) == ["-9", "A9"]


@in_virtual_time
async def test_key_that_waits_does_not_hold_up_the_end_and_its_messages_stay() -> None:
    broker = with_keys("a9", "a8", "a7")
    app = app_of(broker.network())
    handling = Handling(app)
    handling.fails = {"a9": 99}
    async with app.run():
        await asyncio.sleep(20)
        end = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - end < 1
    assert set(handling.begun) == {"a9"}
    begun = len(handling.begun)
    await asyncio.sleep(120)
    assert len(handling.begun) == begun
    assert broker.offsets["g", "t", 0] == 0


@in_virtual_time
async def test_what_waits_behind_a_key_is_bounded_as_all_that_waits() -> None:
    broker = with_keys("a0", *(f"a{number}" for number in range(1, 1_500)))
    app = app_of(broker.network())
    handling = Handling(app)
    handling.fails = {"a0": 5}
    async with app.run():
        await asyncio.sleep(20)
        (member,) = app.client()._members.values()
        (opened,) = [len(puller._tracker or ()) for puller, _ in member._pullers.values() if not puller.is_retry]
        assert opened <= 1_000 + 1
        await asyncio.sleep(200)
        assert handling.ended_of("a") == [f"a{number}" for number in range(1_500)]


@in_virtual_time
async def test_key_goes_on_when_its_queue_was_given_up_and_came_back() -> None:
    broker = with_keys("a9", "a8")
    app = app_of(broker.network())
    handling = Handling(app)
    handling.fails = {"a9": 2}
    async with app.run():
        await asyncio.sleep(1.2)
        (member,) = app.client()._members.values()
        assert handling.begun == ["a9"]
        member._release([queue for queue in member._pullers if queue.topic == "t"])  # and it is taken up anew
        await asyncio.sleep(30)
        assert handling.ended_of("a") == ["a9", "a8"]
        assert broker.offsets["g", "t", 0] == 2
