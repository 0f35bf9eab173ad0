"""The marker table of one database alias: the client's interface of that name, over Django's connections."""

import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Unpack

from halfmq import limits
from halfmq.client.arguments import PrepareOptions
from halfmq.client.log import logger
from halfmq.client.marker_table import BlockingTransactionCalls, CheckFunction, TransactionCalls
from halfmq.client.marker_table import MarkerTable as MarkerTablePort
from halfmq.client.outcome import Outcome
from halfmq.django.database import connection_to, place
from halfmq.django.marker_rows import MarkerRows, wall_ms
from halfmq.django.tables import MARKERS_TABLE
from halfmq.django.work import AtomicWork
from halfmq.errors import UsageError
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.sql.rules.block import Block, SqlTransaction
from halfmq.sql.rules.check import AgeGuard, Asked
from halfmq.wire.remoting.codes import DECIDED_BY_MARKER

_log = logger(__name__)

#: Checks that this database cannot answer are logged at most once in so many seconds.
_WARN_INTERVAL_S: Final = 60.0


class Markers:
    """``halfmq.client.marker_table.MarkerTable``, which says what its methods do; a session is the alias itself."""

    def __init__(self, using: str, *, min_age_ms: int = limits.CHECK_IMMUNITY_MS) -> None:
        self.using = using
        self.rows = MarkerRows(using)
        self._guard = AgeGuard(min_age_ms, wall_ms, lambda: time.monotonic_ns() // 1_000_000)
        self._warnings = LogThrottle(time.monotonic, rest_s=_WARN_INTERVAL_S)

    @property
    def name(self) -> str:
        """As ``halfmq.sql.MarkerTable`` names the same table, so that services with SQLAlchemy and with Django answer for each other."""
        return f"sql.{MARKERS_TABLE}" if self.using == "default" else f"sql.{MARKERS_TABLE}.{self.using}"

    def bind(
        self,
        client: BlockingTransactionCalls,
        session: Any,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractContextManager[SqlTransaction]:
        durable: bool = session
        return Block(
            client, self.name, lambda tx_id: AtomicWork(self.using, self.rows, durable=durable, tx_id=tx_id), options
        )

    def bind_async(
        self,
        client: TransactionCalls,
        session: Any,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractAsyncContextManager[SqlTransaction]:
        raise UsageError(
            "Django has no asynchronous transactions", hint="sync_to_async around a function with mq.atomic"
        )

    def checker(self, sessions: Any) -> CheckFunction:
        def check(asked: Asked) -> Outcome:
            connection = connection_to(self.using)
            try:
                asked.decided_by = DECIDED_BY_MARKER
                decided = self.rows.decide(
                    connection,
                    asked.id,
                    origin=asked.marker,
                    prepared_at_ms=asked.prepared_at_ms,
                    may_fence=not self._guard.is_new(asked),
                )
                if decided.remark:
                    asked.remark = f"{decided.remark} (asked: {place(connection)})"
                    if self._warnings.is_due(asked.marker.partition(".")[0]):
                        _log.warning("transaction %s stays undecided: %s", asked.id, asked.remark)
                return decided.outcome
            finally:
                # The thread belongs to the client. No request ends in it, after which Django would look whether the connection still works.
                connection.close()

        return check


@cache
def markers_of(using: str) -> Markers:
    """The marker table of a database alias, once for each process."""
    return Markers(using)


if TYPE_CHECKING:
    _conforms: type[MarkerTablePort] = Markers
