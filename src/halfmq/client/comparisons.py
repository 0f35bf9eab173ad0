"""Compares verdicts that others gave with what the application's database did: damage that an operator, a policy or a coordinator may have
done.

A client that answers checks from a marker table asks its brokers which verdicts of its group are to be compared, reads the marker of each
as a check does, and reports what it says. As in a check, a missing marker is fenced, so that a local transaction that commits late fails
and agrees with a ROLLBACK. UNKNOWN reports nothing, and is asked again. Stock listeners and plain check functions are never asked: they may
forget, and a second answer from memory is no evidence.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.halfmq_requests import report_fields
from halfmq.client.log import log
from halfmq.client.outcome import Outcome
from halfmq.client.refusals import refusal
from halfmq.client.transaction_block import Transaction
from halfmq.errors import HalfmqError
from halfmq.model.pending import AwaitedComparison
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import HMQ_COMPARED, HMQ_COMPARISONS, ResponseCode
from halfmq.wire.remoting.operators import AWAITED, EXT_NEXT, GroupPageFields

if TYPE_CHECKING:
    from halfmq.client.check_listener import CheckListener
    from halfmq.client.context import ClientContext

#: How long after the first marker table was registered a broker is asked, and how often from then on, seconds. A request that is answered
#: with nothing costs a broker some 50 us.
FIRST_S: Final = 2.0
INTERVAL_S: Final = 10.0
#: Of one request; the next round asks again.
_TIMEOUT_S: Final = 5.0
_WHAT: Final = "comparing verdicts with markers"


@dataclass(eq=False)
class Comparer:
    """Compares while ``run`` runs."""

    _context: "ClientContext"
    _group: str
    _listener: "CheckListener"
    #: Of the marker tables from which this client answers checks.
    _names: Callable[[], "set[str]"]

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.sleep(FIRST_S * self._context.rng.uniform(0.5, 1.0))
        while True:
            for connection in self._context.brokers.established():
                if connection.is_halfmq:
                    try:
                        await self._compare_all(connection)
                    except (HalfmqError, NotSent, NoAnswer) as error:
                        log.debug("%s at %s: %s", _WHAT, connection.address, error)
            await asyncio.sleep(INTERVAL_S * self._context.rng.uniform(0.8, 1.0))

    async def _compare_all(self, connection: Connection) -> None:
        start = 0
        while True:
            fields = write_fields(GroupPageFields(self._group, start))
            answer = await connection.request(HMQ_COMPARISONS, fields, timeout_s=_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer.code, answer.remark, _WHAT)
            for row in AWAITED.decode(answer.body):
                await self._compare(connection, row)
            following = answer.ext.get(EXT_NEXT, "")
            if not following.isdecimal() or int(following) <= start:
                return
            start = int(following)

    async def _compare(self, connection: Connection, row: AwaitedComparison) -> None:
        if row.name not in self._names():
            return  # another release, or another process of the group, has its marker table
        transaction = Transaction(row.tx_id, row.name)
        transaction.marker, transaction.prepared_at_ms, transaction.checks = row.marker, row.prepared_at_ms or None, 1
        outcome = await self._listener.outcome_of(transaction)
        if outcome is not Outcome.UNKNOWN:
            await self._report(connection, row.tx_id, outcome, row.name[:64])

    async def _report(self, connection: Connection, tx_id: str, outcome: Outcome, source: str) -> Answer:
        fields = report_fields(self._group, tx_id, outcome, source, is_marker=True)
        return await connection.request(HMQ_COMPARED, fields, timeout_s=_TIMEOUT_S)
