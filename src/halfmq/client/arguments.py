"""Argument validation at the public API: the error names the wrong value and what to pass instead.

Without it a wrong type would surface as an ``AttributeError`` deep inside the client, or be sent to the broker.

Notes are what an application says of a transaction to whoever may have to decide in its place. They travel as
properties of each half message and decide nothing: ``halfmq tx`` and the check function show them.
"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from halfmq import limits
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared
from halfmq.errors import InvalidName, UsageError
from halfmq.model import properties as names
from halfmq.model.ids import is_transaction_id

if TYPE_CHECKING:
    import ssl

    from halfmq.client.connector import Connector
    from halfmq.client.retry_policy import Retry
    from halfmq.client.telemetry import Telemetry
    from halfmq.client.user_code import RunBlocking
    from halfmq.runtime.clock import Clock
    from halfmq.runtime.entropy import Entropy


def checked_seconds(value: object, name: str, *, zero: bool = False, at_most: float = math.inf) -> float:
    """``value`` if it is a finite number of seconds above 0 (``zero``: or exactly 0), and no more than ``at_most``.

    Raises:
        UsageError: otherwise.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):  # type: ignore[arg-type,operator]
        least = "0 or more" if zero else "more than 0"
        raise UsageError(f"{name}={value!r} is not a duration", hint=f"seconds, {least}, such as {name}=2.5")
    if value > at_most:  # type: ignore[operator]
        raise UsageError(f"{name}={value!r} is too long", hint=f"at most {at_most:g} seconds")
    return value  # type: ignore[return-value]


def checked_timeout(value: object) -> None:
    """Raises UsageError if ``value``, the ``timeout`` of a call, is neither None nor a number of seconds above 0."""
    if value is not None:
        checked_seconds(value, "timeout")


def checked_count(value: object, name: str, at_least: int) -> int:
    """``value`` if it is an int of ``at_least`` or more. Raises UsageError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise UsageError(f"{name}={value!r}", hint=f"a whole number, {at_least} or more")
    return value


def checked_text(value: object, name: str, hint: str) -> str:
    """``value`` if it is a str that can be a message property (no \\x01, \\x02). Raises UsageError otherwise."""
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not a str", hint=hint)
    if "\x01" in value or "\x02" in value:
        raise UsageError(f"{name}={value!r} has a character that separates properties", hint=hint)
    return value


def checked_note(value: object, name: str, at_most: int, hint: str, *, at_least: int = 0) -> str:
    """``value`` if it is a text for people: ``at_least`` to ``at_most`` printable characters. Raises UsageError otherwise."""
    text = checked_text(value, name, hint)
    if not at_least <= len(text) <= at_most:
        raise UsageError(f"{name} of {len(text)} characters", hint=hint)
    if not text.isprintable():
        raise UsageError(f"{name}={text!r} has characters that cannot be shown", hint=hint)
    return text


def checked_messages(messages: object) -> "Sequence[OutgoingMessage]":
    """``messages`` if it is a sequence of messages made by ``compose``. Raises UsageError otherwise."""
    if not isinstance(messages, Sequence) or isinstance(messages, OutgoingMessage):
        raise UsageError(f"{messages!r} are no messages", hint="[compose(topic, body, key=...), ...]")
    for message in messages:
        if not isinstance(message, OutgoingMessage):
            raise UsageError(f"{message!r} is not a message", hint="compose(topic, body, key=...)")
    return messages


def checked_prepared(prepared: object) -> Prepared:
    """``prepared`` if it is a prepared transaction. Raises UsageError otherwise."""
    if not isinstance(prepared, Prepared):
        raise UsageError(
            f"{prepared!r} is not a prepared transaction", hint="what prepare returned, or Prepared.from_json"
        )
    return prepared


def checked_ids(ids: object) -> Collection[str]:
    """``ids`` if it is a collection of texts. Raises UsageError otherwise."""
    if isinstance(ids, str) or not isinstance(ids, Collection) or not all(isinstance(one, str) for one in ids):
        raise UsageError(f"ids={ids!r} is no collection of transaction ids", hint='ids=["T-1", "T-2"]')
    return ids


def checked_transaction_id(value: object) -> None:
    """Raises InvalidName if ``value`` is not a valid transaction id."""
    if not isinstance(value, str) or not is_transaction_id(value):
        raise InvalidName(
            f"{value!r} is not a transaction id",
            hint=f"1 to {limits.TRANSACTION_ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ : -",
        )


def check_marker_table(markers: object) -> None:
    """Raises UsageError if ``markers`` is not a ``MarkerTable``."""
    if any(getattr(markers, name, None) is None for name in ("name", "bind", "bind_async", "checker")):
        raise UsageError(f"{markers!r} is not a marker table", hint="markers=halfmq.sql.MarkerTable(metadata)")


def check_outbox(outbox: object) -> None:
    """Raises UsageError if ``outbox`` is not an ``Outbox``."""
    if any(getattr(outbox, name, None) is None for name in ("new_message_id", "bind_relay")):
        raise UsageError(f"{outbox!r} is not an outbox", hint="halfmq.sql.Outbox(metadata)")


_ADVICE = "Outcome.COMMIT, Outcome.ROLLBACK, or None for no advice"
_COMMENT = f"at most {limits.COMMENT_CHARS_MAX} printable characters, such as comment='ask the warehouse'"


class Notes(TypedDict, total=False):
    """Arguments of ``begin``, ``transaction``, ``prepare``, ``send_in_transaction`` and ``App.transaction``."""

    #: If nobody can find out what happened: COMMIT or ROLLBACK. None: no advice.
    advice: Outcome | None
    #: For people: at most ``limits.COMMENT_CHARS_MAX`` printable characters.
    comment: str


class BlockOptions(Notes, total=False):
    """Arguments of ``transaction(session, ...)`` that its messages carry."""

    #: The application's key for its local transaction, for the check function.
    query_id: str


class PrepareOptions(BlockOptions, total=False):
    """What a database integration passes from ``transaction(session, ...)`` to ``prepare`` as it came."""

    #: Seconds, for each of the two calls at the end of the block; None: the client's.
    timeout: float | None


class TransactionOptions(PrepareOptions, total=False):
    """Arguments of ``transaction(session, markers=...)``; see ``AsyncClient.transaction``."""

    outbox: Any
    checked_elsewhere: bool


class TccOptions(BlockOptions, total=False):
    """Arguments of ``tcc(session, markers=..., timeout=...)``; see ``AsyncClient.tcc``."""

    checked_elsewhere: bool


class ConnectOptions(TypedDict, total=False):
    """Arguments of ``AsyncClient``, ``Client`` and ``App``; see ``AsyncClient``."""

    timeout: float
    attempt_timeout: float
    connect_timeout: float
    fetches_checks: bool
    ssl_context: "ssl.SSLContext | None"
    secret: str | None
    telemetry: "bool | Telemetry"
    connector: "Connector | None"
    clock: "Clock | None"
    entropy: "Entropy | None"


class ClientOptions(ConnectOptions, total=False):
    """Arguments of ``AsyncClient`` and ``Client``, beside URL and group."""

    checks: int
    run_blocking: "RunBlocking | None"


class EnvironmentOptions(ClientOptions, total=False):
    """Arguments of ``from_env`` of the clients."""

    group: str


class AppOptions(EnvironmentOptions, total=False):
    """Arguments of ``App.from_env``."""

    sessions: Callable[[], Any] | None
    retry: "Retry | None"
    shutdown_grace: float


class MessageOptions(TypedDict, total=False):
    """Arguments of ``send`` beside topic and body; see ``outgoing.compose``."""

    tag: str | None
    key: object
    keys: Sequence[object] | str
    sharding_key: object
    delay: float | timedelta | None
    properties: Mapping[str, str] | None


class ConsumerOptions(TypedDict, total=False):
    """Arguments of ``App.consumer`` that do not change the parameters of its handler."""

    tags: str
    start: "StartFrom"
    retries: int | None
    retry: "Retry | None"
    concurrency: int
    sessions: Callable[[], Any] | None


class OutboxRelayOptions(TypedDict, total=False):
    """Arguments of ``Outbox.relay`` beside sessions and publisher; see there."""

    workers: int
    lease: float
    attempts: int
    skip: bool
    archive: bool
    poll: float | None


class RelayOptions(OutboxRelayOptions, total=False):
    """Arguments of ``relay`` of the clients and of ``App``, beside outbox, sessions and ``to``."""

    broker: str


#: Where a consumer group starts that has no committed offset; the datetime has a time zone.
StartFrom = Literal["earliest", "latest"] | datetime


class _UnknownOption(UsageError, TypeError):
    """Also a TypeError, as Python raises for an argument that a function does not have. Shown by the name that users can import."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UsageError, (str(self),)


_UnknownOption.__module__, _UnknownOption.__qualname__ = UsageError.__module__, UsageError.__qualname__
_UnknownOption.__name__ = UsageError.__name__


def refuse_unknown(given: Mapping[str, object], known: Collection[str], call: str) -> None:
    """``given``: the options of ``call``; ``known``: the names that it has.

    Raises:
        UsageError: an option that it does not have, with the name that was perhaps meant. It is a TypeError too.
    """
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            nearest = get_close_matches(name, known, 1)
            meant = f"; did you mean {nearest[0]!r}?" if nearest else f"; it has {', '.join(sorted(known)) or 'none'}"
            raise _UnknownOption(f"{call} got an unexpected option {name!r}{meant}")


def refuse_misspelt(given: Mapping[str, object], function: Callable[..., object], call: str = "") -> None:
    """The rule for ``**options`` of a public ``function``, which calls this first: it has the names that it spells out, and those of the
    ``TypedDict`` that it unpacks. ``call``: the name of another function with the same arguments, which the user has called.

    Raises:
        UsageError: as ``refuse_unknown``.
    """
    known = _keywords(function)
    if known is not None and not given.keys() <= known:
        refuse_unknown(given, known, call or function.__qualname__.removesuffix(".__init__"))


@cache
def _keywords(function: Callable[..., object]) -> frozenset[str] | None:
    """The names of all arguments that can be given by name. None: any, since a test has put something else in its place."""
    known: set[str] = set()
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            known.add(one.name)
        elif one.kind is one.VAR_KEYWORD:
            if not (options := get_args(one.annotation)):
                return None
            known.update(options[0].__annotations__)
    return frozenset(known - {"self", "cls"})


def note_pairs(advice: object = None, comment: object = "") -> list[tuple[str, str]]:
    """The properties that carry the notes; those that were not given are empty, and empty properties are not sent.

    Raises:
        UsageError: an argument is wrong.
    """
    if advice not in (None, Outcome.COMMIT, Outcome.ROLLBACK):
        raise UsageError(f"advice={advice!r}", hint=_ADVICE)
    text = checked_note(comment, "comment", limits.COMMENT_CHARS_MAX, _COMMENT)
    return [
        (names.HMQ_ADVICE, advice.name if isinstance(advice, Outcome) else ""),
        (names.HMQ_COMMENT, text),
    ]


def advice_in(text: str) -> Outcome | None:
    """The value of HMQ_ADVICE; None: there is none that is known."""
    return {"COMMIT": Outcome.COMMIT, "ROLLBACK": Outcome.ROLLBACK}.get(text)
