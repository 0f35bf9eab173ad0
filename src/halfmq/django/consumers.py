"""``@mq.consumer``: handlers of messages that write by Django, and the ``App`` that runs them in ``manage.py halfmq_worker``."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, Final, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, close_old_connections

from halfmq.client.app import CONCURRENCY, App
from halfmq.client.arguments import StartFrom
from halfmq.client.handler_arguments import arguments_of
from halfmq.client.retry_policy import Retry
from halfmq.client.shapes import check_handler
from halfmq.client.user_code import is_async
from halfmq.django.configuration import Configuration
from halfmq.django.inbox import Inbox
from halfmq.errors import UsageError
from halfmq.sql.rules.inbox_key import KeyOf

_Function = TypeVar("_Function", bound=Callable[..., object])


class Registered(NamedTuple):
    """What ``consumer`` was called with."""

    function: Callable[..., Any]
    topics: str | Sequence[str]
    group: str
    #: None: without an inbox.
    inbox: Inbox | None
    on_dead: Callable[..., Any] | None
    #: More arguments of ``App.consumer``.
    options: dict[str, Any]


_registered: Final[list[Registered]] = []


def consumer(
    topics: str | Sequence[str],
    *,
    group: str,
    using: str | None = None,
    inbox: bool = True,
    key: KeyOf | None = None,
    tags: str = "*",
    start: StartFrom = "earliest",
    retries: int | None = None,
    retry: Retry | None = None,
    concurrency: int = CONCURRENCY,
    on_dead: Callable[..., object] | None = None,
) -> Callable[[_Function], _Function]:
    """Decorator for a handler in ``consumers.py`` of an application, which ``manage.py halfmq_worker`` finds and runs.

    ``def f(message)``, ``def f(event: Type)`` to get the body decoded, or ``def f(event: Type, message: Message)`` for both. The decorator
    returns the function as it is, so that a test may call it.

    It runs in ``transaction.atomic(using, durable=True)``, together with the row of its inbox: what it writes to that database happens
    exactly once, whatever is killed and delivered again. The message is acknowledged after COMMIT. ``send_on_commit`` in it, and
    ``mq.atomic(durable=False)``, send messages with the same outcome. ``key``: makes the key of the row from the message; without it that
    is the message id. ``inbox=False``: it runs in no transaction, and again for each delivery, as it should if it takes long or writes
    elsewhere.

    ``on_dead``: called instead of the dead-letter queue, with the same arguments and in the same way. ``tags``, ``start``, ``retries``,
    ``retry``, ``concurrency``: as for ``App.consumer``.

    Raises:
        UsageError: the function has another shape.
    """

    def decorate(function: _Function) -> _Function:
        for one in (function,) if on_dead is None else (function, on_dead):
            if is_async(one):
                raise UsageError(
                    f"{one.__qualname__} is a coroutine function, and Django has no asynchronous transactions",
                    hint="def handle(message): ..., which runs in a thread; async_to_sync in it",
                )
            check_handler(one, None, None)
        options = {"tags": tags, "start": start, "retries": retries, "retry": retry, "concurrency": concurrency}
        rows = Inbox(using or DEFAULT_DB_ALIAS, key) if inbox else None
        _registered.append(Registered(function, topics, group, rows, on_dead, options))
        return function

    return decorate


def registered(groups: Collection[str] = ()) -> list[Registered]:
    """The consumers of ``groups``, or all, that were imported until now."""
    return [one for one in _registered if not groups or one.group in groups]


def databases_of(consumers: Sequence[Registered]) -> list[str]:
    """Where a worker of these consumers needs the tables: for inboxes. A project that sends no transactions is asked for no checks."""
    return [one.inbox.using for one in consumers if one.inbox is not None]


def app_of(wanted: Configuration, consumers: Sequence[Registered], **options: Any) -> App:
    """The app of a worker. It has no producer group, so that nobody asks it for checks. ``options``: more of ``App``.

    Raises:
        UsageError: an argument of a consumer is wrong.
    """
    app = App(wanted.url, **{**wanted.options, **options})
    register: Any = app.consumer
    for one in consumers:
        if one.inbox is None:
            wrapped = _with_connections
            inbox: dict[str, Any] = {}
        else:
            wrapped = _with_session
            inbox = {"inbox": one.inbox, "sessions": fresh_connections}
        on_dead = None if one.on_dead is None else wrapped(one.on_dead)
        register(one.topics, group=one.group, on_dead=on_dead, **inbox, **one.options)(wrapped(one.function))
    return app


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Before and after a handler, close the connections of this thread that no longer work, or are older than CONN_MAX_AGE, as Django does
    for each request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _with_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    def handle(*given: Any) -> Any:
        with fresh_connections():
            return function(*given)

    return update_wrapper(handle, function)


def _with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` in the shape of a handler with an inbox, whose last argument is a session: here nothing, since Django knows the
    connections of a thread."""

    def handle(*given: Any) -> Any:
        return function(*given[:-1])

    update_wrapper(handle, function)
    beside = arguments_of(function, lenient=True).message_at is not None
    names = [*inspect.signature(function).parameters][: 1 + beside]
    handle.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in (*names, "_session")]
    )
    return handle
