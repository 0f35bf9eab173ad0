"""What every protocol of the broker offers to the ports (``listener``): admission, and a protocol object for each connection."""

import asyncio
from typing import NamedTuple, Protocol


class Rejected(NamedTuple):
    """No connection from there is possible now. ``why``: a clause that names the flag of the limit."""

    why: str


class FrontDoor(Protocol):
    """Implements a protocol on accepted connections."""

    def admit(self, host: str) -> asyncio.BaseProtocol | Rejected:
        """The protocol for a socket accepted from ``host``. Call ``begun`` with it when the connection has been made, or has failed."""
        ...

    def begun(self, connection: asyncio.BaseProtocol, /) -> None:
        """The connection that ``admit`` returned was made, or failed: it no longer counts as pending."""
        ...

    def close(self, *, abort: bool) -> None:
        """Close every connection: at once, or after its responses were sent."""
        ...
