"""The back-check as a frame (39): implements ``services.checks.Producers`` with the connections of the gateway."""

from halfmq.broker.remoting.gateway import Gateway
from halfmq.core.decision import SendCheck
from halfmq.model.ids import offset_message_id
from halfmq.model.properties import HMQ_TX_ID, UNIQ_KEY, find
from halfmq.model.stored_message import decode
from halfmq.wire.remoting.message_codec import encode_check


class PushedChecks:
    """Sends a check to a producer, as CHECK_TRANSACTION_STATE (39)."""

    def __init__(self, gateway: Gateway, *, store_host: bytes, broker_name: str) -> None:
        self._gateway = gateway
        self._store_host = store_host
        self._broker_name = broker_name

    def is_connected(self, number: int) -> bool:
        """Whether the connection still exists."""
        return number in self._gateway.connections

    def push_check(self, check: SendCheck, half: bytes) -> bool:
        """Send the check with its ``half`` as stored; False: the connection is gone, or its client does not read."""
        return self._gateway.push_frame(check.connection, lambda opaque: self._frame(opaque, check, half))

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
