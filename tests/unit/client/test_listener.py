"""Names of listeners."""

from typing import Any

import pytest

from halfmq.client.listener import TransactionListener, listener_name
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome


class Plain(TransactionListener):
    def execute(self, message: Message, arg: Any) -> Outcome:
        return Outcome.COMMIT

    def check(self, message: Message) -> Outcome:
        return Outcome.COMMIT


class Named(Plain):
    name = "order.create"


def test_name_is_the_class_unless_given() -> None:
    assert listener_name(Plain()) == "Plain"
    assert listener_name(Named()) == "order.create"


def test_both_methods_are_required() -> None:
    class Half(TransactionListener):
        def execute(self, message: Message, arg: Any) -> Outcome:
            return Outcome.COMMIT

    with pytest.raises(TypeError):
        Half()  # type: ignore[abstract]
