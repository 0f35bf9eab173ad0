"""The requester: what a service may know of a connection, and do to it."""

import logging
from collections.abc import Hashable
from typing import Protocol


class Peer(Protocol):
    """A connection of a front door."""

    @property
    def number(self) -> int:
        """Identifies the connection in commands and session state; never reused in one run of the broker."""
        ...

    @property
    def address(self) -> str:
        """``ip:port``, for logs and for audit records."""
        ...

    @property
    def born_host(self) -> bytes:
        """IP (4 or 16 bytes) and int32 port, packed, as messages store it."""
        ...

    @property
    def is_open(self) -> bool:
        """False: it has ended, and cannot be sent to."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether it does not read its responses: do not send what can wait."""
        ...

    def keep(self, memory_bytes: int) -> None:
        """Count ``memory_bytes`` that are kept for a waiting request of this peer; it reads less from the peer.

        Call ``give_back`` with the same number when they are freed, even if the peer is gone by then.
        """
        ...

    def give_back(self, memory_bytes: int) -> None:
        """The end of ``keep``."""
        ...

    def hold_requests(self) -> None:
        """Serve none of its further requests until ``resume_requests``: they must not overtake one that takes long."""
        ...

    def resume_requests(self) -> None:
        """The end of ``hold_requests``."""
        ...


class ThrottledLog(Protocol):
    """Logs an action of a peer: once for its address and ``kind``, then rarely, with a count, since peers choose how often they act."""

    def __call__(
        self, logger: logging.Logger, level: int, kind: Hashable, peer: Peer, text: str, /, *arguments: object
    ) -> None: ...
