"""Commands that the broker forwards to a client (307), translated to and from ``services.client_calls``.

The client gets the command as a request of the broker, with a request number of the broker.
"""

from functools import partial
from typing import Any

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.client_calls import ClientCalls
from halfmq.core.decision import Refused
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, ext_text


class ClientCommands:
    """Requests that the broker forwards to a client (307), and the client's responses."""

    def __init__(self, gateway: Gateway, calls: ClientCalls[Request[Any]]) -> None:
        self._gateway = gateway
        self._calls = calls
        gateway.on_response = self.answered
        gateway.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self.running_info

    def running_info(self, connection: Connection, request: Request[Any]) -> None:
        """307: a consumer's description of its own state."""
        fields = request.ext
        if request.body:
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, "307 has no body")
            return
        ext = {
            "consumerGroup": fields.consumer_group,
            "clientId": fields.client_id,
            "jstackEnable": fields.jstack_enable,
        }
        self._calls.ask_consumer(
            connection,
            fields.consumer_group,
            fields.client_id,
            lambda number: self._gateway.call(number, request.code, ext),
            partial(self._answer, connection, request.to_answer(None)),
        )

    def answered(self, connection: Connection, answer: Request[Any]) -> None:
        """A client responded to a call: forward the response to the requester."""
        self._calls.answered(connection, answer.opaque, answer)

    def _answer(self, connection: Connection, request: Request[None], said: Request[Any] | Refused) -> None:
        if isinstance(said, Refused):
            self._gateway.answer(connection, request, *refusal(said))
        else:
            ext = {name: ext_text(value) for name, value in said.ext.items()}
            self._gateway.answer(connection, request, said.code, said.remark, ext, said.body)
