"""The back-check: ask a producer what became of its transaction (39).

Core says which transaction, which connection and how often it was asked; here it becomes a frame with the half message
in RocketMQ's stored layout, under the offsets that identify the transaction's first half, whatever copy its bytes lie in
now: the answer (37) must name them. When the connection is gone core is told, and the check does not count. So it is when the
connection does not read what it was sent; then it counts as reachable again as soon as it does. For a client that fetches its
checks the half goes into the answer of its poll instead (``feedback``).
"""

from halfmq.broker.connection import Connection
from halfmq.broker.feedback import Feedback
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.stored import StoredMessages
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import CheckNotSent
from halfmq.core.decision import SendCheck
from halfmq.core.session import CheckLeft, Reachable
from halfmq.model.ids import offset_message_id
from halfmq.model.properties import HMQ_TX_ID, UNIQ_KEY, find
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, AT_QUEUE_OFFSET, decode
from halfmq.wire.remoting.message_codec import encode_check, with_check_times


class BackCheck:
    def __init__(
        self,
        gateway: Gateway,
        sequencer: Sequencer,
        stored: StoredMessages,
        feedback: Feedback,
        time: BrokerTime,
        *,
        store_host: bytes,
        broker_name: str,
    ) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._stored = stored
        self._feedback = feedback
        self._time = time
        self._store_host = store_host
        self._broker_name = broker_name
        #: Connection -> producer group -> client id: checks that it had no room for.
        self._missed: dict[int, dict[str, str]] = {}

    def send(self, check: SendCheck) -> None:
        half = self._half(check)
        if self._leaves(check, half):
            if self._sequencer.view.derived.policies:
                left = CheckLeft(check.group, check.tx_id, check.checks, self._time.now_ms())
                self._sequencer.engine.note(left)
            return
        if half is not None and check.connection in self._gateway.connections:
            self._remember(check)
        # First: a check that is decided in the same turn must not be numbered as if this one had gone out.
        self._sequencer.submit_first(CheckNotSent(check.group, check.tx_id, check.connection, half is None))

    def _leaves(self, check: SendCheck, half: bytes | None) -> bool:
        if self._feedback.expects(check):
            return self._feedback.add(check, None if half is None else with_check_times(half, check.checks))
        group = self._sequencer.view.producer_groups.get(check.group)
        if half is None or group is None or check.connection not in group.session.members:
            return False  # a poll that has ended: who fetches is not pushed to
        return self._gateway.push_frame(check.connection, lambda opaque: self._frame(opaque, check, half))

    def _remember(self, check: SendCheck) -> None:
        group = self._sequencer.view.producer_groups.get(check.group)
        client_id = group.session.members.get(check.connection) if group is not None else None
        if client_id is not None:
            self._missed.setdefault(check.connection, {})[check.group] = client_id

    def drained(self, connection: Connection) -> None:
        """The connection takes checks again: behind the commands that said it does not."""
        if connection.number in self._missed and not self._sequencer.after_turn(self._back, connection.number):
            self._back(connection.number)

    def _back(self, number: int) -> None:
        groups = self._missed.pop(number, {})
        if number in self._gateway.connections:
            for group, client_id in groups.items():
                self._sequencer.engine.note(Reachable(number, client_id, group))
            self._sequencer.look_at_deadline()

    def connection_closed(self, number: int) -> None:
        self._missed.pop(number, None)

    def _half(self, check: SendCheck) -> bytes | None:
        """The half as it leaves: under the offsets that its producer was answered. None when the log has it no more."""
        half = self._stored.half_bytes(check.offset)
        if half is None:
            return None
        copy = bytearray(half)
        copy[AT_QUEUE_OFFSET : AT_QUEUE_OFFSET + 8] = check.half_index.to_bytes(8, "big")
        copy[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8] = check.first_offset.to_bytes(8, "big")
        return bytes(copy)

    def _frame(self, opaque: int, check: SendCheck, half: bytes) -> bytes:
        properties = decode(half)[0].properties
        unique_id = find(properties, UNIQ_KEY)
        several = find(properties, HMQ_TX_ID)
        return encode_check(
            opaque,
            half,
            half_index=check.half_index,
            first_offset=check.first_offset,
            message_id=unique_id.decode("utf-8", "replace") if unique_id else check.tx_id,
            offset_id=offset_message_id(self._store_host, check.first_offset),
            checks=check.checks,
            broker_name=self._broker_name,
            tx_id=check.tx_id if several else "",
        )
