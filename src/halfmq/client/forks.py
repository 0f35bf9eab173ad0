"""Fork safety: detects a forked child, and detaches it from the sockets that it inherited.

A child that kept its parent's sockets would hold them open after the parent dies, so the broker would keep sending checks
to a dead producer until the idle timeout. A normal close is no option: the transport would unregister from the selector,
which parent and child share. So the child redirects each inherited descriptor to /dev/null with ``dup2``. That closes
only the child's reference to the socket (no FIN is sent), and keeps the number in use, so that no stale object can
close another file by it.
"""

import ctypes
import os
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

from halfmq.errors import UsageError


class HasSocket(Protocol):
    """Something with a socket descriptor, such as ``Connection``."""

    def descriptor(self) -> int:
        """The socket's file descriptor while it is open, else -1."""
        ...


#: Fork generation: 0 in the first process, parent's + 1 in a child. An object created under another number belongs to a parent.
generation = 0
_open: Final[WeakSet[Any]] = WeakSet()


def detach_in_children(connection: HasSocket) -> None:
    """Redirect the socket of ``connection`` in forked children. ``connection`` must be hashable by identity."""
    _open.add(connection)


def refuse_in_child(opened_in: int, what: str, hint: str) -> None:
    """Raises UsageError if ``opened_in``, the generation in which ``what`` was created, is not this process's."""
    if opened_in != generation:
        raise _of_the_parent(what, hint)


def _of_the_parent(what: str, hint: str) -> UsageError:
    return UsageError(f"{what} belongs to the process that this one was forked from", hint=hint)


def keep_for_ever(inherited: object) -> None:
    """Never free ``inherited``, also not at the end of the interpreter: freeing the connection of a driver may say goodbye to the server,
    or roll back, on what belongs to the parent."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


class ParentsConnection:
    """In a child in the place of a database connection of its parent. What ends a transaction does nothing, since it belongs to the parent;
    everything else is refused."""

    def rollback(self) -> None:
        """Nothing."""

    close = terminate = rollback

    def autocommit(self, is_on: bool) -> None:
        """Nothing: after the end of a block, Django calls it on MySQL and MariaDB."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _of_the_parent(
            "the database connection", "fork outside of a transaction, and end the child with os._exit"
        )


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
