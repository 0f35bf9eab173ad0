"""What this client tells each broker of itself: its id, its producer groups, its consumer groups (HEART_BEAT, 34).

A broker knows a client by its connection, so the heartbeat is the first thing on every new one, before any request
(``introduce``); then every 30 s. Checks for a producer group come back on the connections that named it.
"""

from typing import Final

from halfmq.client.connection import Connection, NoAnswer
from halfmq.client.log import log
from halfmq.wire.remoting.codes import EXT_VERSION, RequestCode, ResponseCode
from halfmq.wire.remoting.heartbeat import ConsumerGroup, HeartbeatBody, encode_heartbeat

#: Precedent: RocketMQ ``heartbeatBrokerInterval``.
HEARTBEAT_S: Final = 30.0
_TIMEOUT_S: Final = 3.0


class Membership:
    """Groups of this client. Whoever changes them sends heartbeats at once."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._producers: set[str] = set()
        self._consumers: dict[str, ConsumerGroup] = {}
        self._body = b""

    @property
    def is_empty(self) -> bool:
        """Nobody here waits for anything from a broker."""
        return not self._producers and not self._consumers

    @property
    def producers(self) -> frozenset[str]:
        return frozenset(self._producers)

    @property
    def consumers(self) -> frozenset[str]:
        return frozenset(self._consumers)

    def add_producer(self, group: str) -> bool:
        """This client answers checks of ``group``. False: it did already."""
        if group in self._producers:
            return False
        self._producers.add(group)
        self._body = b""
        return True

    def set_consumer(self, consumer: ConsumerGroup) -> None:
        self._consumers[consumer.group] = consumer
        self._body = b""

    def remove_consumer(self, group: str) -> None:
        self._consumers.pop(group, None)
        self._body = b""

    async def introduce(self, connection: Connection) -> None:
        """The first words on a connection that is not handed out yet: until the broker knows the groups of this moment.

        Who joins or leaves a group tells the connections that are open, and the answer here may take seconds.

        Raises:
            NotSent, NoAnswer: the connection does not live.
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

    async def heartbeat(self, connection: Connection) -> None:
        """One heartbeat; notes what the broker says of itself on the connection.

        Raises:
            NotSent, NoAnswer: the connection does not live.
        """
        await connection.ready(_TIMEOUT_S)  # first, so that what is said is true when it is written
        answer = await connection.request(RequestCode.HEART_BEAT, None, self._encoded(), timeout_s=_TIMEOUT_S)
        if answer.code == ResponseCode.GO_AWAY:
            raise NoAnswer(f"{connection.address} is stopping")
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "%s refused the heartbeat of %s: %s (code %d)",
                connection.address, self.client_id, answer.remark, answer.code,
            )  # fmt: skip
        connection.version = answer.version
        connection.is_halfmq = EXT_VERSION in answer.ext

    async def leave(self, connection: Connection, timeout_s: float) -> None:
        """Unregister all groups, so that others take over at once.

        Raises:
            NotSent, NoAnswer: the connection does not live; the broker notices its end anyway.
        """
        for group in sorted(self._producers):
            ext = {"clientID": self.client_id, "producerGroup": group}
            await connection.request(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=timeout_s)
        for group in sorted(self._consumers):
            await self.leave_consumer(connection, group, timeout_s)

    async def leave_consumer(self, connection: Connection, group: str, timeout_s: float) -> None:
        ext = {"clientID": self.client_id, "consumerGroup": group}
        await connection.request(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=timeout_s)
