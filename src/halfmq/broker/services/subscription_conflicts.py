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


class _Group:
    """The members by connection, and how many of them have each subscription: while all have one, a heartbeat compares nothing."""

    __slots__ = ("counts", "members")

    def __init__(self) -> None:
        self.members: dict[int, _Member] = {}
        self.counts: dict[Subscribed, int] = {}

    def put(self, connection: int, member: _Member) -> None:
        self.remove(connection)
        self.members[connection] = member
        self.counts[member.wanted] = self.counts.get(member.wanted, 0) + 1

    def remove(self, connection: int) -> None:
        member = self.members.pop(connection, None)
        if member is None:
            return
        left = self.counts.pop(member.wanted) - 1
        if left:
            self.counts[member.wanted] = left


class SubscriptionConflicts:
    """Warns once for each client that joins with, or changes to, a subscription that differs from another member's, and says it in the
    response to each heartbeat for as long as that is so.
    """

    def __init__(self, is_due: Callable[[Hashable], bool] = lambda what: True) -> None:
        """``is_due``: whether to log now, as ``LogThrottle.is_due``: clients may change their subscriptions as often as they like."""
        self._is_due = is_due
        self._groups: dict[str, _Group] = {}

    def heard(self, group: str, connection: int, client_id: str, subscriptions: Iterable[Subscription]) -> str:
        """Handle a heartbeat. Returns with whom it differs, for its client; "" if with nobody, which costs one comparison."""
        member = _Member(
            client_id, frozenset([one[:3] for one in subscriptions if not one.topic.startswith(RETRY_PREFIX)])
        )
        known = self._groups.setdefault(group, _Group())
        is_new = known.members.get(connection) != member
        if is_new:
            known.put(connection, member)
        if len(known.counts) == 1:
            return ""
        for other in known.members.values():
            if other.wanted != member.wanted and other.client_id != client_id:
                text = (
                    f"consumer group {group}: client {client_id} subscribes to {_named(member.wanted - other.wanted)}, client "
                    f"{other.client_id} subscribes to {_named(other.wanted - member.wanted)}; all clients of a group must have the same "
                    "subscription, or messages reach nobody"
                )
                if is_new and self._is_due((group, client_id)):
                    log.warning("%s", text)
                return text
        return ""

    def left(self, group: str, connection: int) -> None:
        """The connection is no longer a member of the group."""
        known = self._groups.get(group)
        if known is not None:
            known.remove(connection)
            if not known.members:
                del self._groups[group]


def _named(wanted: Subscribed) -> str:
    """The first few, and the number of the others."""
    if not wanted:
        return "nothing beside"
    said = [f"{topic} {expression[:_CHARS_MAX]!r}" for topic, expression, _ in sorted(wanted)[:_NAMED_MAX]]
    if len(wanted) > _NAMED_MAX:
        said.append(f"{len(wanted) - _NAMED_MAX} more")
    return ", ".join(said)
