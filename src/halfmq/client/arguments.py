"""Argument validation at the public API: the error names the wrong value and what to pass instead.

Without it a wrong type would surface as an ``AttributeError`` deep inside the client, or be sent to the broker.
"""

import math
from collections.abc import Collection, Sequence

from halfmq import limits
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared
from halfmq.errors import InvalidName, UsageError
from halfmq.model.ids import is_transaction_id


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
