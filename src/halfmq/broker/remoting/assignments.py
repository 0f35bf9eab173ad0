"""400 and 401: assignment of queues by the broker (``clientRebalance=false``), and the consume mode; from ``services.queues``.

Queues are always consumed in PULL mode: POP is not supported. A 401 that requests POP is refused, and the group continues to consume as
before.
"""

from typing import Any, Final

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.queues import Queues
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import (
    PULL_MODE,
    MessageQueue,
    decode_assignment_query,
    decode_mode_request,
    encode_assignments,
)
from halfmq.wire.remoting.header import Request

_BROADCASTING: Final = "BROADCASTING"


class Assignments:
    """Requests about queues that the broker assigns to the members of a group (400, 401)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, queues: Queues, *, broker_name: str) -> None:
        self._gateway = gateway
        self._queues = queues
        self._durably = DurableAnswers(gateway, sequencer)
        self._broker_name = broker_name
        gateway.handlers[RequestCode.QUERY_ASSIGNMENT] = self.query
        gateway.handlers |= guarded(gateway, {RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode})

    def query(self, connection: Connection, request: Request[Any]) -> None:
        """400. The response has no list if the topic or the group's members are not known (yet): the client asks again soon."""
        asked = decode_assignment_query(request.body)
        mine = self._queues.assigned(
            asked.group,
            asked.topic,
            asked.client_id,
            strategy=asked.strategy,
            is_broadcasting=asked.message_model == _BROADCASTING,
        )
        queues = None if mine is None else [MessageQueue(asked.topic, self._broker_name, queue) for queue in mine]
        self._durably.tell(connection, request, ResponseCode.SUCCESS, body=encode_assignments(queues))

    def set_mode(self, connection: Connection, request: Request[Any]) -> None:
        """401: PULL is the only mode."""
        asked = decode_mode_request(request.body)
        if asked.mode == PULL_MODE:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
            return
        self._gateway.unsupported_requests.mode(connection.address, asked.group, asked.topic, asked.mode)
        text = f"mode {asked.mode} is not supported: group {asked.group} continues to consume {asked.topic} in {PULL_MODE} mode"
        self._gateway.answer(connection, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
