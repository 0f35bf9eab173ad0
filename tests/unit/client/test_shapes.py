"""A function of the wrong shape is refused when it is decorated, with a text that shows the right one."""

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.support.asyncapi_schema import accepts
from tests.support.scripted_broker import URL

from halfmq.client.app import App
from halfmq.client.async_client import AsyncClient
from halfmq.client.message import Message
from halfmq.errors import UsageError
from halfmq.sql import Inbox, MarkerTable, Outbox

INBOX = Inbox(MetaData())
OUTBOX = Outbox(MetaData())
MARKERS = MarkerTable(MetaData())
BLOCKING = sessionmaker(create_engine("sqlite://"))
ASYNC = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))


def none() -> None: ...
def one(a: Message) -> None: ...
def two(a: Message, b: Any) -> None: ...
def three(a: Message, b: Any, c: Any) -> None: ...
def optional(a: Message, b: Any = None, c: Any = None) -> None: ...
def keyword(a: Message, *, b: Any) -> None: ...
async def async_none() -> None: ...
async def async_one(a: Message) -> None: ...
async def async_two(a: Message, b: Any) -> None: ...
async def async_three(a: Message, b: Any, c: Any) -> None: ...


def generator(a: Message) -> Iterator[None]:
    yield


async def async_generator(a: Message) -> AsyncIterator[None]:
    yield


class Callables:
    """As functions: an object that is called, plain or as a coroutine function, and methods."""

    def one(self, a: Message) -> None: ...
    async def async_two(self, a: Message, b: Any) -> None: ...


class AsyncTwo:
    async def __call__(self, a: Message, b: Any) -> None: ...


EVERY: list[Any] = [
    none, one, two, three, optional, keyword, async_none, async_one, async_two, async_three, generator, async_generator,
    Callables, Callables().one, Callables().async_two, AsyncTwo(), functools.partial(two, b=1), functools.partial(async_three, c=1),
    "no function",
]  # fmt: skip


class Row(NamedTuple):
    """A way to register a function, and which of ``EVERY`` it accepts."""

    register: Callable[[Any], Any]
    accepted: list[int]
    shown: str


def app() -> App:
    return App(URL, group="g")


def consumer(**options: Any) -> Callable[[Any], Any]:
    return lambda function: app().consumer("t", group="g", **options)(function)


ONE = [1, 4, 7, 13, 16]
TABLE = {
    "handler": Row(consumer(), ONE, "def handle(message)"),
    "inbox, blocking": Row(consumer(inbox=INBOX, sessions=BLOCKING), [2, 4], "def handle(message, session)"),
    "inbox, async": Row(consumer(inbox=INBOX, sessions=ASYNC), [8, 14, 15, 17], "async def handle(message, session)"),
    "inbox, sessions of the app": Row(
        lambda function: App(URL, group="g", sessions=ASYNC).consumer("t", group="g", inbox=INBOX)(function),
        [8, 14, 15, 17],
        "async def handle(message, session)",
    ),
    "inbox and outbox": Row(
        consumer(inbox=INBOX, sessions=BLOCKING, outbox=OUTBOX), [3, 4], "def handle(message, session, tx)"
    ),
    "inbox and markers, async": Row(
        consumer(inbox=INBOX, sessions=ASYNC, markers=MARKERS), [9], "async def handle(message, session, tx)"
    ),
    "on_dead, beside a handler that is right": Row(
        lambda function: app().consumer("t", group="g", inbox=INBOX, sessions=BLOCKING, on_dead=function)(two),
        [2, 4],
        "def handle(message, session)",
    ),
    "outbox, without an inbox": Row(consumer(outbox=OUTBOX), [], "inbox=Inbox(metadata)"),
    "inbox, without sessions": Row(consumer(inbox=INBOX), [], "sessions=sessionmaker(engine)"),
    "check": Row(lambda function: AsyncClient(URL, group="g").add_check("n", function), ONE, "def check(tx) -> Outcome"),
    "check of a transaction": Row(
        lambda function: app().transaction("n")(lambda tx: None).check(function), ONE, "def check(tx) -> Outcome"
    ),
    "transaction": Row(
        lambda function: app().transaction("n")(function),
        [1, 2, 3, 4, 5, 7, 8, 9, 13, 14, 15, 16, 17],
        "def create_order(tx, order)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLE)
@pytest.mark.parametrize("number", range(len(EVERY)))
def test_shape_is_checked_when_the_function_is_registered(what: str, number: int) -> None:
    row = TABLE[what]
    if number in row.accepted:
        row.register(EVERY[number])
        return
    with pytest.raises(UsageError) as refused:
        row.register(EVERY[number])
    assert row.shown in str(refused.value)


def test_text_says_what_is_wrong() -> None:
    for function, text in (
        (three, "three is called with 2 arguments, and takes (a: "),
        (async_two, "async_two is a coroutine function; it should be a handler with an inbox and a sessionmaker"),
        (generator, "generator is a generator, which would never run"),
        ("no function", "'no function' is not a function"),
    ):
        with pytest.raises(UsageError) as refused:
            consumer(inbox=INBOX, sessions=BLOCKING)(function)
        assert text in str(refused.value)


class Plain:
    """No dataclass: somebody forgot to say that."""

    id: int


def plain(body: Plain) -> None: ...
def with_plain(body: list[Plain], session: Any) -> None: ...
def later(body: "DefinedLater") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def several_later(body: list["DefinedLater"]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def in_a_field(body: "HasLater") -> None: ...


@dataclass
class HasObject:
    one: object


@dataclass
class HasLater:
    one: "DefinedLater"  # type: ignore[name-defined]  # noqa: F821


def taking(body: Any) -> Callable[[Any], None]:
    def handle(given: Any) -> None: ...

    handle.__annotations__["given"] = body
    return handle


class TestTypeThatNoBodyBecomes:
    @pytest.mark.parametrize(
        "register",
        [
            lambda: consumer()(plain),
            lambda: consumer(on_dead=plain)(one),
            lambda: consumer(inbox=INBOX, sessions=BLOCKING)(with_plain),
            lambda: consumer(inbox=INBOX, sessions=BLOCKING, on_dead=with_plain)(two),
            lambda: consumer()(functools.partial(with_plain, session=1)),
        ],
    )
    def test_is_refused_when_the_handler_is_decorated(self, register: Callable[[], Any]) -> None:
        with pytest.raises(UsageError, match=r"Plain'> is not supported \(a dataclass"):
            register()

    @pytest.mark.parametrize("function", [later, several_later, in_a_field])
    async def test_is_refused_when_the_app_runs_if_the_class_follows(
        self, function: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = app()
        made.consumer("t", group="g")(function)
        for ask in (made.test.deliver("t", {"id": 7}), made.run().__aenter__(), _document(made)):
            with pytest.raises(UsageError, match="name 'DefinedLater' is not defined"):
                await ask
        monkeypatch.setitem(globals(), "DefinedLater", Plain)
        for ask in (made.test.deliver("t", {"id": 7}), made.run().__aenter__(), _document(made)):
            with pytest.raises(UsageError, match="Plain'> is not supported"):
                await ask
        monkeypatch.setitem(globals(), "DefinedLater", int)
        assert await _document(made)

    @pytest.mark.parametrize("kind", [object, Iterable[int], dict[str, object], HasObject])
    async def test_what_a_handler_takes_has_a_schema(self, kind: Any) -> None:
        made = app()
        made.consumer("t", group="g")(taking(kind))
        assert accepts(await _document(made), "t", "t-message" if kind is not HasObject else "HasObject", {"one": [7]})


async def _document(made: App) -> dict[str, Any]:
    return made.asyncapi(title="t", version="1")


@contextmanager
def blocking_by_hand() -> Iterator[Session]:
    yield BLOCKING()


@asynccontextmanager
async def async_by_hand() -> AsyncIterator[AsyncSession]:
    yield ASYNC()


async def no_manager() -> AsyncSession:
    return ASYNC()


def not_yet() -> Session:
    raise RuntimeError("configured when the application starts")


@pytest.mark.parametrize(
    ("factory", "accepts"),
    [
        (BLOCKING, [two]),
        (ASYNC, [async_two]),
        (scoped_session(BLOCKING), [two]),
        (async_scoped_session(ASYNC, scopefunc=lambda: 0), [async_two]),
        (lambda: BLOCKING(), [two]),
        (lambda: ASYNC(), [async_two]),
        (blocking_by_hand, [two]),
        (async_by_hand, [async_two]),
        (not_yet, [two, async_two]),
        (no_manager, []),
        (BLOCKING(), []),
        ("sqlite://", []),
    ],
)
def test_every_kind_of_factory_is_known(factory: Any, accepts: list[Any]) -> None:
    for function in (two, async_two):
        if function in accepts:
            consumer(inbox=INBOX, sessions=factory)(function)
        else:
            with pytest.raises(UsageError):
                consumer(inbox=INBOX, sessions=factory)(function)


def test_what_is_no_inbox_and_wrong_arguments_are_refused_as_early() -> None:
    for options in ({"inbox": "inbox", "sessions": BLOCKING}, {"start": "newest"}, {"tags": 1}, {"concurrency": 0}):
        with pytest.raises(UsageError):
            consumer(**options)(one)


class TestMessageBesideTheBody:
    """``def f(event: Order, message: Message)``."""

    def test_shapes_that_fit(self) -> None:
        app = App(URL, sessions=BLOCKING)

        def plain(event: dict[str, int], message: Message) -> None: ...
        def with_session(event: dict[str, int], session: Session, message: Message) -> None: ...
        def before(event: dict[str, int], message: Message, session: Session) -> None: ...
        def with_tx(event: dict[str, int], session: Session, tx: Any, message: Message) -> None: ...

        def later(event: "Later", message: Message) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        app.consumer("t", group="g")(plain)
        app.consumer("t", group="g")(later)
        app.consumer("t", group="g", inbox=INBOX)(with_session)
        app.consumer("t", group="g", inbox=INBOX)(before)
        app.consumer("t", group="g", inbox=INBOX, outbox=OUTBOX)(with_tx)

    def test_shapes_that_do_not(self) -> None:
        app = App(URL, sessions=BLOCKING)

        def no_type(event, message: Message) -> None: ...  # type: ignore[no-untyped-def]
        def twice(event: bytes, message: Message, other: Message) -> None: ...
        def too_many(event: bytes, message: Message, session: Session) -> None: ...
        def too_few(event: bytes, message: Message) -> None: ...

        with pytest.raises(UsageError, match="no type for the body"):
            app.consumer("t", group="g")(no_type)
        with pytest.raises(UsageError, match="takes the message twice"):
            app.consumer("t", group="g")(twice)
        with pytest.raises(UsageError, match="is called with 2 arguments"):
            app.consumer("t", group="g")(too_many)
        with pytest.raises(UsageError, match="is called with 3 arguments"):
            app.consumer("t", group="g", inbox=INBOX)(too_few)
