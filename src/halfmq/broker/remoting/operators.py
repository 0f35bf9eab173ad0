"""What those who look after a broker ask of it: 29002 to 29005 (``wire.remoting.operators``); 29006 and 29010, to ask now.

A verdict by hand goes the way of every verdict: a command for the sequencer, the table of ``core.transaction.states``, one
record that says ``operator``, and directly before it one that says who it was, why, and from where. The broker's output
says the same.
Whoever reaches the port may ask, as with every other command: there are no passwords yet.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from halfmq import limits
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.group_scan import GroupScan
from halfmq.broker.services.long_settled import Found, LongSettled, Look, Missed, NotLooked
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Actor, AskAside, AskNow, ResolveTransaction, Wanted
from halfmq.core.decision import Asked, AskedAside, Refused, Reply, Settled, Why
from halfmq.core.engine import Failed
from halfmq.core.transaction.listing import (
    UNDECIDED,
    UNKNOWN,
    groups_from,
    has,
    oldest_undecided,
    standing,
    undecided_among,
)
from halfmq.core.transaction.states import standing_state
from halfmq.core.transaction.story import story
from halfmq.core.view import ProducerGroupView
from halfmq.errors import StoreDamaged
from halfmq.model.records import DecidedBy, OperatorActed
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
    EXT_AT,
    EXT_FROM,
    EXT_GROUP,
    EXT_ID,
    EXT_MAX,
    EXT_NEXT,
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
#: Groups that one page of transactions looks at.
GROUPS_PER_PAGE_MAX: Final = 4_096
_FROM_DIGITS_MAX: Final = 18
#: Groups that a refusal names.
_NAMED_MAX: Final = 10
#: What is kept of one transaction id while all groups are looked through, bytes.
_ID_COST: Final = 256
_BUSY: Final = "many look through all producer groups just now: ask again, or name the group"


def _is_count(text: str) -> bool:
    """1 to ``LISTED_MAX``, in the digits that ``int`` takes; no more of them than that needs."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(LISTED_MAX)) and 1 <= int(text) <= LISTED_MAX


def page_start(ext: Mapping[str, str]) -> int | None:
    """Where the page begins that is asked for; None: no such place can be."""
    text = ext.get(EXT_FROM, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _FROM_DIGITS_MAX else None


def _meant(request: Request[Any]) -> tuple[str, str]:
    """(transaction id, producer group or ""), as who asks names them."""
    return request.ext.get(EXT_ID, ""), request.ext.get(EXT_GROUP, "")


class Operators:
    def __init__(
        self,
        gateway: Gateway,
        sequencer: Sequencer,
        time: BrokerTime,
        long_settled: LongSettled,
        scan: GroupScan,
        *,
        durability: str,
        operator_of: Callable[[int], OperatorActed | None],
    ) -> None:
        """``operator_of``: who stands behind the verdict at a log position (``Store.operator_of``)."""
        self._gateway = gateway
        self._sequencer = sequencer
        self._scan = scan
        self._time = time
        self._long_settled = long_settled
        self._durability = durability
        self._operator_of = operator_of
        self._durably = DurableAnswers(gateway, sequencer)
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
        start = page_start(request.ext)
        if start is None:
            self._wrong(connection, request, f"{EXT_FROM}: what the answer before said")
            return
        view, now_ms, group = self._sequencer.view, self._time.now_ms(), request.ext.get(EXT_GROUP, "")
        if group:
            total, listed = oldest_undecided(view, group, int(asked), now_ms, skipped=start)
            following = start + len(listed) if listed and start + len(listed) < total else 0
        else:
            groups, following = groups_from(view, start, GROUPS_PER_PAGE_MAX)
            _, listed = oldest_undecided(view, "", int(asked), now_ms, groups=groups)
            total = view.derived.undecided_count
        ext = {EXT_TOTAL: total, EXT_AT: now_ms, **({EXT_NEXT: following} if following else {})}
        self._tell(connection, request, ext, encode_pending(listed))

    def story(self, connection: Connection, request: Request[Any]) -> None:
        tx_id, named = _meant(request)
        request = request.to_answer(None)
        self._with_group(
            connection, request, tx_id, named, lambda group: self._story(connection, request, group, tx_id)
        )

    def _story(self, connection: Connection, request: Request[Any], group: str, tx_id: str) -> None:
        if standing(self._sequencer.view, group, tx_id) == UNKNOWN:
            self._long_settled.look(
                group, tx_id, lambda look: self._tell_story(connection, request, group, tx_id, look)
            )
        else:
            self._tell_story(connection, request, group, tx_id, None)

    def _tell_story(
        self, connection: Connection, request: Request[Any], group: str, tx_id: str, look: Look | None
    ) -> None:
        view, now_ms = self._sequencer.view, self._time.now_ms()
        stands = standing(view, group, tx_id)
        if isinstance(look, NotLooked) and stands == UNKNOWN:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, look.text)
            self._gateway.flush()
            return
        if isinstance(look, Found) and stands == UNKNOWN:
            group, stands = look.group, standing_state(look.row.committed).value
            sentences = story(view, group, tx_id, now_ms, row=look.row, acted=self._acted(look.row.verdict_position))
        else:
            looked = f"{look.text[0].upper()}{look.text[1:]}." if isinstance(look, Missed) else ""
            producers = view.producer_groups.get(group)
            verdict = producers.settled.get(tx_id) if producers is not None else None
            by_hand = verdict is not None and verdict.decided_by == DecidedBy.OPERATOR
            acted = self._acted(verdict.position) if verdict is not None and by_hand else None
            sentences = story(view, group, tx_id, now_ms, looked=looked, acted=acted)
        self._tell(connection, request, {EXT_GROUP: group, EXT_STATE: stands}, encode_story(sentences))
        self._gateway.flush()

    def _acted(self, position: int) -> OperatorActed | None:
        try:
            return self._operator_of(position)
        except (LookupError, StoreDamaged):
            return None  # trimmed meanwhile, or it cannot be read: the verdict stands all the same

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
            tx_id, named = _meant(request)
            request = request.to_answer(None)
            by = Actor(operator, reason, connection.address)

            def decide(group: str) -> None:
                command = ResolveTransaction(group, tx_id, wanted, operator, by=by)
                self._decide(command, lambda group, reply: self._resolved(connection, request, command, reason, reply))

            self._with_group(connection, request, tx_id, named, decide)

    def _resolved(
        self,
        connection: Connection,
        request: Request[Any],
        command: ResolveTransaction,
        reason: str,
        reply: Reply | Failed,
    ) -> None:
        who = f"operator {command.operator} from {connection.address}"
        what = f"{command.wanted.name} of transaction {command.tx_id} of group {command.group}"
        if not isinstance(reply, Settled):
            code, remark, ext = refusal(reply)
            self._gateway.say(log, logging.INFO, "verdict", connection, "%s: %s was refused: %s", who, what, remark)
            self._gateway.answer(connection, request, code, remark, ext)
            return
        if reply.repeated:
            text = "%s: %s, as it stands since position %d"
            self._gateway.say(log, logging.INFO, "repeated", connection, text, who, what, reply.position)
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
        tx_id, named = _meant(request)
        request = request.to_answer(None)

        def decide(group: str) -> None:
            self._decide(AskNow(group, tx_id), lambda group, reply: self._asked(connection, request, group, reply))

        self._with_group(connection, request, tx_id, named, decide)

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
            self._sequencer.submit(AskAside(group, int(wanted)), self._asked_aside, (connection, request, group))

    def _asked_aside(self, context: tuple[Connection, Request[Any], str], reply: Reply | Failed) -> None:
        connection, request, group = context
        if not isinstance(reply, AskedAside):
            self._gateway.answer(connection, request, *refusal(reply))
            return
        if reply.tx_ids:
            log.info(
                "an operator from %s asks about %d transactions of group %s that were set aside; %d are left",
                connection.address, len(reply.tx_ids), group, reply.left,
            )  # fmt: skip
        ext = {EXT_GROUP: group, EXT_LEFT: reply.left}
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, encode_ids(reply.tx_ids))

    def undecided(self, connection: Connection, request: Request[Any]) -> None:
        """Which of these are undecided, in the group that is named or in any. Their markers must stay; others' need not."""
        view, group, ids = self._sequencer.view, request.ext.get(EXT_GROUP, ""), decode_ids(request.body)
        if group:
            found = [tx_id for tx_id in ids if standing(view, group, tx_id) == UNDECIDED]
            self._tell(connection, request, {}, encode_ids(found))
            return
        request = request.to_answer(None)
        ids = [tx_id for tx_id in ids if len(tx_id) <= limits.TRANSACTION_ID_CHARS_MAX]
        wanted, anywhere = frozenset(ids), set[str]()
        kept = REQUEST_COST + _ID_COST * len(ids)

        def look(one: ProducerGroupView) -> int:
            anywhere.update(undecided_among(one, wanted))
            return min(len(one.undecided), len(wanted))

        def tell() -> None:
            connection.give_back(kept)
            self._tell(connection, request, {}, encode_ids([tx_id for tx_id in ids if tx_id in anywhere]))
            self._gateway.flush()

        connection.keep(kept)
        if not self._scan.run(look, tell):
            connection.give_back(kept)
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, _BUSY)

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
                self._sequencer.submit(again, lambda _, reply: then(look.group, reply), None)
                return
            why = Why.NOT_NOW if isinstance(look, NotLooked) else Why.NOT_FOUND
            then(command.group, refused._replace(why=why, text=f"{refused.text}; {look.text}"))
            self._gateway.flush()

        self._sequencer.submit(command, decided, None)

    def _with_group(
        self, connection: Connection, request: Request[None], tx_id: str, named: str, then: Callable[[str], None]
    ) -> None:
        """Call ``then``, now or later, with the producer group that is meant, "" if none has the transaction in memory.

        ``named``: by who asks, or empty. Answers by itself where nothing can have these names, or several groups have it.
        """
        if not 0 < len(tx_id) <= limits.TRANSACTION_ID_CHARS_MAX:
            text = f"{EXT_ID}: which transaction, 1 to {limits.TRANSACTION_ID_CHARS_MAX} characters"
            self._wrong(connection, request, text)
            return
        if len(named) > limits.GROUP_CHARS_MAX:
            self._wrong(connection, request, f"{EXT_GROUP}: at most {limits.GROUP_CHARS_MAX} characters")
            return
        if named:
            then(named)
            return
        found: list[str] = []

        def look(one: ProducerGroupView) -> int:
            if has(one, tx_id):
                found.append(one.name)
            return 0

        def looked() -> None:
            if len(found) > 1:
                some = ", ".join(found[:_NAMED_MAX]) + (" and others" if len(found) > _NAMED_MAX else "")
                self._wrong(
                    connection, request, f"{EXT_GROUP}: {some} each have a transaction {tx_id}; say which group"
                )
            else:
                then(found[0] if found else "")
            self._gateway.flush()

        if not self._scan.run(look, looked):
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_BUSY, _BUSY)

    def _wrong(self, connection: Connection, request: Request[Any], text: str) -> None:
        self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)

    def _tell(self, connection: Connection, request: Request[Any], ext: Mapping[str, object], body: bytes) -> None:
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)
