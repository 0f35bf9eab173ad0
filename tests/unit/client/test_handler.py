"""What a handler is called with; the inbox's block around it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.support.scripted_broker import in_place
from tests.support.virtual_time import run
from tests.unit.client.test_message import message

from halfmq.client.handler import Handler
from halfmq.client.message import Message
from halfmq.errors import UsageError


@dataclass
class Event:
    id: int


class Inbox:
    """Knows ids it has seen; the block it gives fits the session it is given."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.ended: list[str] = []

    def once(self, session: Any, message: Message, *, group: str) -> Any:
        first = message.message_id not in self.seen

        @contextmanager
        def block() -> Iterator[bool]:
            yield first
            self.seen.add(message.message_id)

        @asynccontextmanager
        async def block_async() -> AsyncIterator[bool]:
            yield first
            self.seen.add(message.message_id)

        return block_async() if session == "async session" else block()


@asynccontextmanager
async def async_sessions() -> AsyncIterator[str]:
    yield "async session"


@contextmanager
def sessions() -> Iterator[str]:
    yield "session"


def handler(function: Any, inbox: Any = None, opener: Any = None) -> Handler:
    once = None if inbox is None else partial(inbox.once, group="g")
    return Handler(function, once=once, sessions=opener, run_blocking=in_place)


def test_annotation_says_what_the_body_is() -> None:
    got: list[Any] = []

    async def whole(message: Message) -> None:
        got.append(type(message).__name__)

    async def bare(message) -> None:  # type: ignore[no-untyped-def]
        got.append(type(message).__name__)

    def typed(event: Event) -> None:
        got.append(event)

    def raw(body: bytes) -> None:
        got.append(body)

    for function in (whole, bare, typed, raw):
        run(handler(function)(message()))
    assert got == ["Message", "Message", Event(7), b'{"id":7}']


@pytest.mark.parametrize("is_async", [True, False])
def test_inbox_lets_a_message_through_once_with_a_session(is_async: bool) -> None:
    got: list[Any] = []
    inbox = Inbox()

    async def bill_async(event: Event, session: str) -> None:
        got.append((event, session))

    def bill(event: Event, session: str) -> None:
        got.append((event, session))

    one = handler(bill_async, inbox, async_sessions) if is_async else handler(bill, inbox, sessions)
    for _ in range(2):
        run(one(message(UNIQ_KEY="U")))
    assert got == [(Event(7), "async session" if is_async else "session")]


def test_failed_handler_is_not_remembered_by_the_inbox() -> None:
    inbox = Inbox()

    async def fail(event: Event, session: str) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        run(handler(fail, inbox, async_sessions)(message(UNIQ_KEY="U")))
    assert inbox.seen == set()


def test_a_block_that_does_not_fit_the_function_is_refused() -> None:
    async def bill_async(event: Event, session: str) -> None: ...

    def bill(event: Event, session: str) -> None: ...

    @asynccontextmanager
    async def wrong_async() -> AsyncIterator[str]:
        yield "session"

    @contextmanager
    def wrong() -> Iterator[str]:
        yield "async session"

    with pytest.raises(UsageError, match="async_sessionmaker"):
        run(handler(bill_async, Inbox(), wrong_async)(message()))
    with pytest.raises(UsageError, match="sessionmaker"):
        run(handler(bill, Inbox(), wrong)(message()))


def test_a_parameter_that_is_annotated_message_gets_it_beside_the_body() -> None:
    got: list[Any] = []

    async def beside(event: Event, message: Message) -> None:
        got.append((event, message.offset))

    def last(event: Event, session: str, message: Message) -> None:
        got.append((event, session, message.offset))

    def between(event: Event, message: Message, session: str) -> None:
        got.append((event, session, message.offset))

    run(handler(beside)(message()))
    for number, function in enumerate((last, between)):
        run(handler(function, Inbox(), sessions)(message(UNIQ_KEY=f"U{number}")))
    assert got == [(Event(7), 41), (Event(7), "session", 41), (Event(7), "session", 41)]
