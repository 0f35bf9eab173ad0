"""Compares verdicts that others gave with what the application's database did: damage that an operator, a policy or a coordinator may have done.

A client that answers checks from a marker table asks its brokers which verdicts of its group are to be compared, reads the marker of each as
a check does, and reports what it says. As in a check, a missing marker is fenced, so that a local transaction that commits late fails and
agrees with a ROLLBACK. UNKNOWN reports nothing, and is asked again. Stock listeners and plain check functions are never asked: they may
forget, and a second answer from memory is no evidence.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from halfmq.client.connection import Answer, Connection, NoAnswer, NotSent
from halfmq.client.log import log
from halfmq.client.outcome import Outcome
from halfmq.client.refusals import refusal
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, HalfmqError, RequestFailed, UnsupportedCombination
from halfmq.model.pending import AwaitedComparison
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_COMPARED, HMQ_COMPARISONS, ResponseCode
from halfmq.wire.remoting.comparisons import (
    AWAITED,
    EXT_AGREES,
    EXT_IS_MARKER,
    EXT_OUTCOME,
    EXT_SOURCE,
)
from halfmq.wire.remoting.operators import EXT_FROM, EXT_GROUP, EXT_ID, EXT_NEXT

if TYPE_CHECKING:
    from halfmq.client.check_listener import CheckListener
    from halfmq.client.connector import Address
    from halfmq.client.context import ClientContext

#: How long after the first marker table was registered a broker is asked, and how often from then on, seconds. A request that is answered with
#: nothing costs a broker some 50 us.
FIRST_S: Final = 2.0
INTERVAL_S: Final = 10.0
#: Of one request; the next round asks again.
_TIMEOUT_S: Final = 5.0
_WHAT: Final = "comparing verdicts with markers"


class Comparer:
    """Compares while ``run`` runs."""

    def __init__(
        self, context: "ClientContext", group: str, listener: "CheckListener", names: Callable[[], "set[str]"]
    ) -> None:
        """``names``: of the marker tables from which this client answers checks."""
        self._context = context
        self._group = group
        self._listener = listener
        self._names = names
        #: Connections of brokers that are too old to be asked.
        self._unsupported: set[Connection] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.sleep(FIRST_S * self._context.rng.uniform(0.5, 1.0))
        while True:
            for connection in self._context.brokers.established():
                if connection.is_halfmq and connection not in self._unsupported:
                    try:
                        await self._compare_all(connection)
                    except (HalfmqError, NotSent, NoAnswer) as error:
                        log.debug("%s at %s: %s", _WHAT, connection.address, error)
            self._unsupported = {one for one in self._unsupported if not one.closed}
            await asyncio.sleep(INTERVAL_S * self._context.rng.uniform(0.8, 1.0))

    async def _compare_all(self, connection: Connection) -> None:
        start = "0"
        while True:
            fields = {EXT_GROUP: self._group, EXT_FROM: start}
            answer = await connection.request(HMQ_COMPARISONS, fields, timeout_s=_TIMEOUT_S)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._unsupported.add(connection)
                return
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer.code, answer.remark or "", _WHAT)
            for row in AWAITED.decode(answer.body):
                await self._compare(connection, row)
            start = answer.ext.get(EXT_NEXT, "")
            if not start:
                return

    async def _compare(self, connection: Connection, row: AwaitedComparison) -> None:
        if row.name not in self._names():
            return  # another release, or another process of the group, has its marker table
        transaction = Transaction(row.tx_id, row.name)
        transaction.marker, transaction.prepared_at_ms, transaction.checks = row.marker, row.prepared_at_ms or None, 1
        outcome = await self._listener.outcome_of(transaction)
        if outcome is not Outcome.UNKNOWN:
            await self._report(connection, row.tx_id, outcome, row.name[:64])

    async def _report(self, connection: Connection, tx_id: str, outcome: Outcome, source: str) -> Answer:
        fields = report_fields(self._group, tx_id, outcome, source)
        return await connection.request(HMQ_COMPARED, {**fields, EXT_IS_MARKER: "true"}, timeout_s=_TIMEOUT_S)


def report_fields(group: str, tx_id: str, outcome: Outcome, source: str) -> dict[str, str]:
    """Fields of HMQ_COMPARED."""
    return {EXT_GROUP: group, EXT_ID: tx_id, EXT_OUTCOME: outcome.name, EXT_SOURCE: source}


async def report(context: "ClientContext", group: str, tx_id: str, outcome: Outcome, source: str) -> bool:
    """See ``AsyncClient.report_outcome``. Asks the brokers one after the other for the one that has the transaction."""
    what = f"reporting the outcome of {tx_id}"
    whole = context.attempts(what)
    try:
        await whole.within(context.router.learn_brokers())
    except NotSent as error:
        raise ConnectError(f"{what}: no name server answers: {error}") from error
    missing: RequestFailed | None = None
    for name, address in context.router.brokers().items():

        async def connect(address: "Address" = address) -> Connection:
            return await context.brokers.get(address)

        async def request(connection: Connection, timeout_s: float, name: str = name) -> Answer:
            if not connection.is_halfmq:
                raise UnsupportedCombination(f"broker {name} is Apache RocketMQ, which compares no verdicts")
            fields = report_fields(group, tx_id, outcome, source)
            answer = await connection.request(HMQ_COMPARED, fields, timeout_s=timeout_s)
            if answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER):  # not here; undecided
                raise refusal(answer.code, answer.remark or "", what, answer.ext.get(EXT_VERDICT, ""))
            return answer

        try:
            answer = await context.attempts(what, whole.left_s()).ask(connect, request)
        except RequestFailed as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                raise
            missing = error
            continue
        return answer.ext.get(EXT_AGREES) == "true"
    raise missing or ConnectError(f"{what}: no broker is known", hint="send or consume something first")
