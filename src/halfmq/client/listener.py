"""``TransactionListener``, as in RocketMQ: an application implements it to run local transactions and answer checks."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from halfmq.client.arguments import checked_text
from halfmq.client.outcome import Outcome
from halfmq.client.user_code import is_async, refuse_generator
from halfmq.errors import UsageError

if TYPE_CHECKING:
    from halfmq.client.message import Message

#: Where ``execute`` may be one.
AWAITS: Final = "a plain execute, or AsyncClient.send_in_transaction"


class TransactionListener(ABC):
    """One kind of transaction. A client may have several: ``name`` is sent with the message and routes its checks.

    Both methods may be coroutine functions; ``execute`` only for an ``AsyncClient`` or an ``App``. Register the listener at application
    start with ``client.add_listener(OrderListener())``, so that checks are answered after a restart too.
    """

    #: Default: the class name. Do not change it while transactions with the old name are undecided.
    name: ClassVar[str] = ""

    @abstractmethod
    def execute(self, message: "Message", arg: Any) -> Outcome | Awaitable[Outcome]:
        """Run the local transaction. The half message is already stored, and not visible to consumers.

        UNKNOWN leaves the decision to ``check``. So does an exception, since the local COMMIT may have succeeded without a
        response; it is raised to the caller of ``send_in_transaction``. Return ROLLBACK only if the local transaction
        certainly did not commit, and never will.
        """

    @abstractmethod
    def check(self, message: "Message") -> Outcome | Awaitable[Outcome]:
        """Return whether the local transaction of ``message`` committed; look it up by ``message.transaction_id`` or ``key``.

        Called in any process of the producer group, at any time, possibly repeatedly. Return UNKNOWN when in doubt.
        """


def check_methods(listener: TransactionListener, *, awaits: bool) -> None:
    """Raise UsageError if a method of ``listener`` would never run. ``awaits``: whether its ``execute`` may be a coroutine function."""
    listener_name(listener)
    for method in (listener.execute, listener.check):
        refuse_generator(method, f"{type(listener).__name__}.{method.__name__}")
    if not awaits and is_async(listener.execute):
        raise UsageError(f"{type(listener).__name__}.execute is a coroutine function, which nobody awaits", hint=AWAITS)


def listener_name(listener: TransactionListener) -> str:
    """The listener's name, which is sent with its messages.

    Raises:
        UsageError: not a ``TransactionListener``, or its name is not a str.
    """
    if not isinstance(listener, TransactionListener):
        raise UsageError(
            f"listener={listener!r} is not a TransactionListener",
            hint="an instance of a class of yours that derives from TransactionListener: OrderListener()",
        )
    name = listener.name or type(listener).__name__
    return checked_text(name, "TransactionListener.name", "it travels with the messages")
