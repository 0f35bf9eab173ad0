"""A client that is used from another event loop than its own says so; every coroutine method of every public class."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from tests.support.calls_at_exit import requested
from tests.support.scripted_broker import ScriptedBroker, client_of

from halfmq.client.async_client import AsyncClient
from halfmq.client.consumer import Batch, Consumer
from halfmq.client.coordinator import Coordinator
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.transaction_block import AsyncTransaction
from halfmq.errors import UsageError

ONE = [compose("t", b"x")]


class Listener(TransactionListener):
    def execute(self, message: Message, arg: Any) -> Outcome:
        raise AssertionError("not called")

    def check(self, message: Message) -> Outcome:
        return Outcome.UNKNOWN


class Markers:
    name = "markers"

    def bind(self, client: Any, session: Any, **options: Any) -> Any:
        raise AssertionError("not called")

    bind_async = bind

    def checker(self, sessions: Any) -> Any:
        return lambda _: Outcome.UNKNOWN


class Held(NamedTuple):
    """Made in the first loop."""

    mq: AsyncClient
    messages: Consumer
    message: Message
    batch: Batch
    tx: AsyncTransaction
    prepared: Any
    coordinator: Coordinator


async def each(items: Any) -> None:
    async for _ in items:
        raise AssertionError("no item was expected")


async def called(function: Callable[[], Any]) -> None:
    function()


async def entered(manager: Any) -> None:
    async with manager:
        raise AssertionError("not entered")


Call = Callable[[Held], Awaitable[Any]]

CALLS: dict[type, dict[str, Call]] = {
    AsyncClient: {
        "send": lambda held: held.mq.send("t", b"x"),
        "send_many": lambda held: held.mq.send_many("t", [b"x"]),
        "request": lambda held: held.mq.request("t", b"x"),
        "prepare": lambda held: held.mq.prepare(ONE, tx_id="T-2"),
        "settle_earlier": lambda held: held.mq.settle_earlier("T-2", ONE[0], broker="b"),
        "report_outcome": lambda held: held.mq.report_outcome("T-2", Outcome.COMMIT, "bank"),
        "broker_names": lambda held: held.mq.broker_names(),
        "coordinator": lambda held: called(lambda: held.mq.coordinator("c")),
        "commit": lambda held: held.mq.commit(held.prepared),
        "rollback": lambda held: held.mq.rollback(held.prepared),
        "finish": lambda held: held.mq.finish(held.prepared, Outcome.UNKNOWN),
        "begin": lambda held: called(lambda: held.mq.begin()),
        "transaction": lambda held: called(
            lambda: held.mq.transaction(None, markers=Markers(), checked_elsewhere=True)
        ),
        "tcc": lambda held: called(lambda: held.mq.tcc(None, markers=Markers(), checked_elsewhere=True)),
        "fence": lambda held: held.mq.fence("tcc.1", group="g", broker="b", since=0),
        "relay": lambda held: called(lambda: held.mq.relay(None, None)),
        "send_in_transaction": lambda held: held.mq.send_in_transaction("t", b"x", listener=Listener()),
        "add_listener": lambda held: called(lambda: held.mq.add_listener(Listener())),
        "add_check": lambda held: called(lambda: held.mq.add_check("c", lambda _: Outcome.UNKNOWN)),
        "answer_checks": lambda held: called(lambda: held.mq.answer_checks(Markers(), None)),
        "fetch_checks": lambda held: held.mq.fetch_checks(wait=0.1),
        "answer_check": lambda held: held.mq.answer_check(None, Outcome.UNKNOWN),  # type: ignore[arg-type]
        "undecided": lambda held: held.mq.undecided(["T-1"]),
        "consumer": lambda held: entered(held.mq.consumer("t", group="other")),
        "healthy": lambda held: held.mq.healthy(),
        "found": lambda held: held.mq.found(),
        "close": lambda held: held.mq.close(),
    },
    Coordinator: {
        "recover": lambda held: held.coordinator.recover(),
        "prepare": lambda held: held.coordinator.prepare(ONE),
        "settle": lambda held: held.coordinator.settle("T-1", Outcome.COMMIT),
        "outcome": lambda held: held.coordinator.outcome("T-1"),
    },
    Consumer: {
        "get": lambda held: held.messages.get(0.1),
        "take": lambda held: held.messages.take(1, 0.1),
        "batches": lambda held: each(held.messages.batches(wait=0.1)),
        "close": lambda held: held.messages.close(),
    },
    Message: {
        "retry": lambda held: held.message.retry(),
        "reject": lambda held: held.message.reject(),
        "reply": lambda held: requested(held.message).reply(b"x"),
    },
    Batch: {"retry": lambda held: held.batch.retry()},
    AsyncTransaction: {
        "prepare": lambda held: held.tx.prepare(),
        "rollback": lambda held: held.tx.rollback(),
    },
}

#: They do nothing on a loop. ``connect`` of a client that is open is refused anyhow; ``processing`` calls ``retry`` and ``ack``.
EXEMPT = {
    AsyncClient: {"from_env", "new_transaction_id", "check_functions", "connect"},
    Coordinator: set(),
    Consumer: {"keep_order", "handled", "again", "put_back", "stop"},
    Message: {"ack", "text", "json", "decode", "processing", "compensate"},
    Batch: {"ack"},
    AsyncTransaction: {"send"},
}


def public_methods(owner: type) -> set[str]:
    """Of a class of ours, its bases of ours included."""
    bases = [base for base in owner.__mro__ if base.__module__.startswith("halfmq")]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return {name for name in names if inspect.isroutine(getattr(owner, name))}


def test_the_table_has_every_method() -> None:
    for owner, calls in CALLS.items():
        assert calls.keys() | EXEMPT[owner] == public_methods(owner), owner


@contextmanager
def held_in_its_own_loop() -> Iterator[tuple[asyncio.Runner, Held]]:
    """A client that was opened in a loop which still exists, and does not run."""

    async def hold() -> Held:
        broker = ScriptedBroker(queues=1)
        broker.topics.add("t")
        for _ in range(3):
            broker.append("t", 0, b"x")
        mq = client_of(broker.network())
        await mq.connect()
        messages = mq.consumer("t", group="g")
        await messages.__aenter__()
        message = await messages.get(20)
        batch = await messages.take(1, 20)
        assert message is not None
        assert batch
        tx = mq.begin()
        tx.send("t", b"x")
        await tx.prepare()
        prepared = await mq.prepare(ONE, tx_id="T-1")
        return Held(mq, messages, message, batch, tx, prepared, mq.coordinator("c"))

    with asyncio.Runner() as runner:
        held = runner.run(hold())
        yield runner, held
        if not runner.get_loop().is_closed():
            runner.run(held.mq.close())


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, calls in CALLS.items() for name in calls], ids=str
)
def test_use_in_another_loop_is_refused_and_in_its_own_it_works_on(owner: type, name: str) -> None:
    with held_in_its_own_loop() as (runner, held):
        if (owner, name) == (AsyncTransaction, "prepare"):
            held.tx._prepared = None

        async def other() -> None:
            await CALLS[owner][name](held)

        with pytest.raises(UsageError, match="belongs to another event loop"):
            asyncio.run(other())
        assert runner.run(held.mq.send("t", b"y")).status == "SEND_OK"


def test_a_loop_that_is_closed_is_named() -> None:
    mq = client_of(ScriptedBroker().network())

    async def send() -> None:
        await mq.send("t", b"x")

    async def opened() -> bool:
        await mq.connect()
        return mq.is_ready

    assert asyncio.run(opened())
    assert not mq.is_ready
    with pytest.raises(UsageError, match="another event loop, which is closed"):
        asyncio.run(send())


def test_a_closed_client_may_be_opened_in_another_loop() -> None:
    mq = client_of(ScriptedBroker().network())

    async def use() -> None:
        async with mq:
            await mq.send("t", b"x")

    for _ in range(2):
        asyncio.run(use())
