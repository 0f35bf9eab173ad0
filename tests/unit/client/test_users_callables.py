"""Every function that an application gives to halfmq, and that does nothing when it is called: it is never taken for done.

A plain one that returns a coroutine is awaited, or refused; a lambda that calls a coroutine function is the usual way to get there. A
generator function is refused where it is given, and a generator that another function returns is a failure of that function.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from tests.support.scripted_broker import URL, ScriptedBroker, client_of, in_place
from tests.support.virtual_time import in_virtual_time
from tests.unit.client.test_app import app_of
from tests.unit.client.test_handler import Inbox as MemoryInbox
from tests.unit.client.test_handler import handler, sessions
from tests.unit.client.test_message import message

import halfmq
import halfmq.sql
from halfmq import Outcome, TransactionListener
from halfmq.client.check_listener import check_of
from halfmq.client.shapes import sessions_of
from halfmq.client.tcc import AsyncTcc, BlockingTcc, Branches
from halfmq.client.user_code import Done, call, plain_result
from halfmq.errors import UsageError
from halfmq.sql import Inbox, MarkerTable
from halfmq.sql.alchemy import marker_rows

#: What the plain function is given, and what it returns.
Plain = Callable[..., Any]


async def handled(plain: Plain) -> None:
    await handler(plain)(message())


async def handled_with_an_inbox(plain: Plain) -> None:
    inbox = MemoryInbox()
    try:
        await handler(plain, inbox, sessions)(message(UNIQ_KEY="U"))
    finally:
        assert inbox.seen == set()


async def handled_and_sent(plain: Plain) -> None:
    inbox = MemoryInbox()
    one = handler(plain, inbox, sessions)
    one.transaction = SimpleNamespace(block=lambda session, loop: nullcontext(None))  # type: ignore[assignment]
    try:
        await one(message(UNIQ_KEY="U"))
    finally:
        assert inbox.seen == set()


async def checked(plain: Plain) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        mq.add_check("c", plain)
        await mq.prepare([halfmq.compose("orders", b"x")], tx_id="T-1", name="c")
        broker.check(0, "orders")
        await asyncio.sleep(0.1)


class Listens(TransactionListener):
    def __init__(self, plain: Plain) -> None:
        self.plain = plain

    def execute(self, message: Any, arg: Any) -> Any:
        return self.plain()

    def check(self, message: Any) -> Any:
        return self.plain()


async def executed(plain: Plain) -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        receipt = await mq.send_in_transaction("t", b"x", listener=Listens(plain))
    assert receipt.verdict == "COMMITTED"


async def executed_blocking(plain: Plain) -> None:
    broker = ScriptedBroker()
    with halfmq.Client(URL, group="orders", connector=broker.network()) as mq:
        try:
            mq.send_in_transaction("t", b"x", listener=Listens(plain))
        finally:
            assert not broker.visible("t")


async def listener_checked(plain: Plain) -> None:
    transaction = SimpleNamespace(message=message(), remark="")
    assert await call(in_place, check_of(Listens(plain).check), transaction) is Outcome.COMMIT  # type: ignore[arg-type]


async def transacted(plain: Plain) -> None:
    app = app_of(ScriptedBroker().network())
    called = app.transaction("order", checked_elsewhere=True)(lambda tx: plain())
    async with app.run():
        await called()


def tcc_of(cls: Any, **own: Any) -> Any:
    """A block whose branch is begun, and which shows what is confirmed."""
    block = cls.__new__(cls)
    block._tx, block._session, block.confirmed = SimpleNamespace(), None, []
    block._add_confirm = lambda *given: block.confirmed.append(given)
    block.__dict__.update(own)
    return block


async def tried(plain: Plain) -> None:
    async def begin(*given: object) -> None: ...

    block = tcc_of(AsyncTcc, _branches=SimpleNamespace(begin=begin), _run_blocking=in_place)
    await block.call(plain, {}, confirm="c", cancel="d")
    assert block.confirmed


async def tried_blocking(plain: Plain) -> None:
    block = tcc_of(BlockingTcc, _branches=SimpleNamespace(begin=lambda *given: None), _run=lambda branch: branch)
    try:
        block.call(plain, {}, confirm="c", cancel="d")
    finally:
        assert not block.confirmed


async def keyed(plain: Plain) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata = MetaData()
    inbox = Inbox(metadata, key=plain)
    metadata.create_all(engine)
    with Session(engine) as session, inbox.once(session, message(), group="g"):
        raise AssertionError("it has no key")


async def pruned(plain: Plain) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    markers = old_marker(engine)
    with Session(engine) as session:
        markers.prune(session, older_than_s=3_600, undecided=plain)


async def pruned_async(plain: Plain) -> None:
    engine = create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)
    async with AsyncSession(engine) as session:
        markers = await (await session.connection()).run_sync(old_marker)
        try:
            await markers.prune_async(session, older_than_s=3_600, undecided=plain)
        finally:
            await session.close()
            await engine.dispose()


def old_marker(bind: Any) -> MarkerTable:
    metadata = MetaData()
    markers = MarkerTable(metadata, min_age_s=0)
    metadata.create_all(bind)
    markers._markers._now_ms = lambda: marker_rows.wall_ms() - 7_200_000
    with Session(bind) as session:
        markers._markers.write(session.connection(), "T-1")
        session.commit()
    markers._markers._now_ms = marker_rows.wall_ms
    return markers


async def opened(plain: Plain) -> None:
    sessions_of(plain)


async def answered(plain: Plain) -> None:
    MarkerTable(MetaData()).checker(plain)


AWAITED, REFUSED = True, False
#: By class, method and parameter: what gives the function to halfmq and lets it be called, and what becomes of the coroutine.
TABLE: dict[str, list[tuple[Callable[[Plain], Awaitable[None]], bool]]] = {
    "App.consumer function": [(handled, AWAITED), (handled_with_an_inbox, REFUSED), (handled_and_sent, REFUSED)],
    "App.consumer on_dead": [(handled_with_an_inbox, REFUSED)],
    "App.transaction function": [(transacted, AWAITED)],
    "AsyncClient.add_check check": [(checked, AWAITED)],
    "AsyncClient.send_in_transaction listener": [(executed, AWAITED)],
    "Client.send_in_transaction listener": [(executed_blocking, REFUSED)],
    "AsyncClient.add_listener listener": [(listener_checked, AWAITED)],
    "AsyncTcc.call try_": [(tried, AWAITED)],
    "BlockingTcc.call try_": [(tried_blocking, REFUSED)],
    "App.__init__ sessions": [(opened, REFUSED)],
    "MarkerTable.checker sessions": [(answered, REFUSED)],
    "MarkerTable.prune undecided": [(pruned, REFUSED)],
    "MarkerTable.prune_async undecided": [(pruned_async, AWAITED)],
    "Inbox.__init__ key": [(keyed, REFUSED)],
}
#: The same function on its way: decorators, the blocking face, and `halfmq db prune`.
SAME = {
    "App.add_check check", "App.consumer sessions", "App.transaction_listener", "TransactionFunction.check function", "Client.add_check check",
    "Client.add_listener listener", "MarkerTable.prune_page undecided", "Outbox.prune_page undecided", "App.answer_checks sessions",
    "AsyncClient.answer_checks sessions", "Client.answer_checks sessions",
}  # fmt: skip
#: Not the application's functions, or functions that run others.
OTHERS = {"App.__init__ run_blocking", "AsyncClient.__init__ run_blocking"}


def test_the_table_has_every_callable() -> None:
    classes = [vars(halfmq).get(name) or getattr(halfmq, name) for name in halfmq.__all__]
    classes += [getattr(halfmq.sql, name) for name in halfmq.sql.__all__]
    classes += [AsyncTcc, BlockingTcc, halfmq.client.app.TransactionFunction]
    found = set()
    for cls in classes:
        for name, method in vars(cls).items() if inspect.isclass(cls) else ():
            if (
                inspect.isfunction(method)
                and (name == "__init__" or not name.startswith("_"))
                and is_made_by_users(cls, name)
            ):
                for parameter in inspect.signature(method).parameters.values():
                    said = str(parameter.annotation)
                    if any(
                        word in said
                        for word in (
                            "Callable",
                            "CheckFunction",
                            "TransactionListener",
                            "~_Check",
                            "RunBlocking",
                            "KeyOf",
                        )
                    ):
                        found.add(f"{cls.__name__}.{name} {parameter.name}")
    decorated = {"App.consumer function", "App.transaction function"}
    assert found | decorated == TABLE.keys() | SAME - {"App.transaction_listener"} | OTHERS


def is_made_by_users(cls: type, name: str) -> bool:
    """Whether users call the constructor; other methods of public classes they do."""
    return name != "__init__" or cls.__name__ in (
        "App",
        "AsyncClient",
        "Client",
        "Inbox",
        "MarkerTable",
        "Outbox",
        "Barrier",
    )


@pytest.mark.parametrize(
    ("what", "use", "awaited"), [(what, *case) for what, cases in TABLE.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)  # fmt: skip
@pytest.mark.filterwarnings("error")
@in_virtual_time
async def test_a_coroutine_of_a_plain_function_is_awaited_or_refused(what: str, use: Any, awaited: bool) -> None:
    calls, done = [], []

    async def work(*given: object) -> Any:
        done.append(given)
        return [] if "undecided" in what else Outcome.COMMIT

    def plain(*given: object) -> Any:
        calls.append(given)
        return work(*given)

    if awaited:
        await use(plain)
    else:
        with pytest.raises(UsageError, match="nobody awaits"):
            await use(plain)
    assert (len(done), len(calls)) == (int(awaited), 1)


def yields(*given: object) -> Any:
    yield Outcome.COMMIT


async def yields_async(*given: object) -> Any:
    yield Outcome.COMMIT


async def returns_yields(*given: object) -> Any:
    return yields()


@pytest.mark.parametrize("made", [yields, yields_async, returns_yields])
@pytest.mark.parametrize(
    ("what", "use", "awaited"), [(what, *case) for what, cases in TABLE.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)  # fmt: skip
@in_virtual_time
async def test_a_generator_of_a_plain_function_is_no_success(
    what: str, use: Any, awaited: bool, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if made is returns_yields and not awaited:
        return  # the test above
    with caplog.at_level(logging.ERROR):
        try:
            await use(lambda *given: made(*given))
        except UsageError as error:
            said = str(error)
        else:
            assert use is checked  # nobody waits for its answer
            said = caplog.text
    assert "which never runs" in said or "returned no awaitable" in said


def app() -> halfmq.App:
    return app_of(ScriptedBroker().network(), sessions=sessions)


def tcc(cls: Any, function: Plain) -> Any:
    client: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0), new_transaction_id=lambda: "1")
    block = tcc_of(cls, _branches=Branches(client, 30.0), _run=run)
    return block.call(function, {}, confirm="c", cancel="d")


def listening(*, execute: Plain = yields, check: Plain = yields) -> Listens:
    listener = Listens(yields)
    listener.execute, listener.check = execute, check  # type: ignore[method-assign]
    return listener


def plain(*given: object) -> Outcome:
    return Outcome.COMMIT


#: Where each of the table, and each of ``SAME`` that looks at it by itself, is given to halfmq.
DOORS: dict[str, list[Callable[[Plain], Any]]] = {
    "App.consumer function": [
        lambda f: app().consumer("t", group="g")(f),
        lambda f: app().consumer("t", group="g", inbox=MemoryInbox())(f),
    ],
    "App.consumer on_dead": [lambda f: app().consumer("t", group="g", on_dead=f)(plain)],
    "App.transaction function": [lambda f: app().transaction("order")(f)],
    "App.add_check check": [lambda f: app().add_check("c", f)],
    "TransactionFunction.check function": [lambda f: app().transaction("order")(plain).check(f)],
    "AsyncClient.add_check check": [lambda f: client_of(ScriptedBroker().network()).add_check("c", f)],
    "AsyncClient.add_listener listener": [
        lambda f: client_of(ScriptedBroker().network()).add_listener(listening(execute=f, check=plain)),
        lambda f: client_of(ScriptedBroker().network()).add_listener(listening(execute=plain, check=f)),
    ],
    "AsyncClient.send_in_transaction listener": [
        lambda f: run(
            client_of(ScriptedBroker().network()).send_in_transaction(
                "t", b"x", listener=listening(execute=f, check=plain)
            )
        )
    ],
    "Client.send_in_transaction listener": [
        lambda f: sent_blocking(listening(execute=f, check=plain)),
        lambda f: sent_blocking(listening(execute=plain, check=f)),
    ],
    "AsyncTcc.call try_": [lambda f: run(tcc(AsyncTcc, f))],
    "BlockingTcc.call try_": [lambda f: tcc(BlockingTcc, f)],
    "Inbox.__init__ key": [lambda f: Inbox(MetaData(), key=f)],
}
#: What is called once, to see what it makes: the generator is refused as a result.
CALLED = {"App.__init__ sessions", "MarkerTable.checker sessions", "MarkerTable.prune undecided", "MarkerTable.prune_async undecided"}  # fmt: skip


def run(work: Any) -> Any:
    return asyncio.run(work) if inspect.iscoroutine(work) else work


def sent_blocking(listener: TransactionListener) -> None:
    broker = ScriptedBroker()
    with halfmq.Client(URL, group="orders", connector=broker.network()) as mq:
        try:
            mq.send_in_transaction("t", b"x", listener=listener)
        finally:
            assert not broker.halves


def test_the_doors_are_those_of_the_table() -> None:
    assert TABLE.keys() | DOORS.keys() == DOORS.keys() | CALLED


@pytest.mark.parametrize("made", [yields, yields_async])
@pytest.mark.parametrize(("what", "door"), [(what, door) for what, doors in DOORS.items() for door in doors])
def test_a_generator_function_is_refused_where_it_is_given(what: str, door: Any, made: Any) -> None:
    with pytest.raises(UsageError, match="is a generator, which would never run"):
        door(made)


def test_a_coroutine_function_as_execute_is_refused_by_the_blocking_client_before_anything_is_sent() -> None:
    async def execute(*given: object) -> Outcome:
        return Outcome.COMMIT

    with pytest.raises(UsageError, match=r"Listens.execute is a coroutine function, which nobody awaits"):
        sent_blocking(listening(execute=execute, check=plain))


def test_what_may_be_awaited_and_is_done_is_no_mistake() -> None:
    done = Done()
    assert plain_result(done, "a handler", "") is done  # ``lambda m, *_: m.compensate(...)``
    assert plain_result(5, "a handler", "") == 5
