"""Commands of operators (29002 to 29006, 29010), and comparisons of verdicts (29022 to 29025), translated to and from
``services.transactions`` and ``services.comparisons``.
"""

from typing import Any, Final

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.sends import settled_ext
from halfmq.broker.services.transactions import LISTING_COST, CheckSent, Listing, Story
from halfmq.core.commands import RequestedVerdict
from halfmq.core.decision import ComparisonMade, Failed, ParkedChecked, Refused, Settled
from halfmq.core.transaction.states import standing_state
from halfmq.wire.remoting.codes import EXT_VERDICT
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    AWAITED,
    DAMAGED,
    EXT_AGREES,
    EXT_AT,
    EXT_CHECK_OPEN,
    EXT_CHECKS,
    EXT_CLIENT,
    EXT_GROUP,
    EXT_LEFT,
    EXT_NEXT,
    EXT_STATE,
    EXT_TOTAL,
    EXT_WAITING,
    STORY,
    AskParkedFields,
    ComparedFields,
    ForgetDamageFields,
    ResolveFields,
    TransactionFields,
    TransactionsFields,
    decode_ids,
    encode_ids,
    encode_pending,
)

_WANTED: Final = {"COMMIT": RequestedVerdict.COMMIT, "ROLLBACK": RequestedVerdict.ROLLBACK}


class Operators(Handlers):
    """Responses may wait for a search: what they keep of a request is ``to_answer``, without its fields and its body."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._transactions = parts.transactions
        self._comparisons = parts.comparisons
        self._durability = parts.durability

    def transactions(self, connection: Connection, request: Request[Any]) -> None:
        """29002: a page of undecided transactions."""
        fields: TransactionsFields = request.ext
        request = request.to_answer(None)

        def answer(listed: Listing) -> None:
            ext = {EXT_TOTAL: listed.total, EXT_AT: listed.at_ms}
            if listed.following:
                ext[EXT_NEXT] = listed.following
            self._answer_durably(connection, request, ext, encode_pending(listed.rows))

        steps = self._transactions.undecided(fields.group, fields.rows, fields.start, fields.coordinator)
        self._in_turns(connection, request, steps, answer, LISTING_COST)

    def story(self, connection: Connection, request: Request[Any]) -> None:
        """29003: the history of one transaction."""
        fields: TransactionFields = request.ext
        request = request.to_answer(None)

        def answer(found: Story | Refused) -> None:
            if isinstance(found, Refused):
                self._refuse(connection, request, found)
            else:
                ext = {EXT_GROUP: found.group, EXT_STATE: found.state}
                if found.check_open:
                    ext[EXT_CHECK_OPEN] = "true"
                self._answer_durably(connection, request, ext, STORY.encode(found.sentences))

        self._transactions.story(connection, fields.tx_id, fields.group, answer)

    def resolve(self, connection: Connection, request: Request[Any]) -> None:
        """29004: an operator's verdict."""
        fields: ResolveFields = request.ext
        answer = self._answering(
            connection, request, Settled, lambda reply: {EXT_GROUP: reply.group, **settled_ext(reply, self._durability)}
        )
        self._transactions.resolve(
            connection, fields.tx_id, fields.group, _WANTED[fields.verdict], fields.operator, fields.reason, answer
        )

    def ask(self, connection: Connection, request: Request[Any]) -> None:
        """29006: check one transaction now."""
        fields: TransactionFields = request.ext
        answer = self._answering(
            connection, request, CheckSent,
            lambda sent: {EXT_GROUP: sent.group, EXT_CLIENT: sent.client_id, EXT_CHECKS: sent.checks},
        )  # fmt: skip
        self._transactions.ask(connection, fields.tx_id, fields.group, answer)

    def ask_parked(self, connection: Connection, request: Request[Any]) -> None:
        """29010: check parked transactions of a group."""
        fields: AskParkedFields = request.ext
        request = request.to_answer(None)

        def answer(reply: ParkedChecked | Refused | Failed) -> None:
            if isinstance(reply, ParkedChecked):
                ext = {EXT_GROUP: fields.group, EXT_LEFT: reply.left}
                self._answer(connection, request, ext, encode_ids(reply.tx_ids))
            else:
                self._refuse(connection, request, reply)

        self._transactions.ask_parked(connection, fields.group, fields.checks_max, answer)

    def undecided(self, connection: Connection, request: Request[Any]) -> None:
        """29005: which of the named transactions are undecided."""
        ids, group = decode_ids(request.body), request.ext.group
        request = request.to_answer(None)

        def answer(found: list[str] | Refused) -> None:
            if isinstance(found, Refused):
                self._refuse(connection, request, found)
            else:
                self._answer_durably(connection, request, body=encode_ids(found))

        self._transactions.undecided_of(connection, ids, group, answer)

    # --- comparisons of verdicts

    def awaited(self, connection: Connection, request: Request[Any]) -> None:
        """29022: what a reader of markers shall compare."""
        page = self._comparisons.awaited(request.ext.group, request.ext.start)
        self._answer_page(connection, request, page, AWAITED.encode(page.rows))

    def compared(self, connection: Connection, request: Request[Any]) -> None:
        """29023: what a local transaction did."""
        fields: ComparedFields = request.ext
        answer = self._answering(
            connection, request, ComparisonMade,
            lambda reply: {EXT_VERDICT: standing_state(reply.committed).value, EXT_AGREES: reply.agrees},
        )  # fmt: skip
        self._comparisons.report(
            connection, fields.tx_id, fields.group, fields.outcome == "COMMIT", fields.source,
            is_marker=fields.is_marker, answer=answer,
        )  # fmt: skip

    def damaged(self, connection: Connection, request: Request[Any]) -> None:
        """29024: findings."""
        page, waiting = self._comparisons.damaged(request.ext.rows, request.ext.start)
        self._answer_page(connection, request, page, DAMAGED.encode(page.rows), **{EXT_WAITING: waiting})

    def forget_damage(self, connection: Connection, request: Request[Any]) -> None:
        """29025: an operator lets the broker forget a finding."""
        fields: ForgetDamageFields = request.ext
        answer = self._answering(
            connection, request, ComparisonMade,
            lambda reply: {EXT_GROUP: reply.group, EXT_VERDICT: standing_state(reply.committed).value},
        )  # fmt: skip
        self._comparisons.forget(connection, fields.tx_id, fields.group, fields.operator, fields.reason, answer)
