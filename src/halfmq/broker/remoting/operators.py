"""Commands of operators (29002 to 29006, 29010; ``wire.remoting.operators``), translated to and from ``services.transactions``.

The port has no access control yet, as for every other command.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.administration import guarded
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.pages import page_count
from halfmq.broker.services.transactions import LISTING_COST, CheckSent, Listing, Story, Transactions
from halfmq.broker.turns import BUSY, Turns
from halfmq.core.commands import RequestedVerdict
from halfmq.core.decision import ParkedChecked, Refused, Settled, Why
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import (
    EXT_DURABILITY,
    EXT_POSITION,
    EXT_REPEATED,
    EXT_TX_ID,
    EXT_VERDICT,
    HMQ_ASK,
    HMQ_ASK_PARKED,
    HMQ_RESOLVE,
    HMQ_STORY,
    HMQ_TRANSACTIONS,
    HMQ_UNDECIDED,
    ResponseCode,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_AT,
    EXT_CHECK_OPEN,
    EXT_CHECKS,
    EXT_CLIENT,
    EXT_COORDINATOR,
    EXT_GROUP,
    EXT_ID,
    EXT_LEFT,
    EXT_MAX,
    EXT_NEXT,
    EXT_OPERATOR,
    EXT_REASON,
    EXT_STATE,
    EXT_TOTAL,
    EXT_VERDICT_WANTED,
    STORY,
    decode_ids,
    encode_ids,
    encode_pending,
)

_WANTED: Final = {"COMMIT": RequestedVerdict.COMMIT, "ROLLBACK": RequestedVerdict.ROLLBACK}


def _meant(request: Request[Any]) -> tuple[str, str]:
    """(transaction id, producer group or "") of the request."""
    return request.ext.get(EXT_ID, ""), request.ext.get(EXT_GROUP, "")


class Operators:
    """Responses may wait for a search: what they keep of a request is ``to_answer``, without its fields and its body."""

    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, transactions: Transactions, turns: Turns, *, durability: str
    ) -> None:
        self._gateway = gateway
        self._turns = turns
        self._transactions = transactions
        self._durability = durability
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers |= {
            HMQ_TRANSACTIONS: self.transactions,
            HMQ_STORY: self.story,
            HMQ_UNDECIDED: self.undecided,
        }
        gateway.handlers |= guarded(
            gateway, {HMQ_RESOLVE: self.resolve, HMQ_ASK: self.ask, HMQ_ASK_PARKED: self.ask_parked}
        )

    def transactions(self, connection: Connection, request: Request[Any]) -> None:
        """29002: a page of undecided transactions."""
        asked = self._durably.requested_page(connection, request)
        if asked is None:
            return
        group, coordinator = request.ext.get(EXT_GROUP, ""), request.ext.get(EXT_COORDINATOR, "")
        request = request.to_answer(None)

        def answer(listed: Listing) -> None:
            ext = {EXT_TOTAL: listed.total, EXT_AT: listed.at_ms}
            if listed.following:
                ext[EXT_NEXT] = listed.following
            self._tell(connection, request, ext, encode_pending(listed.rows))

        steps = self._transactions.undecided(group, *asked, coordinator)
        failed = partial(self._gateway.failed, connection, request)
        if not self._turns.run(connection, LISTING_COST, steps, answer, failed, in_order=False):
            self._refuse(connection, request, Refused(Why.NOT_NOW, BUSY))

    def story(self, connection: Connection, request: Request[Any]) -> None:
        """29003: the history of one transaction."""
        tx_id, group = _meant(request)
        request = request.to_answer(None)

        def answer(told: Story | Refused) -> None:
            if isinstance(told, Refused):
                self._refuse(connection, request, told)
            else:
                ext = {EXT_GROUP: told.group, EXT_STATE: told.state}
                if told.check_open:
                    ext[EXT_CHECK_OPEN] = "true"
                self._tell(connection, request, ext, STORY.encode(told.sentences))

        self._transactions.story(tx_id, group, answer)

    def resolve(self, connection: Connection, request: Request[Any]) -> None:
        """29004: an operator's verdict."""
        ext = request.ext
        wanted = _WANTED.get(ext.get(EXT_VERDICT_WANTED, ""))
        if wanted is None:
            text = f"{EXT_VERDICT_WANTED}: COMMIT or ROLLBACK"
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)
            return
        request = request.to_answer(None)

        def answer(reply: Settled | Refused | Failed) -> None:
            if not isinstance(reply, Settled):
                self._refuse(connection, request, reply)
                return
            told = {
                EXT_GROUP: reply.group,
                EXT_TX_ID: reply.tx_id,
                EXT_VERDICT: "COMMITTED" if reply.committed else "ROLLED_BACK",
                EXT_POSITION: reply.position,
                EXT_DURABILITY: self._durability,
                EXT_REPEATED: reply.repeated,
            }
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)

        tx_id, group = ext.get(EXT_ID, ""), ext.get(EXT_GROUP, "")
        operator, reason = ext.get(EXT_OPERATOR, ""), ext.get(EXT_REASON, "")
        self._transactions.resolve(connection, tx_id, group, wanted, operator, reason, answer)

    def ask(self, connection: Connection, request: Request[Any]) -> None:
        """29006: check one transaction now."""
        tx_id, group = _meant(request)
        request = request.to_answer(None)

        def answer(reply: CheckSent | Refused | Failed) -> None:
            if isinstance(reply, CheckSent):
                told = {EXT_GROUP: reply.group, EXT_CLIENT: reply.client_id, EXT_CHECKS: reply.checks}
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
            else:
                self._refuse(connection, request, reply)

        self._transactions.ask(tx_id, group, answer)

    def ask_parked(self, connection: Connection, request: Request[Any]) -> None:
        """29010: check parked transactions of a group."""
        group, count = request.ext.get(EXT_GROUP, ""), page_count(request.ext.get(EXT_MAX))
        if group and isinstance(count, Refused):  # a missing group is reported first
            self._refuse(connection, request, count)
            return
        request = request.to_answer(None)

        def answer(reply: ParkedChecked | Refused | Failed) -> None:
            if isinstance(reply, ParkedChecked):
                ext = {EXT_GROUP: group, EXT_LEFT: reply.left}
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, encode_ids(reply.tx_ids))
            else:
                self._refuse(connection, request, reply)

        self._transactions.ask_parked(connection, group, 0 if isinstance(count, Refused) else count, answer)

    def undecided(self, connection: Connection, request: Request[Any]) -> None:
        """29005: which of the named transactions are undecided."""
        ids, group = decode_ids(request.body), request.ext.get(EXT_GROUP, "")
        request = request.to_answer(None)

        def answer(found: list[str] | Refused) -> None:
            if isinstance(found, Refused):
                self._refuse(connection, request, found)
            else:
                self._tell(connection, request, {}, encode_ids(found))

        self._transactions.undecided_of(connection, ids, group, answer)

    def _refuse(self, connection: Connection, request: Request[Any], refused: Refused | Failed) -> None:
        self._gateway.answer(connection, request, *refusal(refused))

    def _tell(self, connection: Connection, request: Request[Any], ext: Mapping[str, object], body: bytes) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)
