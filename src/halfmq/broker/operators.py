"""What those who look after a broker ask of it: 29002 to 29005 (``wire.remoting.operators``), and 29006, to ask now.

A verdict by hand goes the way of every verdict: a command for the pump, the table of ``core.transaction.states``, one
record that says ``operator``. Who it was and why stands in the broker's output, since the record has no place for names.
Whoever reaches the port may ask, as with every other command: there are no passwords yet.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from halfmq.broker.connection import Connection
from halfmq.broker.durable_answer import DurableAnswers
from halfmq.broker.pump import Failed, Pump
from halfmq.broker.refusals import refusal
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import AskNow, ResolveTransaction, Wanted
from halfmq.core.decision import Asked, Reply, Settled
from halfmq.core.transaction.listing import groups_of, oldest_undecided, standing, undecided_among
from halfmq.core.transaction.story import story
from halfmq.wire.remoting.codes import (
    EXT_DURABILITY,
    EXT_POSITION,
    EXT_REPEATED,
    EXT_TX_ID,
    EXT_VERDICT,
    ResponseCode,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_GROUP,
    EXT_ID,
    EXT_MAX,
    EXT_OPERATOR,
    EXT_REASON,
    EXT_STATE,
    EXT_TOTAL,
    EXT_VERDICT_WANTED,
    HMQ_RESOLVE,
    HMQ_STORY,
    HMQ_TRANSACTIONS,
    HMQ_UNDECIDED,
    LISTED_MAX,
    OPERATOR_CHARS_MAX,
    REASON_CHARS_MAX,
    decode_ids,
    encode_ids,
    encode_pending,
    encode_story,
)
from halfmq.wire.remoting.producer_groups import EXT_CHECKS, EXT_CLIENT, HMQ_ASK

log = logging.getLogger("halfmq.operators")

_WANTED: Final = {"COMMIT": Wanted.COMMIT, "ROLLBACK": Wanted.ROLLBACK}


class Operators:
    def __init__(self, gateway: Gateway, pump: Pump, time: BrokerTime, *, durability: str) -> None:
        self._gateway = gateway
        self._pump = pump
        self._time = time
        self._durability = durability
        self._durably = DurableAnswers(gateway, pump)
        gateway.handlers |= {
            HMQ_TRANSACTIONS: self.transactions,
            HMQ_STORY: self.story,
            HMQ_RESOLVE: self.resolve,
            HMQ_UNDECIDED: self.undecided,
            HMQ_ASK: self.ask,
        }

    def transactions(self, connection: Connection, request: Request[Any]) -> None:
        asked = request.ext.get(EXT_MAX, str(LISTED_MAX))
        if not asked.isdigit() or not 1 <= int(asked) <= LISTED_MAX:
            self._wrong(connection, request, f"{EXT_MAX} {asked!r}: 1 to {LISTED_MAX}")
            return
        state = self._pump.state
        group = request.ext.get(EXT_GROUP, "")
        total, listed = oldest_undecided(state, group, int(asked), self._time.now_ms())
        self._tell(connection, request, {EXT_TOTAL: total}, encode_pending(listed))

    def story(self, connection: Connection, request: Request[Any]) -> None:
        tx_id = request.ext.get(EXT_ID, "")
        group = self._group(connection, request, tx_id)
        if group is None:
            return
        state = self._pump.state
        sentences = story(state, group, tx_id, self._time.now_ms())
        ext = {EXT_GROUP: group, EXT_STATE: standing(state, group, tx_id)}
        self._tell(connection, request, ext, encode_story(sentences))

    def resolve(self, connection: Connection, request: Request[Any]) -> None:
        ext = request.ext
        operator, reason = ext.get(EXT_OPERATOR, "").strip(), ext.get(EXT_REASON, "").strip()
        wanted = _WANTED.get(ext.get(EXT_VERDICT_WANTED, ""))
        if wanted is None:
            self._wrong(connection, request, f"{EXT_VERDICT_WANTED}: COMMIT or ROLLBACK")
        elif not operator or len(operator) > OPERATOR_CHARS_MAX or not operator.isprintable():
            self._wrong(connection, request, f"{EXT_OPERATOR}: who decides, 1 to {OPERATOR_CHARS_MAX} characters")
        elif len(reason) > REASON_CHARS_MAX or not reason.isprintable():
            self._wrong(connection, request, f"{EXT_REASON}: one line of at most {REASON_CHARS_MAX} characters")
        else:
            tx_id = ext.get(EXT_ID, "")
            group = self._group(connection, request, tx_id)
            if group is not None:
                command = ResolveTransaction(group, tx_id, wanted, operator)
                self._pump.submit(command, self._resolved, (connection, request, command, reason))

    def _resolved(
        self, context: tuple[Connection, Request[Any], ResolveTransaction, str], reply: Reply | Failed
    ) -> None:
        connection, request, command, reason = context
        who = f"operator {command.operator} from {connection.peer}"
        what = f"{command.wanted.name} of transaction {command.tx_id} of group {command.group}"
        if not isinstance(reply, Settled):
            code, remark, ext = refusal(reply)
            log.info("%s: %s was refused: %s", who, what, remark)
            self._gateway.answer(connection, request, code, remark, ext)
            return
        if reply.repeated:
            log.info("%s: %s, as it stands since position %d", who, what, reply.position)
        else:
            log.warning("%s decided: %s at position %d, reason: %s", who, what, reply.position, reason or "none given")
        told = {
            EXT_GROUP: reply.group,
            EXT_TX_ID: reply.tx_id,
            EXT_VERDICT: "COMMITTED" if reply.committed else "ROLLED_BACK",
            EXT_POSITION: reply.position,
            EXT_DURABILITY: self._durability,
            EXT_REPEATED: reply.repeated,
        }
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)

    def ask(self, connection: Connection, request: Request[Any]) -> None:
        """A check now, whatever its time; also about what was set aside. The answer comes as to any check."""
        tx_id = request.ext.get(EXT_ID, "")
        group = self._group(connection, request, tx_id)
        if group is not None:
            self._pump.submit(AskNow(group, tx_id), self._asked, (connection, request, group))

    def _asked(self, context: tuple[Connection, Request[Any], str], reply: Reply | Failed) -> None:
        connection, request, group = context
        if isinstance(reply, Asked):
            told = {EXT_GROUP: group, EXT_CLIENT: reply.client_id, EXT_CHECKS: reply.checks}
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def undecided(self, connection: Connection, request: Request[Any]) -> None:
        """Which of these are undecided. Their markers must stay; those of others may be forgotten."""
        found = undecided_among(self._pump.state, decode_ids(request.body))
        self._tell(connection, request, {}, encode_ids(found))

    # --- helpers

    def _group(self, connection: Connection, request: Request[Any], tx_id: str) -> str | None:
        """The producer group that is meant; None when that was answered already: no id, or several groups have it."""
        if not tx_id:
            self._wrong(connection, request, f"{EXT_ID}: which transaction")
            return None
        named = str(request.ext.get(EXT_GROUP, ""))
        found = groups_of(self._pump.state, tx_id)
        if named or not found:
            return named
        if len(found) > 1:
            self._wrong(connection, request, f"{EXT_GROUP}: {', '.join(found)} each have a transaction {tx_id}")
            return None
        return found[0]

    def _wrong(self, connection: Connection, request: Request[Any], text: str) -> None:
        self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)

    def _tell(self, connection: Connection, request: Request[Any], ext: Mapping[str, object], body: bytes) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)
