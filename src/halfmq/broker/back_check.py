"""The back-check: ask a producer what became of its transaction (39).

Core says which transaction, which connection and how often it was asked; here it becomes a frame with the half message
in RocketMQ's stored layout, under the offsets that identify the transaction's first half, whatever copy its bytes lie in
now: the answer (37) must name them. When the connection is gone core is told, and the check does not count.
"""

from halfmq.broker.pump import Failed, Pump
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.stored import StoredMessages
from halfmq.core.commands import CheckNotSent
from halfmq.core.decision import Reply, SendCheck
from halfmq.model.ids import offset_message_id
from halfmq.model.properties import HMQ_TX_ID, UNIQ_KEY, find
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, AT_QUEUE_OFFSET, decode
from halfmq.wire.remoting.message_codec import encode_check


class BackCheck:
    def __init__(
        self, gateway: Gateway, pump: Pump, stored: StoredMessages, *, store_host: bytes, broker_name: str
    ) -> None:
        self._gateway = gateway
        self._pump = pump
        self._stored = stored
        self._store_host = store_host
        self._broker_name = broker_name

    def send(self, check: SendCheck) -> None:
        half = self._stored.half_bytes(check.offset)
        if half is None or not self._gateway.push_frame(
            check.connection, lambda opaque: self._frame(opaque, check, half)
        ):
            self._pump.submit(CheckNotSent(check.group, check.tx_id), _nothing)

    def _frame(self, opaque: int, check: SendCheck, half: bytes) -> bytes:
        copy = bytearray(half)
        copy[AT_QUEUE_OFFSET : AT_QUEUE_OFFSET + 8] = check.half_index.to_bytes(8, "big")
        copy[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8] = check.first_offset.to_bytes(8, "big")
        properties = decode(copy)[0].properties
        unique_id = find(properties, UNIQ_KEY)
        several = find(properties, HMQ_TX_ID)
        return encode_check(
            opaque,
            bytes(copy),
            half_index=check.half_index,
            first_offset=check.first_offset,
            message_id=unique_id.decode("utf-8", "replace") if unique_id else check.tx_id,
            offset_id=offset_message_id(self._store_host, check.first_offset),
            checks=check.checks,
            broker_name=self._broker_name,
            tx_id=check.tx_id if several else "",
        )


def _nothing(context: None, reply: Reply | Failed) -> None:
    """Nobody waits for this reply."""
