"""``crash``: the process of a service dies between any two steps, in a test of that service.

    with crash("after-local-commit"):
        place_order(mq, session, 7)
    halfmq_broker.settle()
    # the database and the messages agree

In the place of the process, the client that is at the point dies: its connections are cut, what only memory knew is gone, an open
database transaction of the block is rolled back, as the database does when a connection ends, and ``SimulatedCrash`` is raised. It is a
BaseException, so that code for errors does not handle it. At the end of the ``with`` block the client that died is opened again: the
service was started anew, with its checks.

The steps are those of the blocks themselves: while ``crash`` is open, they are called through functions that end here. A client that is
not tested pays nothing.

``python -m halfmq.testing.crashes POINT PROGRAM [ARGUMENT ...]`` runs a program that kills itself there (SIGKILL).
"""

import asyncio
import copy
import functools
import os
import runpy
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from difflib import get_close_matches
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, cast

import halfmq.client.delivery as delivery_module
from halfmq.client.async_client import AsyncClient
from halfmq.client.context import ClientContext
from halfmq.client.direct_delivery import DirectConsumer
from halfmq.client.handler import Block, Handler
from halfmq.client.loop_thread import loop_thread
from halfmq.client.message import Message
from halfmq.client.sync import BlockingMessage
from halfmq.client.user_code import is_async
from halfmq.errors import UsageError
from halfmq.sql.rules import block as sql_block

_T = TypeVar("_T")


class _Step(NamedTuple):
    name: str
    #: What is done between the crash points before and after it.
    what: str


#: Of a block of ``mq.transaction(session, ...)``. One of ``mq.begin`` has the second and the last; its local commit is the application's.
_TRANSACTION: Final = (
    _Step("marker", "the marker row is inserted in the database transaction"),
    _Step("prepare", "the broker stores the half messages"),
    _Step("local-commit", "the database commits"),
    _Step("verdict", "the broker takes COMMIT, ROLLBACK or UNKNOWN"),
)
#: Of an ``App`` that handles a message. If its handler sends, the steps of a transaction are between the second and the third.
_HANDLER: Final = (
    _Step("inbox-row", "the inbox row is inserted in the database transaction"),
    _Step("handler", "the handler runs"),
    _Step("inbox-commit", "the database commits the inbox row, and what the handler wrote"),
    _Step("ack", "the message is acknowledged, in memory; its offset is committed within a second"),
)


#: A point in a transaction block, for type checkers; the tables below have the same, and say where each is.
TransactionPoint = Literal[
    "before-marker", "after-marker", "before-prepare", "after-prepare",
    "before-local-commit", "after-local-commit", "before-verdict", "after-verdict",
]  # fmt: skip
#: A point in a consumer's handler.
HandlerPoint = Literal[
    "before-inbox-row", "after-inbox-row", "before-handler", "after-handler",
    "before-inbox-commit", "after-inbox-commit", "before-ack", "after-ack",
]  # fmt: skip
CrashPoint = TransactionPoint | HandlerPoint


def _points(steps: tuple[_Step, ...]) -> Mapping[str, str]:
    return MappingProxyType(
        {f"{when}-{step.name}": f"{when}: {step.what}" for step in steps for when in ("before", "after")}
    )


#: Crash points of a transaction block -> where that is.
TRANSACTION_POINTS: Final = cast(Mapping[TransactionPoint, str], _points(_TRANSACTION))
#: Crash points of a consumer's handler -> where that is.
HANDLER_POINTS: Final = cast(Mapping[HandlerPoint, str], _points(_HANDLER))
#: All of them, for ``@pytest.mark.parametrize("point", CRASH_POINTS)``.
CRASH_POINTS: Final = cast(Mapping[CrashPoint, str], MappingProxyType({**TRANSACTION_POINTS, **HANDLER_POINTS}))


class SimulatedCrash(BaseException):
    """The process would have died here. ``point``: of ``CRASH_POINTS``."""

    def __init__(self, point: str) -> None:
        super().__init__(f"crash at {point}: {CRASH_POINTS[cast(CrashPoint, point)]}")
        self.point = point


class _Steps:
    """Calls ``reached`` at each crash point, while it is installed."""

    def __init__(self) -> None:
        #: Of an ``App``.
        self._workers: set[asyncio.Task[Any]] = set()

    def reached(self, point: str, client: AsyncClient | None) -> None:
        """``client``: that of the process; None: it has none."""
        raise NotImplementedError

    @contextmanager
    def installed(self) -> Iterator[None]:
        places: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
            (AsyncClient, "prepare", self._request("prepare")),
            (AsyncClient, "commit", self._request("verdict")),
            (AsyncClient, "rollback", self._request("verdict")),
            (AsyncClient, "finish", self._request("verdict")),
            (sql_block._Steps, "__init__", self._block),
            (Handler, "_handled", self._handled),
            (Message, "ack", self._ack),
            (BlockingMessage, "ack", self._ack),
            (delivery_module, "work", self._work),
        )
        before = [getattr(owner, name) for owner, name, _ in places]
        try:
            for (owner, name, make), real in zip(places, before, strict=True):
                setattr(owner, name, make(real))
            yield
        finally:
            for (owner, name, _), real in zip(places, before, strict=True):
                setattr(owner, name, real)

    def _request(self, step: str) -> Callable[[Any], Any]:
        """Of a coroutine function of the client, on its loop."""

        def around(real: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
            @functools.wraps(real)
            async def request(client: AsyncClient, *arguments: Any, **named: Any) -> Any:
                self.reached(f"before-{step}", client)
                result = await real(client, *arguments, **named)
                self.reached(f"after-{step}", client)
                return result

            return request

        return around

    def _block(self, real: Callable[..., None]) -> Callable[..., None]:
        """Of ``__init__`` of the steps of a block: its local work goes through ``_Work``."""

        @functools.wraps(real)
        def init(steps: Any, *arguments: Any, **named: Any) -> None:
            real(steps, *arguments, **named)
            steps._work = _Work(steps._work, functools.partial(self.reached, client=_client_of(steps._calls)))
            steps.transaction._work = steps._work

        return init

    def _handled(self, real: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        @functools.wraps(real)
        async def handled(handler: Handler, message: Message) -> None:
            client = _client_behind(message)
            mine = copy.copy(handler)
            mine.function = self._function(handler.function, client)
            begin = handler.once
            if begin is not None:
                mine.once = lambda session, message: self._inbox(begin(session, message), client)
            await real(mine, message)

        return handled

    def _function(self, function: Callable[..., Any], client: AsyncClient | None) -> Callable[..., Any]:
        if is_async(function):

            async def handle_async(*given: Any) -> Any:
                self.reached("before-handler", client)
                result = await function(*given)
                self.reached("after-handler", client)
                return result

            return handle_async

        def handle(*given: Any) -> Any:
            self.reached("before-handler", client)
            result = function(*given)
            self.reached("after-handler", client)
            return result

        return handle

    def _inbox(self, block: Block, client: AsyncClient | None) -> Block:
        @contextmanager
        def sync() -> Iterator[bool]:
            self.reached("before-inbox-row", client)
            with block as first:  # type: ignore[union-attr]
                self.reached("after-inbox-row", client)
                yield first
                self.reached("before-inbox-commit", client)
            self.reached("after-inbox-commit", client)

        @asynccontextmanager
        async def awaited() -> AsyncIterator[bool]:
            self.reached("before-inbox-row", client)
            async with block as first:  # type: ignore[union-attr]
                self.reached("after-inbox-row", client)
                yield first
                self.reached("before-inbox-commit", client)
            self.reached("after-inbox-commit", client)

        return awaited() if isinstance(block, AbstractAsyncContextManager) else sync()

    def _ack(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def ack(message: Message) -> Any:
            client = _client_behind(message)
            self.reached("before-ack", client)
            result = real(message)
            self.reached("after-ack", client)
            return result

        return ack

    def _work(self, real: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        """Of a worker of an ``App``."""

        @functools.wraps(real)
        async def work(*given: Any) -> None:
            if isinstance(given[0], DirectConsumer):  # the test awaits it
                await real(*given)
                return
            worker = asyncio.current_task()
            assert worker is not None
            self._workers.add(worker)
            try:
                await real(*given)
            except SimulatedCrash:
                for other in self._workers - {worker}:
                    other.cancel()
                self.worker_died()
            finally:
                self._workers.discard(worker)

        return work

    def worker_died(self) -> None:
        """A worker of an ``App`` was at the crash point, and nobody awaits it."""


class _Work:
    """A ``LocalWork`` of a block, with its crash points."""

    def __init__(self, work: Any, reached: Callable[[str], None]) -> None:
        self._work = work
        self._reached = reached
        #: The verdict is sent within ``commit``.
        self._is_by_hook = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def begin(self) -> None:
        self._reached("before-marker")
        self._work.begin()
        self._reached_within("after-marker")

    def call_after_commit(self, call: Callable[[], None]) -> bool:
        def committed() -> None:
            self._reached("after-local-commit")
            call()

        self._is_by_hook = self._work.call_after_commit(committed)
        return self._is_by_hook

    def commit(self) -> Any:
        self._reached_within("before-local-commit")
        failed = self._work.commit()
        if failed is None and not self._is_by_hook:
            self._reached("after-local-commit")
        return failed

    def _reached_within(self, point: str) -> None:
        """While a database transaction is open, which nobody ends after the crash."""
        try:
            self._reached(point)
        except BaseException:
            self._work.abandon()
            raise


def _client_of(calls: Any) -> AsyncClient | None:
    """The client that the calls of a block end at."""
    while calls is not None and not isinstance(calls, AsyncClient):
        calls = getattr(calls, "_client", None)
    return calls


def _client_behind(message: Message) -> AsyncClient | None:
    """The client that has received the message; None: it was not received."""
    context: ClientContext | None = getattr(message._delivery, "_context", None)
    return None if context is None else getattr(context.spawn, "__self__", None)


# --- in the place of a process ------------------------------------------------------------------------------------------


#: The one that is open: the steps are the same for all.
_open: "crash | None" = None
_opening: Final = threading.Lock()


class crash(_Steps):  # noqa: N801 - used as a function
    """``with crash(point):`` or ``async with crash(point):`` the first time that ``point`` is reached in the block, the process dies there.

    ``async with`` is for an ``AsyncClient``, and for an ``App``, which is run in the block, which ends when a worker dies. One block at a
    time. ``times``: die when the point is reached for this time.

    The client that died is opened again at the end of the block, also if the service has caught the crash or another thread died; unless
    ``restart=False``, or it is an ``App``'s whose block ended with the crash.

    Raises:
        UsageError: there is no such point, ``times`` is less than 1, or another ``crash`` is open. At the end of the block:
        AssertionError: the point was not reached.
    """

    def __init__(self, point: CrashPoint, *, times: int = 1, restart: bool = True) -> None:
        super().__init__()
        if point not in CRASH_POINTS:
            near = get_close_matches(point, CRASH_POINTS, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"there is no crash point {point!r}{meant}", hint=", ".join(CRASH_POINTS))
        if times < 1:
            raise UsageError(f"times={times}", hint="1: the first time")
        self.point = point
        self._times_left = times
        self._restart = restart
        self._happened = threading.Event()
        #: Held while a thread looks whether it is the one that dies.
        self._reaching = threading.Lock()
        self._dead: AsyncClient | None = None
        #: Of ``async with``.
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._installed = self.installed()

    @property
    def happened(self) -> bool:
        """Whether the point was reached."""
        return self._happened.is_set()

    def wait(self, timeout: float = 10.0) -> None:
        """Wait until the point was reached by another thread, real seconds. Raises AssertionError if it was not."""
        if not self._happened.wait(timeout):
            raise self._not_reached()

    def reached(self, point: str, client: AsyncClient | None) -> None:
        if point != self.point:
            return
        with self._reaching:
            if self.happened:
                return
            self._times_left -= 1
            if self._times_left:
                return
            self._happened.set()
        if client is not None and client._opened:
            self._dead = client
            _on_loop_of(client, functools.partial(_die, client))
        raise SimulatedCrash(point)

    def worker_died(self) -> None:
        if self._task is not None:
            self._cancelled = self._task.cancel()

    # --- the block --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        global _open
        with _opening:
            if _open is not None:
                raise UsageError(f"crash({_open.point!r}) is open already", hint="one after the other")
            if self.happened:
                raise UsageError("this crash has happened", hint="make another one")
            _open = self
        self._installed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        is_ours = self._ended(error)
        client = self._to_restart(error)
        if client is not None:
            if client._context.loop is not loop_thread().loop:
                raise UsageError(
                    "an AsyncClient died",
                    hint="async with crash(...), in a test that is a coroutine; for FastAPI: "
                    "docs/testing-your-service.md, 11. FastAPI, and asynchronous code",
                )
            loop_thread().run(client.connect())
        return is_ours

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        is_ours = self._ended(error)
        client = self._to_restart(error)
        if client is not None:
            if client._context.loop is asyncio.get_running_loop():
                await client.connect()
            else:
                await asyncio.to_thread(loop_thread().run, client.connect())
        return is_ours

    def _ended(self, error: BaseException | None) -> bool:
        """Whether ``error`` is the crash, which ends here. Raises AssertionError: there was none."""
        global _open
        self._installed.__exit__(None, None, None)
        with _opening:
            _open = None
        if error is None and not self.happened:
            raise self._not_reached()
        if self._cancelled and isinstance(error, asyncio.CancelledError):
            assert self._task is not None
            return self._task.uncancel() == 0
        return _is_crash(error)

    def _to_restart(self, error: BaseException | None) -> AsyncClient | None:
        """Not if the block of an ``App`` has ended with the crash: then its owner runs it again."""
        return self._dead if self._restart and not isinstance(error, asyncio.CancelledError) else None

    def _not_reached(self) -> AssertionError:
        return AssertionError(f"the crash point {self.point} was not reached ({CRASH_POINTS[self.point]})")


def _is_crash(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):  # of a task group
        return error.split(SimulatedCrash)[1] is None
    return isinstance(error, SimulatedCrash)


def _on_loop_of(client: AsyncClient, call: Callable[[], None]) -> None:
    """Call it on the client's event loop, from wherever this is, and wait."""
    loop = client._context.loop
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        call()
        return

    async def there() -> None:
        call()

    asyncio.run_coroutine_threadsafe(there(), loop).result(10)


def _die(client: AsyncClient) -> None:
    """As at the end of its process: nothing is finished, nobody is told, and it is not open any more. What the application has registered
    stays, as the application's start registers it again."""
    context = client._context
    tasks = set(client._tasks)
    if client._made_transactions is not None:
        tasks |= client._made_transactions._background
    if client._made_check_listener is not None:
        tasks |= client._made_check_listener._tasks
    for member in client._members.values():
        tasks |= {*member._tasks, *member._ending, *(task for _, task in member._pullers.values())}
    for task in tasks:
        task.cancel()
    for pool in (context.brokers, client._names):
        for connection in pool.established():
            transport = connection._transport
            connection._end("the process died")
            if transport is not None:
                transport.abort()
        pool.close()
    client._opened = False


# --- in a process of its own ------------------------------------------------------------------------------------------


class _Kill(_Steps):
    """The real thing."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point

    def reached(self, point: str, client: AsyncClient | None) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Run a program, which is killed at the crash point.

    Raises:
        SystemExit: the arguments are wrong.
    """
    if len(arguments) < 2 or arguments[0] not in CRASH_POINTS:
        sys.exit(
            "usage: python -m halfmq.testing.crashes POINT PROGRAM [ARGUMENT ...]\npoints: " + ", ".join(CRASH_POINTS)
        )
    point, *sys.argv = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    with _Kill(point).installed():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
