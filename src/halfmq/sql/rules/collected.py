"""The messages of a block, each with the savepoints in which it was collected."""

from collections.abc import Sequence
from typing import NamedTuple

from halfmq.client.outgoing import OutgoingMessage
from halfmq.model import properties as names


class _Collected(NamedTuple):
    message: OutgoingMessage
    savepoints: Sequence[object]


class CollectedMessages:
    """What a block will send. Savepoints are compared by ``==``, so any object that stands for one will do."""

    def __init__(self) -> None:
        self._collected: list[_Collected] = []

    def __bool__(self) -> bool:
        return bool(self._collected)

    def add(self, message: OutgoingMessage, savepoints: Sequence[object]) -> None:
        """``savepoints``: those that are open now."""
        self._collected.append(_Collected(message, savepoints))

    def drop(self, savepoint: object) -> None:
        """Drop what was collected in ``savepoint``: it was rolled back."""
        self._collected = [one for one in self._collected if savepoint not in one.savepoints]

    def messages(self) -> list[OutgoingMessage]:
        """As they were collected."""
        return [one.message for one in self._collected]

    def halves(self, origin: bytes) -> list[OutgoingMessage]:
        """The half messages. ``origin``: encoded HMQ_TX_MARKER property, table identity and time of the marker; may be empty."""
        return [
            one.message._replace(properties=names.append(one.message.properties, origin)) for one in self._collected
        ]
