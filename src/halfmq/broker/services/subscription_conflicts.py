"""Detects clients of one consumer group with different subscriptions: legal in the protocol, and almost always a mistake.

Queues are divided among all members, so messages that only one member subscribes to are lost in the queues of the others, and nobody is
told. RocketMQ's broker logs "subscription changed"; here both clients are named.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from halfmq.core.state import RETRY_PREFIX, Subscription

log = logging.getLogger("halfmq.clients")

#: Maximum number of differences in a line, and of characters of each expression.
_NAMED_MAX: Final = 3
_CHARS_MAX: Final = 100

#: (topic, expression, expression type)
Subscribed = frozenset[tuple[str, str, str]]


class _Member(NamedTuple):
    client_id: str
    wanted: Subscribed


class SubscriptionConflicts:
    """Warns once for each client that joins with, or changes to, a subscription that differs from another member's."""

    def __init__(self, is_due: Callable[[Hashable], bool] = lambda what: True) -> None:
        """``is_due``: whether to log now, as ``LogThrottle.is_due``: clients may change their subscriptions as often as they like."""
        self._is_due = is_due
        #: Group -> connection -> its subscriptions.
        self._groups: dict[str, dict[int, _Member]] = {}

    def heard(self, group: str, connection: int, client_id: str, subscriptions: Iterable[Subscription]) -> None:
        """Handle a heartbeat. Without a change it costs one comparison."""
        member = _Member(
            client_id, frozenset([one[:3] for one in subscriptions if not one.topic.startswith(RETRY_PREFIX)])
        )
        members = self._groups.setdefault(group, {})
        if members.get(connection) == member:
            return
        members[connection] = member
        for other in members.values():
            if other.wanted != member.wanted and other.client_id != client_id:
                if not self._is_due((group, client_id)):
                    return
                log.warning(
                    "consumer group %s: client %s subscribes to %s, client %s subscribes to %s; all clients of a "
                    "group must have the same subscription, or messages reach nobody",
                    group, client_id, _named(member.wanted - other.wanted), other.client_id,
                    _named(other.wanted - member.wanted),
                )  # fmt: skip
                return

    def left(self, group: str, connection: int) -> None:
        """The connection is no longer a member of the group."""
        members = self._groups.get(group)
        if members is not None and members.pop(connection, None) is not None and not members:
            del self._groups[group]


def _named(wanted: Subscribed) -> str:
    """The first few, and the number of the others."""
    if not wanted:
        return "nothing beside"
    said = [f"{topic} {expression[:_CHARS_MAX]!r}" for topic, expression, _ in sorted(wanted)[:_NAMED_MAX]]
    if len(wanted) > _NAMED_MAX:
        said.append(f"{len(wanted) - _NAMED_MAX} more")
    return ", ".join(said)
