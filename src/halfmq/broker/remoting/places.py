"""Who may connect: so many connections at once, a part of them from one address, and a few places for operators.

    ordinary places      all but the last; three quarters of all for one address, or what ``--connections-per-address-max`` says
    operators' places    the last ``OPERATOR_PLACES``, for whoever finds no ordinary one, and only to look and to decide

Whoever comes on an operator's place may ask everything but a client's work (``NOT_HERE``): that is answered "busy", and the
connection is closed, unless an ordinary place is free by now: then it has that. When these places are taken too, the
newcomer gets one of them: while half or more have asked nothing yet, that of the oldest of these, else that of the one
whose last question is oldest. So a flood of connections, also from the operator's own machine, holds no place against
somebody who asks at once and is done, whether it asks something itself or not.

An IPv6 address counts with all of its /64, which one machine may have. Decision 0030.
"""

from enum import Enum, auto
from ipaddress import IPv6Address, ip_address
from typing import Final

from halfmq import limits
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.feedback import HMQ_FEEDBACK

#: What clients do all day long.
NOT_HERE: Final = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT,
    HMQ_FEEDBACK,
})  # fmt: skip


class Refusal(Enum):
    """Why a connection gets no place, and whose places are taken."""

    #: All places are taken, also the operators'.
    ALL = auto()
    #: Those of this address are, and the operators'.
    ADDRESS = auto()


class Places:
    """Connections are known by their numbers."""

    def __init__(self, connections_max: int, per_address_max: int | None = None) -> None:
        """``per_address_max`` None: three quarters."""
        self.per_address_max = connections_max - connections_max // 4 if per_address_max is None else per_address_max
        self._operators_max = min(limits.OPERATOR_PLACES, connections_max // 4)
        self._ordinary_max = connections_max - self._operators_max
        #: Of each connection; and how many ordinary ones each has.
        self._address: dict[int, str] = {}
        self._of_address: dict[str, int] = {}
        #: Operators' places: taken by who has asked nothing, and by the others, the oldest question first.
        self._quiet: dict[int, None] = {}
        self._asked: dict[int, None] = {}
        #: How many of these are taken: looked at for each request.
        self.on_operators = 0

    def refusal(self, host: str) -> Refusal | None:
        """Why nobody from there can have an ordinary place now."""
        if len(self._address) - self.on_operators >= self._ordinary_max:
            return Refusal.ALL
        if self._of_address.get(network_of(host), 0) >= self.per_address_max:
            return Refusal.ADDRESS
        return None

    def take(self, number: int, host: str) -> None:
        """An ordinary place."""
        address = self._address[number] = network_of(host)
        self._of_address[address] = self._of_address.get(address, 0) + 1

    def operators_place(self) -> int | None:
        """The connection to be closed before an operator's place can be taken; 0: none. None: there are no such places."""
        if self.on_operators < self._operators_max:
            return 0
        # The newest are spared: whoever has just come may ask in a moment.
        first, then = self._quiet, self._asked
        if 2 * len(first) < self._operators_max:
            first, then = then, first
        return next(iter(first), next(iter(then), None))

    def take_operators(self, number: int, host: str) -> None:
        """One of the operators' places. Call ``operators_place`` first, and end the connection that it names."""
        self._address[number] = network_of(host)
        self._quiet[number] = None
        self.on_operators += 1

    def may_ask(self, number: int, code: int) -> bool:
        """Whether this connection may have this request served. Call it while any is ``on_operators``."""
        if number not in self._quiet and number not in self._asked:
            return True
        if code in NOT_HERE:
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
        """The connection has ended, or never began."""
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
    """What counts as one address."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(IPv6Address(int(address) >> 64 << 64)) if isinstance(address, IPv6Address) else host
