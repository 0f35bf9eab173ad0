"""Commands of administrators for queries (29017, 29018), translated to and from ``services.queries``."""

from typing import Any

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.queries import Queries
from halfmq.core.decision import QueryRemoved, Refused
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import HMQ_FORGET_QUERY, HMQ_QUERIES, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import EXT_OPERATOR, EXT_REASON
from halfmq.wire.remoting.queries import EXT_LAST_BATCH, EXT_QUERY, EXT_QUERY_TOPIC, QUERIES


class QueryCommands:
    """Lists queries, and forgets one (29017, 29018)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, queries: Queries) -> None:
        self._gateway = gateway
        self._queries = queries
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {HMQ_QUERIES: self.list, **guarded(gateway, {HMQ_FORGET_QUERY: self.forget})}

    def list(self, connection: Connection, request: Request[Any]) -> None:
        """29017: a page of queries."""
        if asked := self._durably.requested_page(connection, request):
            page = self._queries.page(*asked)
            self._durably.tell_page(connection, request, page, QUERIES.encode(page.rows))

    def forget(self, connection: Connection, request: Request[Any]) -> None:
        """29018: the broker forgets a query."""
        ext = request.ext
        request = request.to_answer(None)

        def answer(reply: QueryRemoved | Refused | Failed) -> None:
            if isinstance(reply, QueryRemoved):
                told = {EXT_LAST_BATCH: reply.last_batch}
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
            else:
                self._gateway.answer(connection, request, *refusal(reply))

        self._queries.forget(
            connection, ext.get(EXT_QUERY, ""), ext.get(EXT_QUERY_TOPIC, ""), ext.get(EXT_OPERATOR, ""), ext.get(EXT_REASON, ""),
            answer,
        )  # fmt: skip
