"""The key under which an inbox records a message."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from halfmq.client.user_code import plain_result
from halfmq.errors import UsageError

#: Characters of a key: RocketMQ's unique ids have 32 to 56; keys of an application may be longer.
KEY_CHARS_MAX: Final = 255
#: Stands behind a key that ends with a space, or with this: MariaDB and MySQL compare without spaces at the end, and so would take two
#: keys for one, of which the second would not be handled.
_END: Final = "\N{SYMBOL FOR SPACE}"


class HasMessageId(Protocol):
    """The part of ``halfmq.Message`` that the inbox uses."""

    @property
    def message_id(self) -> str | None:
        """The unique message id, the same in every redelivery. None is refused: libraries of other brokers allow it."""
        ...


KeyOf = Callable[[Any], str]


def key_of(message: HasMessageId, key: KeyOf | None) -> str:
    """The key of a message's row: the result of ``key``, or without it the message id. Different keys stay different in each database.

    Raises:
        UsageError: it is no text, empty or too long.
    """
    if key is None:
        found = message.message_id
    else:
        found = plain_result(key(message), "key= of the inbox", "a plain function of the message")
    if not isinstance(found, str):
        raise UsageError(f"the inbox key is {found!r}", hint="text, such as key=lambda message: message.key")
    if found.endswith((" ", _END)):
        found += _END
    if not 0 < len(found) <= KEY_CHARS_MAX:
        raise UsageError(f"the inbox key has {len(found)} characters; 1 to {KEY_CHARS_MAX} are allowed")
    return found
