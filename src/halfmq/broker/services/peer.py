"""Who asks: what a service may know of a connection, and do to it."""

import logging
from collections.abc import Hashable
from typing import Protocol


class Peer(Protocol):
    """A connection of a front door."""

    @property
    def number(self) -> int:
        """Names the connection in commands and session state; never used twice in one run of the broker."""
        ...

    @property
    def address(self) -> str:
        """``ip:port``, for logs and for the record of what an operator did."""
        ...

    @property
    def born_host(self) -> bytes:
        """IP (4 or 16 bytes) and int32 port, packed, as messages store it."""
        ...

    @property
    def is_open(self) -> bool:
        """False: it has ended, and can be answered no more."""
        ...

    @property
    def is_full(self) -> bool:
        """It does not read its answers: do not send it what can wait."""
        ...

    def keep(self, memory_bytes: int) -> None:
        """Count ``memory_bytes`` that are kept for a request of this peer while it waits: the peer is read from less.

        Call ``give_back`` with the same number when they are no longer kept, also when the peer is gone by then.
        """
        ...

    def give_back(self, memory_bytes: int) -> None:
        """End of ``keep``."""
        ...


class Say(Protocol):
    """Logs what a peer did: once for its address and ``kind``, then rarely, with a count. Peers choose how often they do it."""

    def __call__(
        self, logger: logging.Logger, level: int, kind: Hashable, peer: Peer, text: str, /, *arguments: object
    ) -> None: ...
