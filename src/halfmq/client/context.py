"""``ClientContext``: the objects that the producers, consumers and transactions of one client share."""

import random
from dataclasses import dataclass

from halfmq.client.connection import Connection
from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.membership import Membership
from halfmq.client.retry import Attempts
from halfmq.client.routing import Router
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import ConnectError
from halfmq.runtime.clock import Clock


@dataclass(slots=True)
class ClientContext:
    """Connections, routes, client identity, clock, random numbers and timeouts of one client. Times in seconds."""

    brokers: ConnectionPool
    router: Router
    membership: Membership
    ids: UniqueIds
    clock: Clock
    rng: random.Random
    #: For a whole call, retries included.
    timeout_s: float
    #: For one attempt.
    attempt_timeout_s: float

    def attempts(self, what: str, timeout_s: float | None = None) -> Attempts:
        """The retry budget of a new call. ``what``: the call, for error messages. ``timeout_s``: default ``self.timeout_s``."""
        total_s = self.timeout_s if timeout_s is None else timeout_s
        return Attempts(what, total_s, self.attempt_timeout_s, self.rng, lambda: self.brokers.closed)

    async def broker(self, name: str) -> Connection:
        """A connection to the broker ``name``, opened if necessary.

        Raises:
            ConnectError: no route names the broker, or it does not answer.
        """
        address = self.router.address_of(name)
        if address is None:
            raise ConnectError(f"no route names broker {name}")
        return await self.brokers.get(address)

    def established(self, name: str) -> Connection | None:
        """The open connection to the broker ``name``, or None. Never opens one."""
        address = self.router.address_of(name)
        return None if address is None else self.brokers.existing(address)
