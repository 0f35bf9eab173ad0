"""What those who look after a broker ask of it: 29002 to 29005 (``wire.remoting.operators``); 29006 and 29010, to ask now.

A verdict by hand goes the way of every verdict: a command for the pump, the table of ``core.transaction.states``, one
record that says ``operator``. Who it was and why stands in the broker's output, since the record has no place for names.
Whoever reaches the port may ask, as with every other command: there are no passwords yet.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from halfmq.broker.connection import Connection
from halfmq.broker.durable_answer import DurableAnswers
from halfmq.broker.long_settled import Found, LongSettled, Look, Missed, NotLooked
from halfmq.broker.pump import Failed, Pump
from halfmq.broker.refusals import refusal
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import AskAside, AskNow, ResolveTransaction, Wanted
from halfmq.core.decision import Asked, AskedAside, Refused, Reply, Settled, Why
from halfmq.core.transaction.listing import UNDECIDED, UNKNOWN, groups_of, oldest_undecided, standing, undecided_among
from halfmq.core.transaction.states import standing_state
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
from halfmq.wire.remoting.producer_groups import EXT_CHECKS, EXT_CLIENT, EXT_LEFT, HMQ_ASK, HMQ_ASK_ASIDE

log = logging.getLogger("halfmq.operators")

_WANTED: Final = {"COMMIT": Wanted.COMMIT, "ROLLBACK": Wanted.ROLLBACK}


def _is_count(text: str) -> bool:
    """1 to ``LISTED_MAX``, in the digits that ``int`` takes; no more of them than that needs."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(LISTED_MAX)) and 1 <= int(text) <= LISTED_MAX


class Operators:
    def __init__(
        self, gateway: Gateway, pump: Pump, time: BrokerTime, long_settled: LongSettled, *, durability: str
    ) -> None:
        self._gateway = gateway
        self._pump = pump
        self._time = time
        self._long_settled = long_settled
        self._durability = durability
        self._durably = DurableAnswers(gateway, pump)
        gateway.handlers |= {
            HMQ_TRANSACTIONS: self.transactions,
            HMQ_STORY: self.story,
            HMQ_RESOLVE: self.resolve,
            HMQ_UNDECIDED: self.undecided,
            HMQ_ASK: self.ask,
            HMQ_ASK_ASIDE: self.ask_aside,
        }

    def transactions(self, connection: Connection, request: Request[Any]) -> None:
        asked = request.ext.get(EXT_MAX, str(LISTED_MAX))
        if not _is_count(asked):
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
        if standing(self._pump.state, group, tx_id) == UNKNOWN:
            self._long_settled.look(
                group, tx_id, lambda look: self._tell_story(connection, request, group, tx_id, look)
            )
        else:
            self._tell_story(connection, request, group, tx_id, None)

    def _tell_story(
        self, connection: Connection, request: Request[Any], group: str, tx_id: str, look: Look | None
    ) -> None:
        state, now_ms = self._pump.state, self._time.now_ms()
        stands = standing(state, group, tx_id)
        if isinstance(look, NotLooked) and stands == UNKNOWN:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, look.text)
            self._gateway.flush()
            return
        if isinstance(look, Found) and stands == UNKNOWN:
            group, stands = look.group, standing_state(look.row.committed).value
            sentences = story(state, group, tx_id, now_ms, row=look.row)
        else:
            looked = f"{look.text[0].upper()}{look.text[1:]}." if isinstance(look, Missed) else ""
            sentences = story(state, group, tx_id, now_ms, looked=looked)
        self._tell(connection, request, {EXT_GROUP: group, EXT_STATE: stands}, encode_story(sentences))
        self._gateway.flush()

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
                self._decide(command, lambda group, reply: self._resolved(connection, request, command, reason, reply))

    def _resolved(
        self,
        connection: Connection,
        request: Request[Any],
        command: ResolveTransaction,
        reason: str,
        reply: Reply | Failed,
    ) -> None:
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
            self._decide(AskNow(group, tx_id), lambda group, reply: self._asked(connection, request, group, reply))

    def _asked(self, connection: Connection, request: Request[Any], group: str, reply: Reply | Failed) -> None:
        if isinstance(reply, Asked):
            told = {EXT_GROUP: group, EXT_CLIENT: reply.client_id, EXT_CHECKS: reply.checks}
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, told)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def ask_aside(self, connection: Connection, request: Request[Any]) -> None:
        """Checks now about what a policy set aside; who wants more asks again."""
        group, wanted = request.ext.get(EXT_GROUP, ""), request.ext.get(EXT_MAX, str(LISTED_MAX))
        if not group:
            self._wrong(connection, request, f"{EXT_GROUP}: which producer group")
        elif not _is_count(wanted):
            self._wrong(connection, request, f"{EXT_MAX} {wanted!r}: 1 to {LISTED_MAX}")
        else:
            self._pump.submit(AskAside(group, int(wanted)), self._asked_aside, (connection, request, group))

    def _asked_aside(self, context: tuple[Connection, Request[Any], str], reply: Reply | Failed) -> None:
        connection, request, group = context
        if not isinstance(reply, AskedAside):
            self._gateway.answer(connection, request, *refusal(reply))
            return
        if reply.tx_ids:
            log.info(
                "an operator from %s asks about %d transactions of group %s that were set aside; %d are left",
                connection.peer, len(reply.tx_ids), group, reply.left,
            )  # fmt: skip
        ext = {EXT_GROUP: group, EXT_LEFT: reply.left}
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, encode_ids(reply.tx_ids))

    def undecided(self, connection: Connection, request: Request[Any]) -> None:
        """Which of these are undecided, in the group that is named or in any. Their markers must stay; others' need not."""
        state, group, ids = self._pump.state, request.ext.get(EXT_GROUP, ""), decode_ids(request.body)
        if group:
            found = [tx_id for tx_id in ids if standing(state, group, tx_id) == UNDECIDED]
        else:
            found = undecided_among(state, ids)
        self._tell(connection, request, {}, encode_ids(found))

    # --- helpers

    def _decide(self, command: ResolveTransaction | AskNow, then: Callable[[str, Reply | Failed], None]) -> None:
        """Decide, and again with the row of the transaction table where the decision knew nothing of the transaction.

        ``then`` is called with its producer group. As for END, the look comes behind the decision: what memory forgets in
        between has its row by then. Rows are written before answers leave.
        """

        def decided(_: None, reply: Reply | Failed) -> None:
            if isinstance(reply, Refused) and reply.why is Why.NOT_FOUND:
                self._long_settled.look(command.group, command.tx_id, lambda look: looked(reply, look))
            else:
                then(command.group, reply)

        def looked(refused: Refused, look: Look) -> None:
            if isinstance(look, Found):
                again = command._replace(group=look.group, settled=look.row)
                self._pump.submit(again, lambda _, reply: then(look.group, reply), None)
                return
            why = Why.NOT_NOW if isinstance(look, NotLooked) else Why.NOT_FOUND
            then(command.group, refused._replace(why=why, text=f"{refused.text}; {look.text}"))
            self._gateway.flush()

        self._pump.submit(command, decided, None)

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
            self._wrong(
                connection, request, f"{EXT_GROUP}: {', '.join(found)} each have a transaction {tx_id}; say which group"
            )
            return None
        return found[0]

    def _wrong(self, connection: Connection, request: Request[Any], text: str) -> None:
        self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)

    def _tell(self, connection: Connection, request: Request[Any], ext: Mapping[str, object], body: bytes) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)
