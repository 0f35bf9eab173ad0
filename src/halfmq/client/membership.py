"""This client's heartbeats (HEART_BEAT, 34): its client id, producer groups and consumer groups.

A broker identifies a client by its connection, so a heartbeat is the first request on every new one (``introduce``), and is
repeated every 30 s. The broker pushes checks of a producer group to the connections that registered the group.
"""

from typing import Final

from halfmq.client.connection import Connection, NoAnswer
from halfmq.client.log import log
from halfmq.wire.remoting.codes import EXT_CONFLICT, EXT_VERSION, LANGUAGE_OURS, RequestCode, ResponseCode
from halfmq.wire.remoting.heartbeat import ConsumerGroup, HeartbeatBody, encode_heartbeat

#: Precedent: RocketMQ ``heartbeatBrokerInterval``.
HEARTBEAT_S: Final = 30.0
_TIMEOUT_S: Final = 3.0


class Membership:
    """The groups of one client. After changing them, the caller sends ``heartbeat`` on every open connection."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._producers: set[str] = set()
        self._consumers: dict[str, ConsumerGroup] = {}
        self._body = b""
        #: By broker: the groups as it has them, from which other member they differ, and whether the log says it.
        self._conflicts: dict[str, tuple[bytes, str, bool]] = {}

    @property
    def is_empty(self) -> bool:
        """No group is registered, so no broker pushes anything to this client."""
        return not self._producers and not self._consumers

    @property
    def producers(self) -> frozenset[str]:
        """Registered producer groups."""
        return frozenset(self._producers)

    @property
    def consumers(self) -> frozenset[str]:
        """Registered consumer groups."""
        return frozenset(self._consumers)

    def add_producer(self, group: str) -> bool:
        """Register as a producer of ``group``, which answers its checks. False: it already was."""
        if group in self._producers:
            return False
        self._producers.add(group)
        self._body = b""
        return True

    def set_consumer(self, consumer: ConsumerGroup) -> None:
        """Add a consumer group, or replace its subscriptions."""
        self._consumers[consumer.group] = consumer
        self._body = b""

    def remove_consumer(self, group: str) -> None:
        """Remove a consumer group; call ``leave_consumer`` on each connection too."""
        self._consumers.pop(group, None)
        self._body = b""

    async def introduce(self, connection: Connection) -> None:
        """Send heartbeats on a new connection, before anybody uses it, until the broker has the current groups.

        Groups may change while a heartbeat waits for its response, and such changes are sent on open connections only.

        Raises:
            NotSent, NoAnswer: the connection failed.
        """
        heard: set[str] = set()
        while True:
            body = self._encoded()
            heard |= self._consumers.keys()
            await self.heartbeat(connection)
            gone = heard - self._consumers.keys()
            for group in sorted(gone):
                await self.leave_consumer(connection, group, _TIMEOUT_S)
            heard -= gone
            if not gone and self._encoded() == body:
                return

    def _encoded(self) -> bytes:
        if not self._body:
            consumers = tuple(self._consumers[group] for group in sorted(self._consumers))
            self._body = encode_heartbeat(HeartbeatBody(self.client_id, tuple(sorted(self._producers)), consumers))
        return self._body

    async def heartbeat(self, connection: Connection, timeout_s: float = _TIMEOUT_S) -> None:
        """Send one heartbeat; stores the broker's version and kind on ``connection``.

        Raises:
            NotSent, NoAnswer: the connection failed, or the broker is stopping.
        """
        await connection.ready(timeout_s)  # before encoding, so that the groups are current when written
        body = self._encoded()
        answer = await connection.request(RequestCode.HEART_BEAT, None, body, timeout_s=timeout_s)
        if answer.code == ResponseCode.GO_AWAY:
            raise NoAnswer(f"{connection.address} is stopping")
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "%s refused the heartbeat of %s: %s (code %d)",
                connection.address, self.client_id, answer.remark, answer.code,
            )  # fmt: skip
        connection.version = answer.version
        self._note_conflict(str(connection.address), body, answer.ext.get(EXT_CONFLICT, ""))
        # A refusal, as for a group that the user may not use, has no fields.
        is_refused_by_ours = answer.code == ResponseCode.NO_PERMISSION and answer.language == LANGUAGE_OURS
        connection.is_halfmq = is_refused_by_ours or EXT_VERSION in answer.ext

    def _note_conflict(self, broker: str, body: bytes, conflict: str) -> None:
        """Log that the other members of a group subscribe to something else, once, and with the second heartbeat that says so: consumers
        of one client begin one after the other, and other members are perhaps being replaced at the moment."""
        if not conflict:
            self._conflicts.pop(broker, None)
            return
        known_body, known, is_logged = self._conflicts.get(broker, (b"", "", False))
        is_same = (known_body, known) == (body, conflict)
        if is_same and not is_logged:
            log.warning("broker %s: %s", broker, conflict)
        self._conflicts[broker] = body, conflict, is_same

    async def leave(self, connection: Connection, timeout_s: float) -> None:
        """Unregister all groups, so that other members take over at once.

        Raises:
            NotSent, NoAnswer: the connection failed; the broker then unregisters the client by itself.
        """
        for group in sorted(self._producers):
            ext = {"clientID": self.client_id, "producerGroup": group}
            await connection.request(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=timeout_s)
        for group in sorted(self._consumers):
            await self.leave_consumer(connection, group, timeout_s)

    async def leave_consumer(self, connection: Connection, group: str, timeout_s: float) -> None:
        """Unregister from one consumer group. Raises NotSent, NoAnswer."""
        ext = {"clientID": self.client_id, "consumerGroup": group}
        await connection.request(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=timeout_s)
