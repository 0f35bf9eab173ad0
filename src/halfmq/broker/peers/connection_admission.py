"""Admission of connections: a maximum number, a maximum from one address, and a few places reserved for operators.

    ordinary places      all but the last; one address gets three quarters of all, or ``--connections-per-address-max``
    operators' places    the last ``OPERATOR_PLACES``, for connections without an ordinary place, and only for operators' commands

A connection on an operators' place may send all commands except those of a working client (``Command.of_clients``). Such a command gets
"busy" and the connection is closed, unless an ordinary place is free by now, which it then gets. If these places are taken too, a new
connection replaces one of them: while at least half have not sent a request yet, the oldest of those; else the one with the oldest last
request. A flood of connections, even from the operator's own machine, thus cannot lock out somebody who sends a request at once, whether or
not the flood sends requests.

All addresses of an IPv6 /64, which one machine may have, count as one. Decision 0030.
"""

from enum import Enum, auto
from ipaddress import IPv6Address, ip_address

from halfmq import limits
from halfmq.model.share import share_of


class Refusal(Enum):
    """Why a connection gets no place."""

    #: All places are taken, including the operators'.
    ALL = auto()
    #: Those of this address are taken, and the operators'.
    ADDRESS = auto()


class ConnectionAdmission:
    """Identifies connections by their numbers."""

    def __init__(self, connections_max: int, per_address_max: int | None = None) -> None:
        """``per_address_max`` None: three quarters."""
        self.per_address_max = share_of(connections_max) if per_address_max is None else per_address_max
        self.connections_max = connections_max
        self._operators_max = min(limits.OPERATOR_PLACES, connections_max // 4)
        self._ordinary_max = connections_max - self._operators_max
        #: Address of each connection; and number of ordinary places of each address.
        self._address: dict[int, str] = {}
        self._of_address: dict[str, int] = {}
        #: Operators' places: of connections without a request so far, and of the others, oldest request first.
        self._quiet: dict[int, None] = {}
        self._asked: dict[int, None] = {}
        #: Number of taken operators' places: checked for each request.
        self.on_operators = 0

    @property
    def taken(self) -> int:
        """Number of places of both kinds that are taken, also by connections that are not made yet."""
        return len(self._address)

    def refusal(self, host: str) -> Refusal | None:
        """Why a connection from ``host`` gets no ordinary place now."""
        if len(self._address) - self.on_operators >= self._ordinary_max:
            return Refusal.ALL
        if self._of_address.get(network_of(host), 0) >= self.per_address_max:
            return Refusal.ADDRESS
        return None

    def largest(self) -> str:
        """The address that has most of the ordinary places, and how many, as a clause. It looks at all addresses: for refusals."""
        address = max(self._of_address, key=self._of_address.__getitem__, default="nobody")
        return f"{self._of_address.get(address, 0)} of {self.connections_max} by {address}"

    def text_of(self, refusal: Refusal, host: str) -> str:
        """The refusal as a clause that names the flag of the limit."""
        if refusal is Refusal.ADDRESS:
            what, count, limit = f"connections from {host}", self.per_address_max, "--connections-per-address-max"
        else:
            what, count, limit = "connections", self.connections_max, "--connections-max, or the limit of open files"
        return f"{what}: limit of {count} reached ({limit})"

    def take(self, number: int, host: str) -> None:
        """Assign an ordinary place."""
        address = self._address[number] = network_of(host)
        self._of_address[address] = self._of_address.get(address, 0) + 1

    def operators_place(self) -> int | None:
        """The connection to close before an operators' place can be assigned; 0: none. None: there are no such places."""
        if self.on_operators < self._operators_max:
            return 0
        # The newest are spared: they may send a request in a moment.
        first, then = self._quiet, self._asked
        if 2 * len(first) < self._operators_max:
            first, then = then, first
        return next(iter(first), next(iter(then), None))

    def take_operators(self, number: int, host: str) -> None:
        """Assign an operators' place. Call ``operators_place`` first, and close the connection that it returns."""
        self._address[number] = network_of(host)
        self._quiet[number] = None
        self.on_operators += 1

    def may_ask(self, number: int, *, of_clients: bool) -> bool:
        """Whether this connection's request, of a working client or not, may be served. Call it while any is ``on_operators``."""
        if number not in self._quiet and number not in self._asked:
            return True
        if of_clients:
            address = self._address[number]
            if self.refusal(address) is not None:
                return False
            self.free(number)
            self.take(number, address)
            return True
        self._quiet.pop(number, None)
        self._asked.pop(number, None)
        self._asked[number] = None
        return True

    def free(self, number: int) -> None:
        """The connection has ended, or was never made."""
        address = self._address.pop(number, None)
        if address is None:
            return
        if number in self._quiet or number in self._asked:
            self._quiet.pop(number, None)
            self._asked.pop(number, None)
            self.on_operators -= 1
            return
        left = self._of_address[address] - 1
        if left:
            self._of_address[address] = left
        else:
            del self._of_address[address]


def network_of(host: str) -> str:
    """The range of addresses that counts as one."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(IPv6Address(int(address) >> 64 << 64)) if isinstance(address, IPv6Address) else host
