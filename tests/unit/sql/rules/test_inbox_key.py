"""The key of a message in an inbox."""

from typing import NamedTuple

import pytest

from halfmq.errors import UsageError
from halfmq.sql.rules.inbox_key import KEY_CHARS_MAX, key_of


class Message(NamedTuple):
    message_id: str
    keys: tuple[str, ...] = ()


def test_message_id_unless_the_application_says_another() -> None:
    message = Message("m1", ("order-7",))
    assert key_of(message, None) == "m1"
    assert key_of(message, lambda message: message.keys[0]) == "order-7"


def test_it_must_fit() -> None:
    assert len(key_of(Message("k" * KEY_CHARS_MAX), None)) == KEY_CHARS_MAX
    for key in ("", "k" * (KEY_CHARS_MAX + 1)):
        with pytest.raises(UsageError, match="the inbox key"):
            key_of(Message(key), None)


def test_keys_that_differ_in_spaces_at_their_end_stay_different_without_these() -> None:
    """As MariaDB and MySQL compare them (PAD SPACE)."""
    ends = ("", " ", "  ", "\u2420", " \u2420", "\u2420 ", "\u2420\u2420", "\u2420 \u2420")
    made = [key_of(Message(f"k{end}"), None) for end in ends]
    assert len({key.rstrip(" ") for key in made}) == len(ends)
    assert made[0] == "k"
