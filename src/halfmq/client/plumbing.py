"""What producers and consumers of one client share."""

import random
from dataclasses import dataclass

from halfmq.client.connection import Connection
from halfmq.client.links import Links
from halfmq.client.membership import Membership
from halfmq.client.retry import Attempts
from halfmq.client.routing import Router
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import ConnectError
from halfmq.runtime.clock import Clock


@dataclass(slots=True)
class Plumbing:
    """Connections, routes, identity, and how patient a call is. Times in seconds."""

    brokers: Links
    router: Router
    membership: Membership
    ids: UniqueIds
    clock: Clock
    rng: random.Random
    #: A whole call with its retries.
    timeout_s: float
    #: One attempt.
    attempt_timeout_s: float

    def attempts(self, what: str, timeout_s: float | None = None) -> Attempts:
        total_s = self.timeout_s if timeout_s is None else timeout_s
        return Attempts(what, total_s, self.attempt_timeout_s, self.rng, lambda: self.brokers.closed)

    async def broker(self, name: str) -> Connection:
        """A connection to the broker of this name, wherever it is now.

        Raises:
            ConnectError: it is not known, or does not answer.
        """
        address = self.router.address_of(name)
        if address is None:
            raise ConnectError(f"no route names broker {name}")
        return await self.brokers.get(address)

    def established(self, name: str) -> Connection | None:
        """The connection to the broker of this name that is there; opens none."""
        address = self.router.address_of(name)
        return None if address is None else self.brokers.existing(address)
