"""What a handler function is called with, by the annotations of its parameters: the first one says into what the body is decoded, and one
that is annotated ``Message`` gets the message beside it, wherever it stands.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

from halfmq.client.bodies import SUPPORTED, why_unsupported
from halfmq.client.message import Message
from halfmq.errors import UsageError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HandlerArguments(NamedTuple):
    """``into``: what the body is decoded into, for the first parameter; None: that gets the message. ``message_at``: the number of the
    parameter that gets the message beside it, from 1 since 0 is the first; None: there is none.
    """

    into: Any
    message_at: int | None
    #: Of the second argument, or the one behind the message: the session, in a handler with an inbox. None: it has none.
    annotation_of_session: Any = None


def arguments_of(function: Callable[..., Any], *, lenient: bool = False) -> HandlerArguments:
    """The arguments of ``function``. ``lenient``: an annotation that cannot be read yet, since its class follows, is some class.

    Raises:
        UsageError: an annotation cannot be read, no body can be decoded into it, or it takes the message twice.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # built in
        return HandlerArguments(None, None)
    # Of a partial or an object that is called: what they call.
    annotated: Any = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    is_read = True
    try:
        hints = get_type_hints(annotated)
    except NameError as error:
        if not lenient:
            raise _unreadable(function, error) from error
        hints, is_read = dict(getattr(annotated, "__annotations__", {})), False
    into = hints.get(parameters[0].name) if parameters else None
    if into is Any or _is_message(into):
        into = None
    if into is not None and is_read:
        _refuse_unsupported(function, into, lenient=lenient)
    message_at = [
        number
        for number, parameter in enumerate(parameters)
        if number and parameter.kind in _POSITIONAL and _is_message(hints.get(parameter.name))
    ]
    if len(message_at) > (into is not None):
        raise UsageError(
            f"{getattr(function, '__qualname__', function)!s} takes the message twice: its first parameter has no type for the body"
            if into is None
            else f"{getattr(function, '__qualname__', function)!s} takes the message twice",
            hint="def handle(event: Order, message: Message): ...",
        )
    at = message_at[0] if message_at else None
    session = parameters[2 if at == 1 else 1 :][:1]
    return HandlerArguments(into, at, hints.get(session[0].name) if session else None)


def _unreadable(function: Callable[..., Any], error: NameError) -> UsageError:
    return UsageError(f"an annotation of {function!r} cannot be read: {error}")


def _refuse_unsupported(function: Callable[..., Any], into: Any, *, lenient: bool) -> None:
    """Raise UsageError if no body can be decoded into ``into``. ``lenient``: a class that it refers to may follow."""
    try:
        why = why_unsupported(into)
    except NameError as error:
        if lenient:
            return
        raise _unreadable(function, error) from error
    if why:
        raise UsageError(
            f"no body can be decoded for {getattr(function, '__qualname__', function)!s}: {why}", hint=SUPPORTED
        )


def _is_message(hint: Any) -> bool:
    return hint is Message or (isinstance(hint, str) and hint.rpartition(".")[2] == "Message")
