"""How the blocking face uses what the asynchronous one does, so that both have the same steps.

``blocking`` runs a whole method on the loop thread. What has to run in the calling thread, since it uses the
application's database connection or calls its functions, is written once, as coroutines: the blocking face gives them
calls that return ``WithoutWaiting``, and runs them with ``finished``.
"""

import functools
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, Protocol, TypeVar, cast

from halfmq.client.arguments import refuse_misspelt
from halfmq.client.loop_thread import loop_thread

if TYPE_CHECKING:
    from typing import ParamSpec

    from halfmq.client.marker_table import CheckFunction
    from halfmq.client.outcome import Outcome
    from halfmq.client.outgoing import OutgoingMessage
    from halfmq.client.receipts import Prepared, TransactionReceipt

    _P = ParamSpec("_P")

#: What examples of asynchronous methods have, and those of blocking ones have not.
_ONLY_ASYNC: Final = re.compile(r"\basync (?=with\b|for\b)|\bawait (?=[\w.]+\()")
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
_T_co = TypeVar("_T_co", covariant=True)


class Face(Protocol[_T_co]):
    """A blocking object over an asynchronous one."""

    def _live(self) -> _T_co:
        """The asynchronous object. Raises UsageError: it cannot be used here and now."""
        ...


def blocking(
    method: "Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]",
) -> "Callable[Concatenate[Face[object], _P], _T]":
    """The method of an asynchronous object, for a calling thread that waits for its result."""

    @like(method)
    def call(face: Face[object], *arguments: Any, **named: Any) -> _T:
        asynchronous = getattr(face._live(), method.__name__)
        try:
            made: Coroutine[Any, Any, _T] = asynchronous(*arguments, **named)
        except TypeError as error:  # of the arguments, since nothing of a coroutine function has run yet
            raise TypeError(str(error).replace(method.__qualname__, _called(method))) from None
        return loop_thread().run(made)

    return cast("Callable[Concatenate[Face[object], _P], _T]", call)


def like(
    method: "Callable[Concatenate[Any, _P], object]",
) -> "Callable[[Callable[..., _T]], Callable[Concatenate[Any, _P], _T]]":
    """Arguments and documentation of an asynchronous ``method`` for a blocking one that does the same by itself, and is not called with
    other arguments."""

    def documented(own: Callable[..., _T]) -> "Callable[Concatenate[Any, _P], _T]":
        @functools.wraps(method)
        def made(*arguments: Any, **named: Any) -> _T:
            refuse_misspelt(named, method, _called(method))
            return own(*arguments, **named)

        made.__qualname__ = _called(method)
        made.__doc__ = _ONLY_ASYNC.sub("", method.__doc__ or "")
        return cast("Callable[Concatenate[Any, _P], _T]", made)

    return documented


def _called(method: Callable[..., object]) -> str:
    """What users call for it without asyncio."""
    return method.__qualname__.removeprefix("Async")


def described_by(method: Callable[..., object]) -> "Callable[[_F], _F]":
    """As ``like``, for a blocking method that spells its own types, since its arguments differ."""
    return cast("Callable[[_F], _F]", like(method))


class WithoutWaiting:
    """The calls of a blocking client that a block makes, as coroutines that return without waiting for an event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.group: str = client.group
        self.new_transaction_id: Callable[[], str] = client.new_transaction_id

    def check_functions(self) -> "dict[str, CheckFunction]":
        return self._client.check_functions()  # type: ignore[no-any-return]

    async def prepare(self, messages: "Sequence[OutgoingMessage]", **named: Any) -> "Prepared":
        return self._client.prepare(messages, **named)  # type: ignore[no-any-return]

    async def commit(self, prepared: "Prepared") -> "TransactionReceipt":
        return self._client.commit(prepared)  # type: ignore[no-any-return]

    async def rollback(self, prepared: "Prepared") -> "TransactionReceipt":
        return self._client.rollback(prepared)  # type: ignore[no-any-return]

    async def finish(self, prepared: "Prepared", outcome: "Outcome", remark: str = "") -> "TransactionReceipt":
        return self._client.finish(prepared, outcome, remark)  # type: ignore[no-any-return]


def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits to its end."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(_T, done.value)
    raise RuntimeError("a step of a blocking block has waited for an event loop")
