"""Queries for administrators: which ones the broker knows, and to let it forget one (``core.transaction.query_limits``)."""

import logging
from collections.abc import Callable
from typing import Any, Final

from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor_with_reason
from halfmq.broker.services.pages import Page, page_of
from halfmq.broker.services.peer import Peer, ThrottledLog
from halfmq.core.commands import ForgetQuery
from halfmq.core.decision import QueryRemoved, Refused
from halfmq.core.engine import Failed
from halfmq.core.view import QueryView, View
from halfmq.model.pending import QueryInfo
from halfmq.model.query_batch import query_text

log: Final = logging.getLogger("halfmq.operators")


class Queries:
    """The queries that the broker knows."""

    def __init__(self, sequencer: Sequencer, log_throttled: ThrottledLog) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view
        self._log_throttled = log_throttled

    def page(self, count: int, start: int) -> Page[QueryInfo]:
        """``count`` queries, in the order in which the broker got to know them. ``start``: as for ``page_of``."""
        return page_of(self._view.queries.values(), count, start, lambda query: _info(self._view, query))

    def forget(
        self,
        peer: Peer,
        name: str,
        topic: str,
        operator: str,
        reason: str,
        answer: Callable[[QueryRemoved | Refused | Failed], None],
    ) -> None:
        """Forget one query. Its batches can be written again, also those that are visible.

        Refusals: INVALID_PARAMETER: no name or reason. NOT_FOUND. NOT_NOW: it has undecided batches.
        """
        by = actor_with_reason(peer, operator, reason, "lets the broker forget it")
        if isinstance(by, Refused):
            answer(by)
            return

        def is_done(_: None, reply: Any) -> None:
            if isinstance(reply, QueryRemoved):
                self._log_throttled(
                    log, logging.WARNING, ("query", reply.name, reply.topic), peer,
                    "operator %s from %s let the broker forget %s, of which batch %d was the last one decided; reason: %s",
                    by.name, peer.address, query_text(reply.name, reply.topic), reply.last_batch, by.reason,
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(ForgetQuery(name, topic, by), is_done)


def _info(view: View, query: QueryView) -> QueryInfo:
    last = query.decisions.get(query.last_batch)
    return QueryInfo(
        query.name, query.topic, query.stream, query.group, query.run, query.last_batch,
        -1 if last is None else last.position, len(query.decisions),
        len(view.derived.undecided_of_query.get(query.key, ())), query.is_over,
    )  # fmt: skip
