"""400 and 401: who reads which queue, for consumers that leave it to the broker (``clientRebalance=false``), and how; from
``services.queues``.

Queues are always read in PULL mode: there is no POP here. 401 that asks for POP is refused, and the group goes on
consuming as it did.
"""

from typing import Any, Final

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
    """Queues that the broker shares out among the members of a group (400, 401)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, queues: Queues, *, broker_name: str) -> None:
        self._gateway = gateway
        self._queues = queues
        self._durably = DurableAnswers(gateway, sequencer)
        self._broker_name = broker_name
        gateway.handlers |= {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def query(self, connection: Connection, request: Request[Any]) -> None:
        """No list at all where the topic or the group's members are not known (yet): the client asks again soon."""
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
        """401: pull mode is the only one."""
        asked = decode_mode_request(request.body)
        if asked.mode == PULL_MODE:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
            return
        self._gateway.unsupported_requests.mode(connection.address, asked.group, asked.topic, asked.mode)
        text = f"mode {asked.mode} is not supported: group {asked.group} continues to consume {asked.topic} in {PULL_MODE} mode"
        self._gateway.answer(connection, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
