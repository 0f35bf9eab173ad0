"""What a forked child must know: that it is one, and that the sockets it was born with are its parent's.

A child that kept them would hold them open when the parent dies: the broker would go on counting on a producer, and send
it checks, until the connection had been idle for minutes. Closing them in the usual way is no better: a transport tells
the selector, which both processes share. So each descriptor is made to lead nowhere, which closes the child's share of the
socket and nothing else: no FIN leaves, and no object that still knows the number can close something new by it.
"""

import os
from typing import Any, Final, Protocol
from weakref import WeakSet

from halfmq.errors import UsageError


class HasSocket(Protocol):
    def descriptor(self) -> int:
        """Of its socket while that is open, else -1."""
        ...


#: How often this process was forked off: 0 in the first one, one more in each child. What was opened under another number
#: belongs to a parent.
generation = 0
_open: Final[WeakSet[Any]] = WeakSet()


def detach_in_children(connection: HasSocket) -> None:
    """Children of this process shall not hold its socket open. It must be hashable by identity."""
    _open.add(connection)


def refuse_in_child(opened_in: int, what: str, hint: str) -> None:
    """Raises UsageError: ``what`` was opened in a parent process, whose ``generation`` was ``opened_in``."""
    if opened_in != generation:
        raise UsageError(f"{what} belongs to the process that this one was forked from", hint=hint)


def _after_fork_in_child() -> None:
    global generation
    generation += 1
    parents = [connection.descriptor() for connection in list(_open)]
    _open.clear()
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for descriptor in parents:
            if descriptor >= 0:
                os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
