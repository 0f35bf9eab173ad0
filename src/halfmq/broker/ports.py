"""The ports of the broker: bound before the store is opened, listening once it is recovered, closed in two steps at the end."""

import logging
from collections.abc import Iterable, Sequence

from halfmq.broker.listener import Bind, BoundPort, PortPlan
from halfmq.errors import EnvironmentFailed, HalfmqError, PortTaken

log = logging.getLogger("halfmq.broker")


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
                bound = await self._bind(plan, self._hosts)
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
            tls = "" if plan.tls is None else " (TLS)" if plan.tls.is_required else " (TLS, or without)"
            log.info("%s listens on %s%s", plan.name, " and ".join(bound.addresses), tls)

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
