"""Third pass: checks each transaction, with one summary row per message.

Three sources of a verdict must agree: its requests (of application, check, marker or operator); what the broker
acknowledged or logged; and the database (``Local``), which is the reference unless an operator decided
otherwise. Visibility is checked against the reference, not against the broker's acknowledgements.

Each cause is reported once: a transaction whose verdict changed, was requested by nobody, is stuck or was not durable is not
reported as lost or torn too.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from operator import itemgetter
from typing import Final

from halfmq.testing.history import power_loss
from halfmq.testing.history.branches import Branches
from halfmq.testing.history.damage import DamageFound
from halfmq.testing.history.facts import (
    FAR,
    LOG_QUEUE,
    BranchRow,
    DamageRow,
    Facts,
    Read,
    TransactionFacts,
    WrittenMessage,
)
from halfmq.testing.history.messages import records_at
from halfmq.testing.history.order import Places, check_due
from halfmq.testing.history.outbox import OutboxMessages
from halfmq.testing.history.report import At, Findings
from halfmq.testing.history.scan import (
    BRANCH,
    CHECK,
    DAMAGE,
    LOCAL,
    OK,
    PREPARED,
    RECORD,
    REFUSED,
    REQUESTED,
    ROW,
    SETTLED,
    STORED,
    SUMMARY,
)
from halfmq.testing.history.tables import Row

COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
_VERDICTS: Final = (COMMITTED, ROLLED_BACK)
#: Who may settle a transaction of a coordinator; empty: the log does not say who did.
_OF_COORDINATOR: Final = ("coordinator", "operator", "policy", "")

#: Indexes in a SUMMARY row; see messages.py.
(
    _KEY, _, _MESSAGE, _INDEX, _TOPIC, _ASKED_US, _ASKED_PLACE, _QUEUES, _OK_US, _OK_PLACE, _OK_OFFSET, _SETTLED,
    _MAY_EXIST, _LISTED, _SEEN_US, _SEEN_PLACE, _QUEUE, _AT, _READERS, _STORE_TIME, _LOG_OFFSETS,
    _LOG_PLACE, _SHARDING, _DELAY, _SEVERAL,
) = range(25)  # fmt: skip
_by_index: Final = itemgetter(_INDEX, _MESSAGE)
_by_sight: Final = itemgetter(_SEEN_US, _INDEX, _MESSAGE)
_by_time: Final = itemgetter(1, 2)


def _collected(key: str, rows: list[Row]) -> TransactionFacts:
    """The facts that the rows of one transaction state."""
    transaction = TransactionFacts(key, key[: key.index("\n")])
    for row in rows:
        kind = row[1]
        if kind == SUMMARY:
            transaction.messages.append(row)
            if row[_SETTLED]:
                transaction.acknowledged += row[_SETTLED]
            if row[_SEEN_US] < FAR:
                transaction.seen += 1
                if transaction.first_seen is None or _by_sight(row) < _by_sight(transaction.first_seen):
                    transaction.first_seen = row
        elif kind == REQUESTED:
            _, _, us, place, verdict, by, us2, place2, outcome, verdict2, position, coordinator = row
            if outcome == OK:
                transaction.acknowledged.append((verdict2 or verdict, us2, place2, position))
            elif outcome == SETTLED and verdict2 is not None:
                transaction.acknowledged.append((verdict2, us2, place2, position))
            if outcome != REFUSED:
                transaction.deciders[by, verdict] = min(us, transaction.deciders.get((by, verdict), FAR))
                transaction.requests.append((verdict, us, place, by, coordinator))
            if by == "fence" and outcome == OK and verdict2 != COMMITTED:
                transaction.fenced = min((us2, place2, position), transaction.fenced or (FAR, 0, -1))
            if by != "policy" and by != "fence":
                transaction.attempted_us[verdict] = min(us, transaction.attempted_us.get(verdict, FAR))
                if outcome == REFUSED:
                    transaction.request_place.setdefault(verdict, place)
                    continue
                if us < transaction.requested_us.get(verdict, FAR):
                    transaction.requested_us[verdict] = us
                    transaction.request_place[verdict] = place
        elif kind == LOCAL:
            (_, _, transaction.local_place, transaction.local, transaction.listing, transaction.local_us,
             transaction.has_marker) = row  # fmt: skip
        elif kind == RECORD:
            transaction.records.append(row)
        elif kind == STORED:
            transaction.stored.append(row)
        elif kind == CHECK:
            if row[2] > transaction.checked_us:
                _, _, transaction.checked_us, transaction.checked_place = row
        elif kind == PREPARED:
            transaction.coordinators[row[4]] = min(row[3], transaction.coordinators.get(row[4], row[3]))
        elif kind == BRANCH:
            transaction.branches.append(BranchRow(*row))
        elif kind == ROW:
            transaction.written.append(WrittenMessage(*row))
        elif kind == DAMAGE:
            damage = DamageRow(*row)
            transaction.damage.append(damage)
            if damage.verdict:
                transaction.acknowledged.append(
                    (damage.verdict, damage.answered_us, damage.answered_place or damage.place, -1)
                )
            if damage.outcome != REFUSED:
                transaction.contradicted.add(damage.said)
    if len(transaction.messages) > 1:
        transaction.messages.sort(key=_by_index)
    return transaction


class Transactions:
    """Checks the groups of ``scan.transactions``, after all messages."""

    def __init__(
        self, facts: Facts, findings: Findings, places: Places, stopped_keys: AbstractSet[tuple[str, str]]
    ) -> None:
        self._facts = facts
        self._findings = findings
        self._examined = findings.examined
        self._places = places
        self._outbox = OutboxMessages(facts, findings, places, stopped_keys)
        self._branches = Branches(facts, findings)
        self._damage = DamageFound(facts, findings)

    def judge(self, groups: Iterable[list[Row]]) -> None:
        """Check all transactions. ``groups``: all rows of one transaction each."""
        facts = self._facts
        for rows in groups:
            key = rows[0][0]
            if facts.losses:
                rows = power_loss.of_transaction(facts, rows)
            if facts.relay_groups and key[: key.index("\n")] in facts.relay_groups:
                continue
            transaction = _collected(key, rows)
            if transaction.branches:
                why_not = partial(self._why_no_end, transaction, is_written=bool(transaction.written))
                self._branches.judge(transaction, transaction.branches, why_not)
            if transaction.written:
                self._outbox.judge(transaction, transaction.written)
                transaction.fell_back, transaction.local = True, ROLLED_BACK
            if not self._transaction(transaction):
                self._damage.judge(transaction, self._verdict(transaction), transaction.damage)

    @staticmethod
    def _verdict(transaction: TransactionFacts) -> str:
        """The verdict that is known, of a transaction that has one at most; empty: none is."""
        if transaction.records:
            return str(transaction.records[0][3])
        return str(transaction.acknowledged[0][0]) if transaction.acknowledged else ""

    def _transaction(self, transaction: TransactionFacts) -> bool:
        """Whether something was reported."""
        acknowledged = transaction.acknowledged
        if len(acknowledged) > 1:
            acknowledged.sort(key=_by_time)
        if len(transaction.records) > 1:
            transaction.records.sort(key=itemgetter(4))
        expected = [row for row in transaction.messages if row[_LISTED]] or [
            row for row in transaction.messages if row[_MAY_EXIST] or row[_SEEN_US] < FAR
        ]
        named = False
        if transaction.fenced:
            named = self._prepared_after_fence(transaction, transaction.fenced)
        if not named and transaction.coordinators:
            named = self._settled_by_others(transaction)
        if not named and (acknowledged or transaction.records):
            named = self._changed(transaction) or self._is_unrequested(transaction)
        if transaction.seen and not named:
            named = self._phantom(transaction)
        in_queue = self._in_log_places(transaction, expected)
        if not named:
            named = (
                self._forgotten(transaction)
                or self._stuck(transaction)
                or self._missing(transaction, expected, in_queue)
            )
        if not named:
            self._give_places(transaction, in_queue)
        return named

    # --- promise 1 ------------------------------------------------------------------------------------------------

    def _changed(self, transaction: TransactionFacts) -> bool:
        acknowledged, records = transaction.acknowledged, transaction.records
        if self._facts.acknowledgements_void:
            return False
        if len(acknowledged) + len(records) > 1:
            self._examined[At.AGREEMENT] += 1
        elif not (transaction.seen and transaction.attempted_us):
            return False
        verdicts = {one[0] for one in acknowledged}
        verdicts.update([row[3] for row in records])
        sight = transaction.first_seen
        if sight is not None and COMMITTED in transaction.attempted_us and transaction.local != ROLLED_BACK:
            verdicts.add(COMMITTED)
        if len(verdicts) > 1:
            first: dict[str, tuple[str, int]] = {}
            for verdict, us, place, _ in acknowledged:
                first.setdefault(verdict, (f"{verdict} acknowledged at {us:,} us", place))
            for row in records:
                first.setdefault(row[3], (f"{row[3]} in the log at {row[4]}", row[2]))
            if sight is not None:
                text = f"message {sight[_MESSAGE]} was seen at {sight[_SEEN_US]:,} us"
                first.setdefault(COMMITTED, (text, sight[_SEEN_PLACE]))
            text = "two verdicts: " + ", ".join(first[verdict][0] for verdict in _VERDICTS)
            self._add(At.AGREEMENT, transaction, text, [place for _, place in first.values()])
            return True
        return self._two_positions(transaction)

    def _prepared_after_fence(self, transaction: TransactionFacts, fenced: tuple[int, int, int]) -> bool:
        """Whether a half was acknowledged that nobody had sent before a participant was told that the transaction is rolled back."""
        facts, (us, place, position) = self._facts, fenced
        if facts.acknowledgements_void or position < facts.trimmed_to:
            return False
        self._examined[At.FENCED] += 1
        for row in transaction.messages:
            if us < row[_ASKED_US] and row[_OK_US] < FAR:
                text = f"it was prepared after a participant was told at {us:,} us that it is rolled back"
                self._add(At.FENCED, transaction, text, (place, row[_ASKED_PLACE], row[_OK_PLACE]))
                return True
        return False

    def _two_positions(self, transaction: TransactionFacts) -> bool:
        """Whether one verdict was written twice."""
        records = transaction.records
        if len(records) > 1:
            text = f"its verdict is {len(records)} times in the log: at {', '.join(str(row[4]) for row in records)}"
            twice = At.ONCE if records[0][3] == COMMITTED else At.AGREEMENT
            self._add(twice, transaction, text, [row[2] for row in records])
            return True
        if len(transaction.acknowledged) < 2:
            return False
        named = [one for one in transaction.acknowledged if one[3] >= 0]
        for one in named[1:]:
            if one[3] != named[0][3]:
                text = f"its verdict was acknowledged at log position {named[0][3]}, and later at {one[3]}"
                restart = self._facts.restarted_between(named[0][1], one[1])
                check = At.DURABLE_RESTART if restart else At.AGREEMENT
                self._add(check, transaction, text, (named[0][2], one[2]))
                return True
        return False

    # --- promise 2 ------------------------------------------------------------------------------------------------

    def _is_unrequested(self, transaction: TransactionFacts) -> bool:
        self._examined[At.VALIDITY] += 1
        by_policy = transaction.group in self._facts.policy_groups
        for row in transaction.records:
            if row[5] == "policy" and (not by_policy or row[3] == COMMITTED):
                why = "policies never commit" if by_policy else f"group {transaction.group} has none"
                text = f"{row[3]} at log offset {row[4]} was decided by a policy; {why}"
                self._add(At.VALIDITY, transaction, text, (row[2], transaction.local_place))
                return True
            if row[5] == "operator" and ("operator", row[3]) not in transaction.deciders:
                text = f"{row[3]} at log offset {row[4]} was decided by an operator; no operator requested it"
                self._add(At.VALIDITY, transaction, text, (row[2], *transaction.request_place.values()))
                return True
        logged = {row[3]: row[2] for row in reversed(transaction.records)}
        acknowledged = {one[0]: one for one in reversed(transaction.acknowledged)}
        for verdict in sorted({*logged, *acknowledged}):
            if verdict == ROLLED_BACK and self._is_by_policy(transaction):
                continue
            if any(row[3] == verdict and row[5] == "query" for row in transaction.records):
                continue
            if verdict == ROLLED_BACK and transaction.local != COMMITTED and self._is_fenced(transaction):
                continue
            _, us, place, _ = acknowledged.get(verdict, (verdict, FAR, 0, -1))
            in_log = logged.get(verdict, 0)
            text = self._why_not(transaction, verdict, us)
            if text:
                seen = f"; {transaction.seen} of its messages were seen" if transaction.seen else ""
                where = "acknowledged" if us < FAR else "in the log"
                places = (place, in_log, transaction.local_place, *transaction.request_place.values())
                self._add(At.VALIDITY, transaction, f"{verdict} was {where}, but {text}{seen}", places)
                return True
        return False

    def _settled_by_others(self, transaction: TransactionFacts) -> bool:
        """Whether a verdict of a coordinator's transaction is that of somebody who may not give it."""
        if self._facts.acknowledgements_void:
            return False
        known = [(verdict, us, place) for verdict, us, place, _ in transaction.acknowledged]
        known += [(row[3], FAR, row[2]) for row in transaction.records]
        if transaction.first_seen is not None:
            known.append((COMMITTED, transaction.first_seen[_SEEN_US], transaction.first_seen[_SEEN_PLACE]))
        self._examined[At.COORDINATED] += bool(known)
        of = "it is a transaction of coordinator " + ", ".join(sorted(transaction.coordinators))
        for row in transaction.records:
            if row[5] not in _OF_COORDINATOR:
                text = f"{row[3]} at log offset {row[4]} was decided by {row[5]}; {of}"
                self._add(At.COORDINATED, transaction, text, (row[2], *transaction.coordinators.values()))
                return True
        for verdict, us, place in known:
            asked = [one for one in transaction.requests if one[0] == verdict and one[1] <= us]
            by_policy = verdict == ROLLED_BACK and self._is_by_policy(transaction)
            if asked and not by_policy and not any(self._may_settle(transaction, one) for one in asked):
                whom = sorted({(one[4] and f"coordinator {one[4]}") or one[3] for one in asked})
                text = f"{verdict} had been requested by nobody but {', '.join(whom)} when it was known; {of}"
                places = (place, *transaction.coordinators.values(), *(one[2] for one in asked))
                self._add(At.COORDINATED, transaction, text, places)
                return True
        return False

    @staticmethod
    def _may_settle(transaction: TransactionFacts, request: tuple[str, int, int, str, str]) -> bool:
        """Whether this request may be that of the transaction's coordinator, of an operator or of a policy."""
        _, _, _, by, coordinator = request
        return (
            by in ("operator", "policy")
            or coordinator in transaction.coordinators
            or (by == "coordinator" and not coordinator)
        )

    def _is_fenced(self, transaction: TransactionFacts) -> bool:
        """Whether a participant's fence rolled it back, or may have: no half of it came before."""
        since_us = transaction.fenced[0] if transaction.fenced else FAR
        prepared = transaction.stored or any(
            row[_ASKED_US] <= since_us and (row[_LOG_OFFSETS] or row[_OK_US] < FAR) for row in transaction.messages
        )
        asked = ("fence", ROLLED_BACK) in transaction.deciders
        return not prepared and (asked or any(row[5] == "fence" for row in transaction.records))

    def _is_by_policy(self, transaction: TransactionFacts) -> bool:
        """Whether a policy rolled it back, or may have: the log was not read, or no longer contains the record."""
        if transaction.group not in self._facts.policy_groups:
            return False
        return not transaction.records or any(row[5] == "policy" for row in transaction.records)

    def _why_not(self, transaction: TransactionFacts, verdict: str, us: int) -> str:
        """Why nobody had decided this verdict, known since ``us``; empty if somebody had."""
        requested_us = transaction.requested_us.get(verdict)
        if ("operator", verdict) not in transaction.deciders:
            if transaction.fell_back and verdict == COMMITTED:
                return "its messages went to the outbox"
            # A coordinator's verdict may be the opposite where somebody says so, or a marker does: then there is a finding.
            said = transaction.has_marker or transaction.local in transaction.contradicted
            overruled = said and ("coordinator", verdict) in transaction.deciders
            if transaction.local and transaction.local != verdict and not overruled:
                return f"the database says {transaction.local}" + (
                    "" if requested_us is None else f", although {verdict} was requested"
                )
            if requested_us is None and not transaction.local:
                return (
                    f"every request for {verdict} was refused"
                    if verdict in transaction.attempted_us
                    else f"nobody requested {verdict}"
                )
        if requested_us is not None and us < requested_us:
            return f"that was {requested_us - us:,} us before {verdict} was requested"
        return ""

    def _why_no_end(self, transaction: TransactionFacts, verdict: str, us: int, *, is_written: bool) -> str:
        """Why no branch could have ended with this verdict at ``us``; empty if one could.

        A rollback needs no request, since whoever began it may have died before. What is wrong with the verdict itself is reported as
        that. ``is_written``: its messages went to the outbox, so the broker's verdict does not matter.
        """
        known = {one[0] for one in transaction.acknowledged} | {row[3] for row in transaction.records}
        if is_written or self._facts.acknowledgements_void:
            known = set()
        if verdict == COMMITTED or (transaction.local == COMMITTED and not self._is_by_policy(transaction)):
            why = self._why_not(transaction, verdict, us)
            if why and not (verdict in known and self._why_not(transaction, verdict, FAR)):
                return why
        return f"the verdict is {min(known)}" if known and verdict not in known else ""

    def _phantom(self, transaction: TransactionFacts) -> bool:
        first = transaction.first_seen
        assert first is not None
        why = self._why_not(transaction, COMMITTED, first[_SEEN_US])
        if why:
            many = f"{transaction.seen} of its messages were" if transaction.seen > 1 else "it was"
            message = first[_MESSAGE] if transaction.seen == 1 else ""
            places = [row[_SEEN_PLACE] for row in transaction.messages if row[_SEEN_US] < FAR]
            self._findings.add(
                At.MESSAGE_PHANTOM, transaction.key, message, f"{many} seen, but {why}",
                [*places[:4], transaction.local_place, *transaction.request_place.values()],
            )  # fmt: skip
            return True
        listed = [row for row in transaction.messages if row[_LISTED]]
        if listed and len(listed) < len(transaction.messages):
            for row in transaction.messages:
                if row[_SEEN_US] < FAR and not row[_LISTED]:
                    text = "it was seen, but the database does not list it among the messages of its transaction"
                    places = [row[_SEEN_PLACE], row[_ASKED_PLACE], transaction.local_place]
                    self._findings.add(At.MESSAGE_PHANTOM, transaction.key, row[_MESSAGE], text, places)
                    return True
        return False

    # --- promises 3 and 4 -----------------------------------------------------------------------------------------

    def _in_log_places(self, transaction: TransactionFacts, expected: list[Row]) -> dict[str, tuple[int, int]]:
        """(queue, queue offset) by message, from the commit in the log."""
        commit = next((row for row in transaction.records if row[3] == COMMITTED), None)
        if commit is None or not transaction.messages:
            return {}
        owner: dict[int, Row] = {}
        for row in transaction.messages:
            for offset in row[_LOG_OFFSETS]:
                owner[offset] = row
            if row[_OK_OFFSET] >= 0:
                owner[row[_OK_OFFSET]] = row
        by_index = {row[_INDEX]: row for row in transaction.messages} if transaction.stored else {}
        for _, _, _, index, offset in transaction.stored:
            if index in by_index:
                owner[offset] = by_index[index]
        found: dict[str, tuple[int, int]] = {}
        foreign: list[int] = []
        for queue, at, half in commit[6]:
            owned = owner.get(half)
            if owned is None:
                # Unknown halves may be its own if they were trimmed, and were never acknowledged at that offset.
                if half >= self._facts.log_start:
                    foreign.append(half)
                continue
            message = owned[_MESSAGE]
            if message in found:
                text = f"the commit at log offset {commit[4]} shows it twice"
                self._findings.add(At.ONCE, transaction.key, message, text, (commit[2],))
            found[message] = (queue, at)
            if at >= 0 and owned[_SEEN_US] < FAR and (owned[_QUEUE], owned[_AT]) != (queue, at) and not owned[_SEVERAL]:
                names = self._facts.queue_text
                text = f"the log has it at {names(queue, at)}, it was seen at {names(owned[_QUEUE], owned[_AT])}"
                self._findings.add(At.ONCE, transaction.key, message, text, (commit[2], owned[_SEEN_PLACE]))
        self._shows_its_own(transaction, commit, foreign, expected, found)
        return found

    def _shows_its_own(
        self,
        transaction: TransactionFacts,
        commit: Row,
        foreign: list[int],
        expected: list[Row],
        found: dict[str, tuple[int, int]],
    ) -> None:
        """Check that the commit in the log makes visible all messages of its transaction, and no others."""
        others = f"log offset {', '.join(map(str, foreign[:4]))}"
        own = len(commit[6]) - len(foreign)
        if self._facts.atomic and own < len(expected):
            text = f"the commit at log offset {commit[4]} shows {own} of its {len(expected)} messages"
            if foreign:
                text += f", and {others}, which is none of them"
            without = [row[_ASKED_PLACE] for row in expected if row[_MESSAGE] not in found]
            self._add(At.WHOLE, transaction, text, (commit[2], *without))
        elif foreign:
            text = f"the commit at log offset {commit[4]} shows {others}, which is not one of its halves"
            self._add(At.MESSAGE_PHANTOM, transaction, text, (commit[2], transaction.messages[0][_ASKED_PLACE]))

    def _missing(
        self, transaction: TransactionFacts, expected: list[Row], in_queue: dict[str, tuple[int, int]]
    ) -> bool:
        """Whether messages that had to be visible were not received by a reader that read everything."""
        need_us = self._visible_by(transaction, expected)
        if need_us == FAR or self._facts.acknowledgements_void:
            return False
        whole = self._facts.atomic and len(expected) > 1
        if whole and (transaction.seen or in_queue):
            self._examined[At.WHOLE] += 1
        missing: list[tuple[Row, Read]] = []
        for row in expected:
            if row[_SEEN_US] < FAR:
                self._examined[At.MISSED] += row[_QUEUE] in self._facts.reads
            elif not row[_DELAY]:
                read = self._read_of(row, in_queue.get(row[_MESSAGE]), need_us)
                if read is not None:
                    self._examined[At.MISSED] += 1
                    missing.append((row, read))
        if not missing:
            return False
        row, read = missing[0]
        who = self._facts.reader_names[read.reader]
        places = [row[_ASKED_PLACE], transaction.request_place.get(COMMITTED, 0), transaction.local_place, read.place]
        places += [place for verdict, _, place, _ in transaction.acknowledged[:1]]
        why = "it is committed" if len(expected) == 1 else f"{len(missing)} of its {len(expected)} messages are missing"
        if whole and transaction.seen:
            first = transaction.first_seen
            assert first is not None
            text = f"{transaction.seen} of its {len(expected)} messages were seen, but {who}, which read everything, did not receive {len(missing)}"
            self._findings.add(At.WHOLE, transaction.key, "", text, [*places, first[_SEEN_PLACE]])
            return True
        message = row[_MESSAGE] if len(missing) == 1 else ""
        acknowledged = next((one for one in transaction.acknowledged if one[0] == COMMITTED), None)
        check = At.MISSED
        if acknowledged and not transaction.records and self._facts.restarted_between(acknowledged[1], read.since_us):
            check, why = At.DURABLE_RESTART, "COMMITTED was acknowledged, the broker restarted"
            self._examined[check] += 1
        text = f"{why}, and {who}, which read everything, never received it"
        self._findings.add(check, transaction.key, message, text, places)
        return True

    def _visible_by(self, transaction: TransactionFacts, expected: list[Row]) -> int:
        """The time from which all its messages had to be visible; FAR: none is known."""
        facts = self._facts
        need_us = min((us for verdict, us, _, _ in transaction.acknowledged if verdict == COMMITTED), default=FAR)
        if transaction.first_seen is not None and facts.atomic:
            need_us = min(need_us, transaction.first_seen[_SEEN_US])
        if facts.settled_us >= 0 and need_us > facts.settled_us:
            in_log = any(row[3] == COMMITTED for row in transaction.records)
            if in_log or self._must_settle_as_committed(transaction, expected):
                need_us = facts.settled_us
        return need_us

    def _must_settle_as_committed(self, transaction: TransactionFacts, expected: list[Row]) -> bool:
        facts = self._facts
        if transaction.group in facts.unresolved_groups or transaction.group in facts.policy_groups:
            return False
        if any(us > facts.settled_us for us in transaction.attempted_us.values()):
            return False
        if transaction.local:
            wanted = transaction.local == COMMITTED and ("operator", ROLLED_BACK) not in transaction.deciders
        else:
            wanted = COMMITTED in transaction.attempted_us and ROLLED_BACK not in transaction.attempted_us
        return wanted and all(
            row[_OK_US] <= facts.settled_us or row[_LOG_OFFSETS] or row[_SEEN_US] < FAR for row in expected
        )

    def _read_of(self, row: Row, in_queue: tuple[int, int] | None, need_us: int) -> Read | None:
        if in_queue is not None:
            queue, at = in_queue
            return None if at < 0 or queue in self._facts.not_judged else self._facts.place_was_read(queue, at, need_us)
        return self._facts.topic_was_read(row[_TOPIC], tuple(row[_QUEUES]), need_us) if row[_TOPIC] else None

    # --- promise 5 ------------------------------------------------------------------------------------------------

    def _forgotten(self, transaction: TransactionFacts) -> bool:
        """Whether a half or verdict was acknowledged, but is no longer in the log."""
        facts = self._facts
        if not facts.log_records or facts.acknowledgements_void:
            return False
        for row in transaction.messages:
            offset = row[_OK_OFFSET]
            if offset >= 0 and facts.log_must_have(offset):
                self._examined[At.DURABLE_LOG] += 1
                if offset not in row[_LOG_OFFSETS]:
                    text = f"it was acknowledged at log offset {offset}; the log has {records_at(row[_LOG_OFFSETS])}"
                    self._findings.add(
                        At.DURABLE_LOG, transaction.key, row[_MESSAGE], text, (row[_OK_PLACE], row[_LOG_PLACE])
                    )
                    return True
        for verdict, _, place, position in transaction.acknowledged:
            # Without a position: the log still has the half, so it must have the later verdict.
            if facts.log_must_have(position) or (
                position < 0 and any(row[_LOG_OFFSETS] for row in transaction.messages)
            ):
                self._examined[At.DURABLE_LOG] += 1
                if not any(row[4] == position or position < 0 for row in transaction.records):
                    at = f" at log position {position}" if position >= 0 else ""
                    has = f"has it at {transaction.records[0][4]}" if transaction.records else "has no verdict for it"
                    text = f"{verdict}{at} was acknowledged; the log {has}"
                    self._add(At.DURABLE_LOG, transaction, text, [place, *(row[2] for row in transaction.records)])
                    return True
        return False

    # --- promise 7 ------------------------------------------------------------------------------------------------

    def _stuck(self, transaction: TransactionFacts) -> bool:
        facts = self._facts
        settled_us = facts.settled_us
        if settled_us < 0 or transaction.group in facts.unresolved_groups or not transaction.messages:
            return False
        row = transaction.messages[0]
        logged = row if row[_LOG_OFFSETS] else next((one for one in transaction.messages if one[_LOG_OFFSETS]), None)
        never_checked = self._was_never_checked(transaction)
        if row[_ASKED_US] > settled_us or (
            logged is None and transaction.checked_us < 0 and not transaction.acknowledged and not never_checked
        ):
            return False
        if facts.losses and any(
            one[_ASKED_US] <= facts.lost_us and not one[_LOG_OFFSETS] for one in transaction.messages
        ):
            return False  # a power loss may have lost that half, and without it nothing can be decided
        self._examined[At.PROGRESS] += 1
        if transaction.acknowledged or transaction.records or transaction.seen:
            return False
        if logged is not None:
            text = "its half is in the log and the history settled, but there is no verdict"
            places = (row[_OK_PLACE], logged[_LOG_PLACE], transaction.local_place, transaction.checked_place)
        elif transaction.checked_us > settled_us:
            text = f"it was still checked at {transaction.checked_us:,} us, after the history settled"
            places = (row[_OK_PLACE], transaction.checked_place, transaction.local_place, 0)
        elif never_checked:
            text = "its half was acknowledged and the history settled, but it was never checked or decided"
            places = (row[_OK_PLACE], 0, 0, 0)
        else:
            return False
        self._add(At.PROGRESS, transaction, text, places)
        return True

    def _was_never_checked(self, transaction: TransactionFacts) -> bool:
        """Whether an acknowledged half is undecided as far as the events show, also without the log.

        If the database has an outcome, an unrecorded process may have requested the verdict.
        """
        facts = self._facts
        if (
            transaction.attempted_us
            or transaction.local
            or transaction.checked_us >= 0
            or facts.log_records
            or facts.acknowledgements_void
        ):
            return False
        acknowledged = any(row[_OK_US] <= facts.settled_us for row in transaction.messages)
        return acknowledged and transaction.group not in facts.policy_groups

    # --- promise 8 ------------------------------------------------------------------------------------------------

    def _give_places(self, transaction: TransactionFacts, in_queue: dict[str, tuple[int, int]]) -> None:
        acked_us, acked_place, position, verdict = FAR, 0, -1, ""
        for one_verdict, us, place, one_position in transaction.acknowledged:
            if us < acked_us:
                acked_us, acked_place, verdict = us, place, one_verdict
            if one_position > position:
                position = one_position
        if transaction.records:
            position, verdict = transaction.records[0][4], transaction.records[0][3]
        messages = transaction.messages
        if position >= 0:
            # A policy's verdict does not follow a request: requests came later, or were not effective.
            # So does a rollback by a later run of a query, or by its decision; of one that was trimmed, the log cannot say.
            by_policy = verdict == ROLLED_BACK and (
                self._is_by_policy(transaction)
                or any(row[5] == "query" for row in transaction.records)
                or (not transaction.records and self._facts.log_records > 0 and position < self._facts.log_start)
            )
            requested_us = -1 if by_policy else transaction.requested_us.get(verdict, -1)
            request_place = transaction.request_place.get(verdict, 0)
            self._places.add(
                LOG_QUEUE, position, "", requested_us, acked_us, -1, request_place, acked_place, transaction.key
            )
        if not (transaction.seen or in_queue):
            return
        commit_us = transaction.requested_us.get(COMMITTED, -1)
        commit_place = transaction.request_place.get(COMMITTED, 0)
        not_judged = self._facts.not_judged
        for row in messages:
            queue, at, seen_us = row[_QUEUE], row[_AT], row[_SEEN_US]
            if row[_DELAY] and commit_us >= 0 and seen_us < FAR:
                due_us = commit_us + row[_DELAY] * 1_000
                places = (row[_ASKED_PLACE], commit_place, row[_SEEN_PLACE])
                check_due(self._facts, self._findings, transaction.key, row[_MESSAGE], due_us, seen_us, places)
            if queue < 0:
                queue, at = in_queue.get(row[_MESSAGE], (-1, -1))
            if at < 0 or row[_DELAY] or row[_SEVERAL] or queue in not_judged:
                continue
            asked_us, asked_place = commit_us, commit_place
            if asked_us < 0:
                asked_us, asked_place = row[_ASKED_US], row[_ASKED_PLACE]
                if asked_us == FAR:
                    continue
            known_us, known_place = (acked_us, acked_place) if acked_us < seen_us else (seen_us, row[_SEEN_PLACE])
            self._places.add(
                queue, at, row[_MESSAGE], asked_us, known_us, position, asked_place, known_place, transaction.key,
                row[_SHARDING], row[_READERS], row[_STORE_TIME], seen_us, row[_SEEN_PLACE],
            )  # fmt: skip

    def _add(self, check: int, transaction: TransactionFacts, text: str, places: Iterable[int]) -> None:
        self._findings.add(check, transaction.key, "", text, list(places))
