"""What an application's functions look like (docs/database.md has the table): checked when they are decorated or
registered, not with the first message. None of them may be a generator, which would never run.
"""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from halfmq.client.handler_arguments import arguments_of
from halfmq.client.user_code import is_async, is_generator, plain_result
from halfmq.errors import UsageError


class Shape(NamedTuple):
    """``example``: how it should look, for messages. ``needs_async``: None: either."""

    what: str
    example: str
    arguments: int
    needs_async: bool | None = None
    #: It may have more arguments than the ones named here.
    is_open: bool = False


class Sessions(Enum):
    """What an application's session factory makes."""

    NONE = "no sessions"
    BLOCKING = "blocking sessions"
    ASYNC = "async sessions"
    #: It cannot be asked yet.
    UNKNOWN = "sessions"


HANDLER: Final = Shape("a handler without an inbox", "def handle(message): ...", 1)
CHECK: Final = Shape("a check", "def check(tx) -> Outcome: ...", 1)
TRANSACTION: Final = Shape("a transaction", "def create_order(tx, order): ...", 1, is_open=True)


def _by_sessions(opened: str, unknown: str, arguments: str) -> dict[Sessions, Shape]:
    """``opened``: the words before the kind of sessionmaker. ``unknown``: of a handler whose kind is not known yet."""
    example, count = f"def handle({arguments}): ...", arguments.count(",") + 1
    return {
        Sessions.BLOCKING: Shape(f"{opened} and a sessionmaker", example, count, needs_async=False),
        Sessions.ASYNC: Shape(f"{opened} and an async_sessionmaker", f"async {example}", count, needs_async=True),
        Sessions.UNKNOWN: Shape(unknown, example, count),
    }


WITH_INBOX: Final = _by_sessions("a handler with an inbox", "a handler with an inbox", "message, session")
WITH_SENDING: Final = _by_sessions(
    "a handler with an inbox, markers or an outbox,",
    "a handler with an inbox, and markers or an outbox",
    "message, session, tx",
)


def sessions_of(factory: Callable[[], Any] | None) -> Sessions:
    """What ``factory`` makes: by the class of a sessionmaker, else by making one session, which needs no connection.

    Raises:
        UsageError: it makes something else.
    """
    if factory is None:
        return Sessions.NONE
    made: Any = getattr(factory, "class_", None)
    if made is None:
        if not callable(factory):
            raise _no_factory(factory)
        try:
            made = factory()
        except Exception:  # noqa: BLE001 - perhaps it is not configured before the application starts
            return Sessions.UNKNOWN
    if hasattr(made, "__aenter__"):
        return Sessions.ASYNC
    if hasattr(made, "__enter__"):
        return Sessions.BLOCKING
    plain_result(made, f"sessions={factory!r}", "sessionmaker(engine), or async_sessionmaker(engine)")
    raise _no_factory(factory)


def refuse_async_sessions(given: Any, call: str) -> None:
    """Raise UsageError if ``given``, for ``call`` of a blocking client, makes async sessions, or is an async engine: its connections would
    belong to the client's own event loop, and fail in the application's."""
    if hasattr(given, "sync_engine") or (callable(given) and sessions_of(given) is Sessions.ASYNC):
        raise UsageError(
            f"{call} needs blocking sessions, not async ones",
            hint="sessionmaker(engine), with an engine of create_engine; async sessions go with AsyncClient and App",
        )


def _no_factory(given: object) -> UsageError:
    return UsageError(
        f"sessions={given!r} makes no sessions", hint="sessionmaker(engine), or async_sessionmaker(engine)"
    )


def check_handler(
    function: Any, inbox: Any, factory: Callable[[], Any] | None, *, sends: bool = False, barrier: Any = None
) -> None:
    """Raise UsageError if ``function`` cannot be a handler with this inbox, or this barrier in its place, and these sessions. ``sends``:
    with markers or an outbox.
    """
    kind, made = (
        ("inbox", "halfmq.sql.Inbox(metadata)") if barrier is None else ("barrier", "halfmq.sql.Barrier(metadata)")
    )
    inbox = inbox if barrier is None else barrier
    if inbox is None:
        if sends:
            raise UsageError(
                f"{_name(function)} has markers or an outbox, and no inbox",
                hint="inbox=Inbox(metadata): a message that is delivered twice would be answered twice",
            )
        _check_arguments(function, HANDLER)
        return
    if not _has_once(inbox, **({"group": "g"} if kind == "inbox" else {})):
        raise UsageError(f"{kind}={inbox!r} is no {kind}", hint=made)
    sessions = sessions_of(factory)
    if sessions is Sessions.NONE:
        raise UsageError(
            f"{_name(function)} has {'an' if kind == 'inbox' else 'a'} {kind} and no sessions",
            hint="App(..., sessions=sessionmaker(engine))",
        )
    _check_arguments(function, (WITH_SENDING if sends else WITH_INBOX)[sessions])


def _check_arguments(function: Any, shape: Shape) -> None:
    """``check_shape`` of a handler, which may take the message beside its body.

    Raises:
        UsageError: see there, and ``arguments_of``.
    """
    session: object = None
    if callable(function) and not inspect.isclass(function):
        takes = arguments_of(function, lenient=True)
        if shape is not HANDLER:
            session = takes.annotation_of_session
        shape = shape._replace(arguments=shape.arguments + (takes.message_at is not None))
    check_shape(function, shape)
    _check_session(function, session)


def _check_session(function: Any, annotation: object) -> None:
    """Raise UsageError if a handler takes a session of the other kind than it gets: a coroutine function gets an async one."""
    takes_async, takes_blocking = hasattr(annotation, "__aenter__"), hasattr(annotation, "__enter__")
    if is_async(function):
        if takes_blocking and not takes_async:
            name = getattr(annotation, "__name__", annotation)
            raise UsageError(
                f"{_name(function)} is a coroutine function, and its session a {name}",
                hint="session: AsyncSession; or a plain function, with sessionmaker(engine)",
            )
    elif takes_async and not takes_blocking:
        name = getattr(annotation, "__name__", annotation)
        raise UsageError(
            f"{_name(function)} is a plain function, and its session an {name}",
            hint="session: Session; or async def, with async_sessionmaker(engine)",
        )


def _has_once(table: Any, **named: str) -> bool:
    """Whether its ``once`` is called as that of an inbox or a barrier; they differ in the ``group``."""
    once = getattr(table, "once", None)
    if not callable(once):
        return False
    try:
        inspect.signature(once).bind(None, None, **named)
    except TypeError:
        return False
    return True


def check_shape(function: Any, shape: Shape) -> None:
    """Raise UsageError, with the right shape, if ``function`` does not have it."""
    wrong = _what_is_wrong(function, shape)
    if wrong:
        raise UsageError(f"{_name(function)} {wrong}; it should be {shape.what}", hint=shape.example)


def _what_is_wrong(function: Any, shape: Shape) -> str:
    if not callable(function) or inspect.isclass(function):
        return "is not a function"
    if is_generator(function):
        return "is a generator, which would never run"
    if shape.needs_async is not None and is_async(function) is not shape.needs_async:
        return "is a plain function" if shape.needs_async else "is a coroutine function"
    try:
        signature = inspect.signature(function)
    except ValueError:  # built in
        return ""
    bind = signature.bind_partial if shape.is_open else signature.bind
    try:
        bind(*[None] * shape.arguments)
    except TypeError:
        return f"is called with {shape.arguments} argument{'s' * (shape.arguments > 1)}, and takes {signature}"
    return ""


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
