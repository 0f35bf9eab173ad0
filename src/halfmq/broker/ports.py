"""The ports of the broker: bound before the store is opened, listening once it is recovered, closed in two steps at the end."""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from halfmq.broker.front_door import FrontDoor
from halfmq.broker.listener import Bind, BoundPort
from halfmq.errors import EnvironmentFailed, HalfmqError, PortTaken

log = logging.getLogger("halfmq.broker")


class PortPlan(NamedTuple):
    """A port that the broker should listen on."""

    #: As in "the broker cannot listen on 127.0.0.1:10911".
    name: str
    front_door: FrontDoor
    #: 0: any free one.
    port: int
    #: Consequence for clients if it cannot listen, for the log; empty: the broker does not start without it.
    without: str = ""
    #: Whether it serves during a drain too, as health does.
    closed_last: bool = False


class BoundPorts:
    """Ports on the addresses of this machine, in the order of their plans."""

    def __init__(self, bind: Bind, hosts: Sequence[str]) -> None:
        self._bind = bind
        self._hosts = hosts
        self._bound: list[tuple[PortPlan, BoundPort]] = []

    async def bind(self, plans: Iterable[PortPlan]) -> None:
        """Bind them.

        Raises:
            PortTaken, EnvironmentFailed: a required one cannot be bound. Call ``close``.
        """
        for plan in plans:
            try:
                bound = await self._bind(plan.front_door, plan.name, self._hosts, plan.port)
            except (PortTaken, EnvironmentFailed) as error:
                _log_without(plan, error)
            else:
                self._bound.append((plan, bound))

    def number_of(self, name: str) -> int | None:
        """The port with this name; None: it is not bound."""
        return next((bound.port for plan, bound in self._bound if plan.name == name), None)

    def listen(self) -> None:
        """Listen, without accepting yet.

        Raises:
            PortTaken, EnvironmentFailed: a required one cannot listen. Call ``close``.
        """
        for plan, bound in list(self._bound):
            try:
                bound.listen()
            except (PortTaken, EnvironmentFailed) as error:
                _log_without(plan, error)
                bound.close()
                self._bound.remove((plan, bound))

    def accept(self) -> None:
        """Accept connections from now on."""
        for _, bound in self._bound:
            bound.accept()

    def log(self) -> None:
        """Log the addresses of each."""
        for plan, bound in self._bound:
            log.info("%s listens on %s", plan.name, " and ".join(bound.addresses))

    def begin_drain(self) -> None:
        """Accept no more, except on ports that are closed last."""
        for plan, bound in self._bound:
            if not plan.closed_last:
                bound.close()

    def close(self) -> None:
        """Accept no more. Connections stay open."""
        for _, bound in self._bound:
            bound.close()


def _log_without(plan: PortPlan, error: HalfmqError) -> None:
    """Log that the broker starts without this port; raise ``error`` if it must not."""
    if not plan.without:
        raise error
    log.warning("%s; %s", error, plan.without)
