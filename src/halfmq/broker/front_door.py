"""What every protocol of the broker offers to the ports (``listener``): who may connect, and who speaks with them."""

import asyncio
from typing import NamedTuple, Protocol


class Rejected(NamedTuple):
    """Nobody else may connect from there now. ``why``: as a clause, with the flag that sets the limit."""

    why: str


class FrontDoor(Protocol):
    """Speaks a protocol on accepted connections."""

    def admit(self, host: str) -> asyncio.BaseProtocol | Rejected:
        """The protocol for a socket that was accepted from ``host``. Call ``begun`` with it when the connection has been made,
        or has failed.
        """
        ...

    def begun(self, connection: asyncio.BaseProtocol, /) -> None:
        """The connection that ``admit`` returned has been made, or will not be: it no longer counts as expected."""
        ...
