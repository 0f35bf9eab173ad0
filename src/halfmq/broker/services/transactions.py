"""Transactions for operators: the undecided ones, the story of one, a verdict by hand, and checks on request.

A verdict by hand takes the path of every verdict: a command to the sequencer, the table of ``core.transaction.states``, one record that
states ``operator``, and directly before it the audit record with name, reason and address. The broker's log lines name them too.

A transaction may be named without its producer group: then all groups are searched (``group_scan``). If it is no longer in memory, the
transaction table is searched (``settled_verdict_lookup``).
"""

import logging
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor
from halfmq.broker.services.group_scan import GroupScan
from halfmq.broker.services.pages import LISTED_MAX
from halfmq.broker.services.settled_verdict_lookup import Found, Look, Missed, NotSearched, SettledVerdictLookup
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import CheckNow, CheckParked, Compare, RequestedVerdict, ResolveTransaction
from halfmq.core.decision import Asked, Failed, ParkedChecked, Refused, Reply, Settled, Why
from halfmq.core.state import ProducerGroup, Verdict
from halfmq.core.transaction.comparisons import is_comparable
from halfmq.core.transaction.listing import (
    UNDECIDED,
    UNKNOWN,
    groups_from,
    has,
    oldest_undecided,
    transaction_state,
    undecided_among,
    undecided_of_coordinator,
)
from halfmq.core.transaction.states import standing_state
from halfmq.core.transaction.story import check_is_open, story
from halfmq.errors import StoreDamaged
from halfmq.model.message_facts import HalfNotes, notes_in
from halfmq.model.pending import PendingTransaction
from halfmq.model.records import DecidedBy, OperatorActed
from halfmq.model.steps import Steps

log = logging.getLogger("halfmq.operators")

#: Maximum number of groups that one page of transactions covers.
GROUPS_PER_PAGE_MAX: Final = 4_096
#: Maximum number of groups that a refusal names.
_NAMED_MAX: Final = 10
#: Memory while all groups are searched, bytes: of a request, and of each transaction id in it.
_REQUEST_COST: Final = 1_024
_ID_COST: Final = 256
#: Memory of a page while its notes are read, bytes.
LISTING_COST: Final = 1 << 20
#: Halves whose properties are read between two places where that may be interrupted: a millisecond for the longest ones.
_NOTES_AT_ONCE: Final = 16
_NO_NOTES: Final = HalfNotes()


class Listing(NamedTuple):
    """A page of undecided transactions."""

    #: Number of undecided transactions of the group, or of all groups; may exceed ``rows``.
    total: int
    #: Broker time that the durations in ``rows`` refer to.
    at_ms: int
    #: Start of the next page; 0: there is none.
    following: int
    #: Oldest first.
    rows: tuple[PendingTransaction, ...]


class Story(NamedTuple):
    """``state``: UNDECIDED, COMMITTED, ROLLED_BACK or UNKNOWN. ``check_open``: see ``check_is_open``."""

    group: str
    state: str
    sentences: tuple[str, ...]
    check_open: bool = False


class CheckSent(NamedTuple):
    """Empty ``client_id``: the next client that fetches checks of the group gets it."""

    group: str
    client_id: str
    checks: int


class Transactions:
    """What operators see and decide about transactions."""

    def __init__(
        self,
        sequencer: Sequencer,
        time: BrokerTime,
        settled_verdict_lookup: SettledVerdictLookup,
        scan: GroupScan,
        *,
        operator_of: Callable[[int], OperatorActed | None],
        user_of: Callable[[int], str],
        properties_at: Callable[[int], bytes],
        flush: Callable[[], None],
    ) -> None:
        """``operator_of``, ``user_of``: the operator behind the verdict at a log position, and the user who gave it (``CommitLog``).
        ``properties_at``: those of the message at a log position (``CommitLog.properties_at``). ``flush``: called after responses that
        belong to no request and no turn of the sequencer, so that they are sent.
        """
        self._sequencer = sequencer
        self._time = time
        self._settled_verdict_lookup = settled_verdict_lookup
        self._scan = scan
        self._operator_of = operator_of
        self._user_of = user_of
        self._properties_at = properties_at
        self._flush = flush

    # --- to read: a front door holds these answers with ``Sequencer.after_durable``

    def undecided(self, group: str, count_max: int, start: int, coordinator: str = "") -> Steps[Listing]:
        """A page of undecided transactions, at most ``LISTED_MAX``. ``start``: ``following`` of the previous page, or 0.

        ``coordinator``: only those of this coordinator of the group. For one group all are listed, page by page; for all groups (empty
        ``group``) the oldest ones of each page of groups.
        """
        view, now_ms = self._sequencer.view, self._time.now_ms()
        count_max = min(max(count_max, 1), LISTED_MAX)
        if coordinator:
            key = group, coordinator
            total, following, rows = undecided_of_coordinator(view, key, count_max, now_ms, start)
        elif group:
            total, rows = oldest_undecided(view, group, count_max, now_ms, skipped=start)
            end = start + len(rows)
            following = end if rows and end < total else 0
        else:
            groups, following = groups_from(view, start, GROUPS_PER_PAGE_MAX)
            _, rows = oldest_undecided(view, "", count_max, now_ms, groups=groups)
            total = view.derived.undecided_count
        noted = []
        for number, row in enumerate(rows, 1):
            notes = self._notes(row.group, row.tx_id)
            noted.append(row if notes == _NO_NOTES else msgspec.structs.replace(row, **notes._asdict()))
            if not number % _NOTES_AT_ONCE:
                yield
        return Listing(total, now_ms, following, tuple(noted))

    def _notes(self, group: str, tx_id: str) -> HalfNotes:
        """What the first half of an undecided transaction says to operators; nothing if it is settled meanwhile, or cannot be read."""
        producers = self._sequencer.view.producer_groups.get(group)
        known = producers.undecided.get(tx_id) if producers is not None else None
        if known is None:
            return _NO_NOTES
        try:
            return notes_in(self._properties_at(known.halves[0].offset))
        except (LookupError, StoreDamaged):  # a listing shows what there is; a check says that the half is damaged
            return _NO_NOTES

    def story(self, peer: Peer, tx_id: str, group: str, answer: Callable[[Story | Refused], None]) -> None:
        """The history of a transaction, and what it waits for. Empty ``group``: of any group.

        Refusals: INVALID_PARAMETER: of the names, or several groups have it. NOT_NOW: try again.
        """

        def of(group: str) -> None:
            if transaction_state(self._sequencer.view, group, tx_id) == UNKNOWN:
                self._settled_verdict_lookup.look(peer, group, tx_id, lambda look: found(group, look))
            else:
                found(group, None)

        def found(group: str, look: Look | None) -> None:
            answer(self._story(group, tx_id, look))
            self._flush()

        self.with_group(peer, tx_id, group, answer, of)

    def _story(self, group: str, tx_id: str, look: Look | None) -> Story | Refused:
        view, now_ms = self._sequencer.view, self._time.now_ms()
        state = transaction_state(view, group, tx_id)
        if isinstance(look, NotSearched) and state == UNKNOWN:
            return Refused(Why.NOT_NOW, look.text)
        if isinstance(look, Found) and state == UNKNOWN:
            acted = self._acted(look.row.verdict_position)
            user = self._settled_by(look.row.verdict_position)
            sentences = story(view, look.group, tx_id, now_ms, row=look.row, acted=acted, settled_by=user)
            return Story(look.group, standing_state(look.row.committed).value, sentences)
        looked = f"{look.text[0].upper()}{look.text[1:]}." if isinstance(look, Missed) else ""
        notes = self._notes(group, tx_id)
        recent = self._recent(group, tx_id)
        user = self._settled_by(recent.position) if recent is not None else ""
        acted = self._recently_acted(group, tx_id)
        sentences = story(view, group, tx_id, now_ms, looked=looked, acted=acted, notes=notes, settled_by=user)
        return Story(group, state, sentences, check_is_open(view, group, tx_id, now_ms))

    def _recently_acted(self, group: str, tx_id: str) -> OperatorActed | None:
        """The operator of a recent verdict."""
        verdict = self._recent(group, tx_id)
        by_hand = verdict is not None and verdict.decided_by == DecidedBy.OPERATOR
        return self._acted(verdict.position) if verdict is not None and by_hand else None

    def _recent(self, group: str, tx_id: str) -> Verdict | None:
        producers = self._sequencer.view.producer_groups.get(group)
        return producers.settled.get(tx_id) if producers is not None else None

    def _settled_by(self, position: int) -> str:
        try:
            return self._user_of(position)
        except (LookupError, StoreDamaged):
            return ""  # as for ``_acted``

    def _acted(self, position: int) -> OperatorActed | None:
        try:
            return self._operator_of(position)
        except (LookupError, StoreDamaged):
            return None  # trimmed meanwhile, or unreadable: the verdict is valid nevertheless

    def undecided_of(
        self, peer: Peer, ids: Collection[str], group: str, answer: Callable[[list[str] | Refused], None]
    ) -> None:
        """Those of ``ids`` whose markers must be kept, in the group, or in any if it is empty: they are undecided, or their verdict is
        still to be compared with the marker.

        Refusals: NOT_NOW: too many requests search all groups; try again.
        """
        if group:
            view = self._sequencer.view
            awaited = self._awaited(ids, group)
            answer([one for one in ids if one in awaited or transaction_state(view, group, one) == UNDECIDED])
            return
        ids = [tx_id for tx_id in ids if len(tx_id) <= limits.TRANSACTION_ID_CHARS_MAX]
        wanted, anywhere = frozenset(ids), self._awaited(ids, "")
        kept = _REQUEST_COST + _ID_COST * len(ids)

        def look(one: ProducerGroup) -> int:
            anywhere.update(undecided_among(one, wanted))
            return min(len(one.undecided), len(wanted))

        def tell() -> None:
            peer.give_back(kept)
            answer([tx_id for tx_id in ids if tx_id in anywhere])
            self._flush()

        peer.keep(kept)
        busy = self._scan.run(peer, look, tell)
        if busy is not None:
            peer.give_back(kept)
            answer(busy)

    def _awaited(self, ids: Collection[str], group: str) -> set[str]:
        """Those of ``ids`` that are to be compared. There are at most ``limits.COMPARISONS_MAX``."""
        view, wanted = self._sequencer.view, frozenset(ids)
        return {
            tx_id
            for (of_group, tx_id), known in view.comparisons.items()
            if tx_id in wanted and group in ("", of_group) and is_comparable(view, known)
        }

    # --- to change: answered once durable

    def resolve(
        self,
        peer: Peer,
        tx_id: str,
        group: str,
        wanted: RequestedVerdict,
        operator: str,
        reason: str,
        answer: Callable[[Settled | Refused | Failed], None],
    ) -> None:
        """Settle a transaction by hand. Empty ``group``: of any group. ``reason`` may be empty.

        Refusals: INVALID_PARAMETER: of the names, or several groups have it. INCOMPLETE, VERDICT_CONFLICT, NOT_FOUND as for END.
            NOT_NOW: try again.
        """
        by = actor(peer, operator, reason, "who decides")
        if isinstance(by, Refused):
            answer(by)
            return

        def decide(group: str) -> None:
            command = ResolveTransaction(group, tx_id, wanted, by.name, by=by, user=peer.user)
            self.decide(peer, command, lambda _, reply: resolved(command, reply))

        def resolved(command: ResolveTransaction, reply: Any) -> None:
            self._say_resolved(peer, command, by.reason, reply)
            answer(reply)

        self.with_group(peer, tx_id, group, answer, decide)

    def _say_resolved(
        self, peer: Peer, command: ResolveTransaction, reason: str, reply: Settled | Refused | Failed
    ) -> None:
        who = f"operator {command.operator} from {peer.address}"
        what = f"{command.wanted.name} of transaction {command.tx_id} of group {command.group}"
        if not isinstance(reply, Settled):
            peer.log_throttled(log, logging.INFO, "verdict", "%s: %s was refused: %s", who, what, reply.text)
        elif reply.repeated:
            text = "%s: %s, decided earlier at position %d"
            peer.log_throttled(log, logging.INFO, "repeated", text, who, what, reply.position)
        else:
            text = "%s decided: %s at position %d, reason: %s"
            log.warning(text, who, what, reply.position, reason or "none given")

    def ask(self, peer: Peer, tx_id: str, group: str, answer: Callable[[CheckSent | Refused | Failed], None]) -> None:
        """Send a check now, due or not, also of a parked transaction. Its result arrives as that of any check.

        Refusals: as for ``resolve``; NOT_NOW also if no producer is reachable or a check is not allowed; ALREADY_SETTLED.
        """

        def asked(group: str, reply: Any) -> None:
            answer(CheckSent(group, reply.client_id, reply.checks) if isinstance(reply, Asked) else reply)

        self.with_group(peer, tx_id, group, answer, lambda group: self.decide(peer, CheckNow(group, tx_id), asked))

    def ask_parked(
        self, peer: Peer, group: str, count_max: int, answer: Callable[[ParkedChecked | Refused | Failed], None]
    ) -> None:
        """Send checks of parked transactions of the group now; repeat the request for more.

        Refusals: INVALID_PARAMETER: no group. NOT_NOW: no producer is reachable.
        """
        if not group:
            answer(Refused(Why.INVALID_PARAMETER, "group: which producer group"))
            return

        def asked(_: None, reply: Any) -> None:
            if isinstance(reply, ParkedChecked) and reply.tx_ids:
                log.info(
                    "an operator from %s requests checks of %d parked transactions of group %s; %d others are parked",
                    peer.address, len(reply.tx_ids), group, reply.left,
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(CheckParked(group, min(max(count_max, 1), LISTED_MAX)), asked)

    # --- helpers, also of ``comparisons``

    def compare(self, peer: Peer, command: Compare, then: Callable[[str, Reply | Failed], None]) -> None:
        """As ``decide``, with the name of the operator who gave the verdict."""
        acted = self._recently_acted(command.group, command.tx_id)
        self.decide(peer, command._replace(operator=acted.name if acted is not None else ""), then)

    def decide(
        self, peer: Peer, command: ResolveTransaction | CheckNow | Compare, then: Callable[[str, Reply | Failed], None]
    ) -> None:
        """Decide, and again with the row of the transaction table if the decision did not know the transaction.

        ``then`` is called with its producer group. As for END, the table is read after the decision: what leaves memory in between has its
        row by then. Rows are written before replies are released.
        """

        def decided(_: None, reply: Reply | Failed) -> None:
            if isinstance(reply, Refused) and reply.why is Why.NOT_FOUND:
                self._settled_verdict_lookup.look(peer, command.group, command.tx_id, lambda look: looked(reply, look))
            else:
                then(command.group, reply)

        def looked(refused: Refused, look: Look) -> None:
            if isinstance(look, Found):
                again = command._replace(group=look.group, settled=look.row)
                if isinstance(again, Compare) and (acted := self._acted(look.row.verdict_position)) is not None:
                    again = again._replace(operator=acted.name)
                self._sequencer.submit(again, lambda _, reply: then(look.group, reply))
                return
            why = Why.NOT_NOW if isinstance(look, NotSearched) else Why.NOT_FOUND
            then(command.group, refused._replace(why=why, text=f"{refused.text}; {look.text}"))
            self._flush()

        self._sequencer.submit(command, decided)

    def with_group(
        self, peer: Peer, tx_id: str, named: str, refuse: Callable[[Refused], None], then: Callable[[str], None]
    ) -> None:
        """Call ``then``, now or later, with the producer group of the transaction, or "" if none has it in memory.

        ``named``: the group in the request, or empty. ``refuse`` is called instead if the names are invalid, or several groups have it.
        """
        if not 0 < len(tx_id) <= limits.TRANSACTION_ID_CHARS_MAX:
            text = f"txId: which transaction, 1 to {limits.TRANSACTION_ID_CHARS_MAX} characters"
            refuse(Refused(Why.INVALID_PARAMETER, text))
            return
        if len(named) > limits.GROUP_CHARS_MAX:
            refuse(Refused(Why.INVALID_PARAMETER, f"group: at most {limits.GROUP_CHARS_MAX} characters"))
            return
        if named:
            then(named)
            return
        found: list[str] = []

        def look(one: ProducerGroup) -> int:
            if has(one, tx_id):
                found.append(one.name)
            return 0

        def looked() -> None:
            if len(found) > 1:
                some = ", ".join(found[:_NAMED_MAX]) + (" and others" if len(found) > _NAMED_MAX else "")
                text = f"group: {some} each have a transaction {tx_id}; say which group"
                refuse(Refused(Why.INVALID_PARAMETER, text))
            else:
                then(found[0] if found else "")
            self._flush()

        busy = self._scan.run(peer, look, looked)
        if busy is not None:
            refuse(busy)
