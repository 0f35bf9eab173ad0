"""What an application implements to send in RocketMQ's way: execute the local transaction, answer checks about it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar

from halfmq.client.arguments import checked_text
from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError

if TYPE_CHECKING:
    from halfmq.client.message import Message


class TransactionListener(ABC):
    """One kind of transaction. Many may live in one client: ``name`` travels with the message and routes the check.

    Both methods may be coroutine functions. After a restart a client must know the listener before it can be asked:
    ``client.add_listener(OrderListener())`` at start, not only with the first send.
    """

    #: Empty: the name of the class. Do not change it while transactions of the old name are undecided.
    name: ClassVar[str] = ""

    @abstractmethod
    def execute(self, message: "Message", arg: Any) -> Outcome | Awaitable[Outcome]:
        """The local transaction. The half message is stored already; nobody sees it yet.

        UNKNOWN leaves it to ``check``, and so does an exception, which goes on to the caller of
        ``send_in_transaction``: it may be the answer to the local COMMIT that was lost. Return ROLLBACK where it is
        certain that the local transaction did not happen and will not.
        """

    @abstractmethod
    def check(self, message: "Message") -> Outcome | Awaitable[Outcome]:
        """Did the local transaction of ``message`` happen? ``message.transaction_id`` and ``message.key`` find it.

        Asked in any process of the producer group, at any time, perhaps several times. UNKNOWN when in doubt.
        """


def listener_name(listener: TransactionListener) -> str:
    """What travels with its messages.

    Raises:
        UsageError: it is no listener, or its name is no text.
    """
    if not isinstance(listener, TransactionListener):
        raise UsageError(
            f"listener={listener!r} is no TransactionListener",
            hint="an instance of a class of yours that derives from TransactionListener: OrderListener()",
        )
    name = listener.name or type(listener).__name__
    return checked_text(name, "TransactionListener.name", "it travels with the messages")
