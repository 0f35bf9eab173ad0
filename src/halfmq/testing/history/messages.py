"""Second pass: checks each message. Plain messages are checked completely; one summary row per transactional message goes to
the third pass.

A message may be at one place only: one offset of one queue, one half record in the log. It must have been sent before it was
received, with the same body and to the same queue. An acknowledged message stays at its place. A rejected request changed
nothing, and is ignored if there is another request for the message.

Of a message that only the log knows, since the program that sent it in a half batch did not record its requests, the log is the
reference: it must be received where the log has it, by everybody who read past that place.

The summary row::

    tx, SUMMARY, message, index, topic, asked at, place, queues asked, ok at, place, log offset of the ok,
        settled: (verdict, at, place, position)..., may exist, place where it is listed,
        seen at, place, queue, queue offset, readers, store time, log offsets, place in the log,
        sharding key, delayed, reported at several places or at a wrong one

A message of an outbox has an ``WrittenMessage`` instead. If it was sent as a half message before, that one has a summary, and is
visible if it was seen with that transaction.

Unknown times are ``FAR``, unknown numbers -1, and missing places 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from halfmq.testing.history import power_loss
from halfmq.testing.history.facts import FAR, LOG_QUEUE, Facts, WrittenMessage
from halfmq.testing.history.order import Places, check_due
from halfmq.testing.history.report import At, Findings
from halfmq.testing.history.scan import (
    ASKED,
    DECIDED,
    HANDLED,
    HELD,
    LISTED,
    LOG_BATCHED,
    LOG_HALF,
    LOG_MESSAGE,
    OK,
    REFUSED,
    ROW,
    SEEN,
    SETTLED,
    SUMMARY,
    WRITTEN,
    tx_key,
)
from halfmq.testing.history.tables import GroupedTable, Row

_time_and_place: Final = itemgetter(2, 3)
#: Kinds of rows of the log that say where a message is in its queue.
_IN_QUEUE: Final = (LOG_MESSAGE, LOG_BATCHED)
_AT_MOST: Final = 4
#: RocketMQ keeps 31 bits of a CRC-32.
_CRC_MASK: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Sightings:
    """Where and when one message was received first, and by which readers."""

    us: int = FAR
    place: int = 0
    queue: int = -1
    at: int = -1
    store_time: int = 0
    readers: tuple[int, ...] = ()


_NEVER: Final = Sightings()


class Messages:
    """Checks the groups of ``scan.messages``."""

    def __init__(self, facts: Facts, findings: Findings, transactions: GroupedTable, places: Places) -> None:
        self._facts = facts
        self._findings = findings
        self._examined = findings.examined
        self._transactions = transactions
        self._places = places
        #: (group, sharding key) of messages that are set aside.
        self.stopped_keys: set[tuple[str, str]] = set()

    def judge(self, groups: Iterable[list[Row]]) -> None:
        """Check all messages. ``groups``: all rows of one message each."""
        facts = self._facts
        for rows in groups:
            self._message(rows[0][0], power_loss.of_message(facts, rows) if facts.losses else rows)

    def _message(self, message: str, rows: list[Row]) -> None:
        asks: list[Row] = []
        seens: list[Row] = []
        logs: list[Row] = []
        decisions: list[Row] = []
        handled: list[Row] = []
        listed: Row | None = None
        written: Row | None = None
        refused = 0
        for row in rows:
            kind = row[1]
            if kind == ASKED:
                asks.append(row)
                refused += row[6] == REFUSED
            elif kind == SEEN:
                seens.append(row)
            elif kind == LISTED:
                listed = row
            elif kind == WRITTEN:
                written = row
            elif kind == DECIDED:
                decisions.append(row)
            elif kind == HANDLED:
                handled.append(row)
            else:
                logs.append(row)
        if handled:
            self._handled_once(message, handled)
        if written is not None:
            self._of_outbox(message, written, asks, listed, seens, logs, decisions)
            return
        seen = self._sightings(seens) if seens else _NEVER
        if not asks and listed is None:
            if any(row[3] == LOG_BATCHED for row in logs):
                self._only_logged(message, seens, seen, logs)
            else:
                self._nobody_sent_it(message, seens, logs)
            return
        if 0 < refused < len(asks):
            asks = [row for row in asks if row[6] != REFUSED]
            refused = 0
        first = min(asks, key=_time_and_place) if asks else None
        if first is not None:
            group, tx, asked_us = first[7], first[8], first[2]
        else:
            assert listed is not None
            group, tx, asked_us = listed[3], listed[4], -1
        key = tx_key(group, tx) if tx else ""
        several = False
        if refused and self._was_refused(key, message, asks, seen, logs):
            if not tx:
                return
            seen, listed = _NEVER, None
        if seen.us < FAR or logs:
            self._examined[At.ONCE] += 1
            if seen.us < FAR:
                self._examined[At.MESSAGE_PHANTOM] += 1
                if seen.us < asked_us and first is not None:
                    self._findings.add(
                        At.MESSAGE_PHANTOM, key, message, "it was seen before anybody sent it", (seen.place, first[3])
                    )
            self._same_body(key, message, asks, seens, logs)
            several = self._one_place(key, message, asks, seens, logs)
            if asks and not several and not self._as_sent(key, message, asks, seens):
                if not tx:
                    return
                several = True
        if logs:  # records in retry and dead-letter queues are copies, not the message itself
            not_judged = self._facts.not_judged
            logs = [row for row in logs if row[3] != LOG_MESSAGE or row[5] not in not_judged]
        if tx:
            self._sum_up(key, message, asks, first, listed, seen, logs, several=several)
        elif first is not None:
            self._plain(message, asks, first, seen, logs)

    def _sightings(self, seens: list[Row]) -> Sightings:
        """Summarize where the message was received first; copies in retry and dead-letter queues are ignored."""
        seen = Sightings()
        not_judged, names = self._facts.not_judged, self._facts.queue_names
        for row in seens:
            _, _, us, place, reader, queue, at, _, store_time, *_ = row
            if queue in not_judged:
                continue
            if us < seen.us or (us == seen.us and (names[queue], at) < (names[seen.queue], seen.at)):
                seen.us, seen.place, seen.queue, seen.at, seen.store_time = us, place, queue, at, store_time
            if reader not in seen.readers:
                seen.readers += (reader,)
        return seen

    def _handled_once(self, message: str, handled: list[Row]) -> None:
        """Of each consumer group at most one transaction committed that handled it: inbox row and effect are one unit."""
        for consumer in sorted({row[3] for row in handled}):
            self._examined[At.HANDLED] += 1
            units = [row for row in handled if row[3] == consumer]
            if len({row[4:] for row in units}) > 1:
                text = f"{len(units)} transactions of {consumer} that handled it committed"
                self._findings.add(At.HANDLED, tx_key(*units[0][4:]), message, text, [row[2] for row in units])

    # --- all messages ---------------------------------------------------------------------------------------------

    def _nobody_sent_it(self, message: str, seens: list[Row], logs: list[Row]) -> None:
        not_judged = self._facts.not_judged
        places = [row[3] for row in seens if row[5] not in not_judged]
        in_log = [row for row in logs if row[3] == LOG_MESSAGE and row[5] not in not_judged]
        if places or in_log:
            self._examined[At.MESSAGE_PHANTOM] += 1
            tx = min((row[10] for row in seens), default="")
            where = "seen" if places else "in the log"
            self._findings.add(
                At.MESSAGE_PHANTOM, tx and tx_key("", tx), message, f"it was {where}, but nobody sent it",
                [*places, *(row[2] for row in in_log)],
            )  # fmt: skip

    def _only_logged(self, message: str, seens: list[Row], seen: Sightings, logs: list[Row]) -> None:
        """A verdict in the log shows it."""
        self._examined[At.ONCE] += 1
        self._examined[At.MESSAGE_PHANTOM] += seen.us < FAR
        bodies = {row[7] & _CRC_MASK for row in logs if row[7]}
        wrong = [row[3] for row in seens if row[9] and bodies and row[9] & _CRC_MASK not in bodies]
        if wrong:
            text = "its body differs from the one in the log"
            self._findings.add(At.MESSAGE_PHANTOM, "", message, text, [*wrong, *(row[2] for row in logs)])
        elif not self._one_place("", message, [], seens, logs) and not self._elsewhere(message, seen, logs):
            self._missed_in_log(message, seen, logs)
            row = next(row for row in logs if row[3] == LOG_BATCHED)
            at = row[6] if row[6] >= 0 else seen.at
            if at < 0:
                return  # delayed, and not seen: nobody knows its place
            self._places.add(
                row[5], at, message, -1, seen.us, -1, row[2], seen.place or row[2], "", "", seen.readers,
                seen.store_time, seen.us, seen.place,
            )  # fmt: skip

    def _elsewhere(self, message: str, seen: Sightings, logs: list[Row]) -> bool:
        """Whether it was seen at another place than the verdict in the log gave it; to a delayed message that gives only a queue."""
        for row in logs:
            if row[3] != LOG_BATCHED or seen.us == FAR:
                continue
            at = row[6] if row[6] >= 0 else seen.at
            if (seen.queue, seen.at) != (row[5], at):
                names = self._facts.queue_text
                text = f"the log has it at {names(row[5], at)}, it was seen at {names(seen.queue, seen.at)}"
                self._findings.add(At.ONCE, "", message, text, (row[2], seen.place))
                return True
        return False

    def _missed_in_log(self, message: str, seen: Sightings, logs: list[Row]) -> bool:
        """Whether a verdict in the log shows it, and a reader read past its place without receiving it."""
        for row in logs:
            reads = self._facts.reads.get(row[5], ()) if row[3] == LOG_BATCHED else ()
            for read in reads:
                if read.first <= row[6] < read.end:
                    self._examined[At.MISSED] += 1
                    if seen.us == FAR:
                        reader = self._facts.reader_names[read.reader]
                        text = f"the log shows it, and {reader}, which read everything, never received it"
                        self._findings.add(At.MISSED, "", message, text, (row[2], read.place))
                        return True
        return False

    def _was_refused(self, key: str, message: str, asks: list[Row], seen: Sightings, logs: list[Row]) -> bool:
        """Every request for it was refused. Whether it is visible nevertheless."""
        not_judged = self._facts.not_judged
        in_log = [row[2] for row in logs if row[3] in _IN_QUEUE and row[5] not in not_judged]
        if seen.us == FAR and not in_log:
            return False
        self._examined[At.MESSAGE_PHANTOM] += 1
        where = "seen" if seen.us < FAR else "in the log"
        text = f"it was {where}, but every request to send it was refused"
        self._findings.add(
            At.MESSAGE_PHANTOM, key, message, text, [seen.place, *(row[5] for row in asks[:_AT_MOST]), *in_log]
        )
        return True

    def _same_body(self, key: str, message: str, asks: list[Row], seens: list[Row], logs: list[Row]) -> None:
        sent = {row[12] & _CRC_MASK for row in asks}
        if sent and 0 not in sent:
            wrong = [row[3] for row in seens if row[9] and row[9] & _CRC_MASK not in sent]
            wrong += [row[2] for row in logs if row[7] and row[7] & _CRC_MASK not in sent]
            if wrong:
                self._findings.add(
                    At.MESSAGE_PHANTOM, key, message, "its body differs from every body sent", [asks[0][3], *wrong]
                )
                return
        if len(seens) < 2:
            return
        bodies = {row[9] & _CRC_MASK: row[3] for row in sorted(seens, key=_time_and_place, reverse=True) if row[9]}
        if len(bodies) > 1:  # which body was sent is unknown, but only one can be right
            self._findings.add(
                At.MESSAGE_PHANTOM,
                key,
                message,
                f"it was seen with {len(bodies)} different bodies",
                list(bodies.values()),
            )

    def _as_sent(self, key: str, message: str, asks: list[Row], seens: list[Row]) -> bool:
        """Whether it was seen at the place and with the fields that one of its requests names. Copies are ignored."""
        not_judged, names = self._facts.not_judged, self._facts.queue_names
        for row in seens:
            if row[5] in not_judged:
                continue
            topic, queue = names[row[5]]
            for ask in asks:
                if _is_as_sent(ask, row, topic, queue):
                    break
            else:
                ask = asks[0]
                there = _what(topic, queue, *row[10:])
                text = f"it was seen in {there}, but sent to {_what(ask[10], ask[11], ask[8], ask[9], ask[13])}"
                self._findings.add(
                    At.MESSAGE_PHANTOM, key, message, text, [row[3], *(one[3] for one in asks[:_AT_MOST])]
                )
                return False
        return True

    def _one_place(self, key: str, message: str, asks: list[Row], seens: list[Row], logs: list[Row]) -> bool:
        """Whether several places were reported for it.

        One place in the queues and one record in the log are legal. ``copy`` records, which copy a half forward, do not count.
        """
        not_judged = self._facts.not_judged
        if len(seens) > 1:
            found: dict[tuple[int, int], Row] = {}
            for row in sorted(seens, key=lambda row: (row[2], self._facts.reader_names[row[4]])):
                if row[5] not in not_judged:
                    found.setdefault((row[5], row[6]), row)
            if len(found) > 1:
                names = self._facts.queue_names
                order = sorted(found, key=lambda one: (names[one[0]], one[1]))
                where = _some([self._facts.queue_text(*one) for one in order])
                text = f"it is at {len(found)} places, sent {len(asks)} x: {where}"
                places = [row[3] for row in found.values()][:_AT_MOST]
                places += [row[3] for row in sorted(asks, key=itemgetter(2))[:_AT_MOST]]
                self._findings.add(At.ONCE, key, message, text, places)
                return True
        if len(logs) > 1:
            records = {row[4]: row[2] for row in logs if row[3] in (*_IN_QUEUE, LOG_HALF) and row[5] not in not_judged}
            if len(records) > 1:
                text = f"it is {len(records)} times in the log: {_some([f'at {one}' for one in sorted(records)])}"
                self._findings.add(At.ONCE, key, message, text, [records[one] for one in sorted(records)])
                return True
        return False

    # --- messages of transactions ---------------------------------------------------------------------------------

    def _sum_up(
        self, key: str, message: str, asks: list[Row], first: Row | None, listed: Row | None, seen: Sightings,
        logs: list[Row], *, several: bool,
    ) -> None:  # fmt: skip
        index = delay = 0
        topic = sharding_key = ""
        asked_us = ok_us = FAR
        asked_place = ok_place = 0
        ok_offset = -1
        queues: tuple[int, ...] = ()
        settled: tuple[Any, ...] = ()
        may_exist = False
        for row in asks:
            outcome = row[6]
            if row[11] not in queues:
                queues += (row[11],)
            if outcome != REFUSED:
                may_exist = True
            if outcome == OK:
                if ok_offset >= 0 and row[15] not in (-1, ok_offset):
                    self._two_answers(key, message, ok_us, ok_place, row)
                if row[4] < ok_us:
                    ok_us, ok_place, ok_offset = row[4], row[5], row[15]
            elif outcome == SETTLED and row[19] is not None:
                settled += ((row[19], row[4], row[5], row[20]),)
        if first is not None:
            _, _, asked_us, asked_place, _, _, _, _, _, index, topic, _, _, sharding_key, delay, *_ = first
        if seen.us < FAR and not topic:
            topic = self._facts.queue_names[seen.queue][0]
        self._transactions.add(
            (key, SUMMARY, message, index, topic, asked_us, asked_place, queues, ok_us, ok_place, ok_offset, settled,
             may_exist, 0 if listed is None else listed[2], seen.us, seen.place, seen.queue, seen.at,
             seen.readers, seen.store_time, tuple([row[4] for row in logs]), logs[0][2] if logs else 0, sharding_key, delay, several)
        )  # fmt: skip
        if ok_offset >= 0:
            self._places.add(LOG_QUEUE, ok_offset, message, asked_us, ok_us, -1, asked_place, ok_place, key)

    def _two_answers(self, key: str, message: str, ok_us: int, ok_place: int, row: Row) -> None:
        """The same half was acknowledged at two log offsets."""
        restart = self._facts.restarted_between(*sorted((ok_us, row[4])))
        where = "another log offset after the broker restarted" if restart else "two log offsets"
        check = At.DURABLE_RESTART if restart else At.ONCE
        self._findings.add(check, key, message, f"it was acknowledged at {where}", (ok_place, row[5]))

    # --- messages of an outbox ------------------------------------------------------------------------------------

    def _of_outbox(
        self, message: str, written: Row, asks: list[Row], listed: Row | None, seens: list[Row], logs: list[Row],
        decisions: list[Row],
    ) -> None:  # fmt: skip
        """``asks``: it was sent as a half message before, and went to the outbox since the broker did not take it."""
        facts = self._facts
        group, tx, topic, sharding_key, delay = written[7], written[8], written[10], written[13], written[14]
        key = tx_key(group, tx)
        if asks:
            self._examined[At.FALLBACK] += 1
            first = min(asks, key=_time_and_place)
            halves = {row[8] for row in asks}
            seen = self._sightings([row for row in seens if row[10] in halves])
            logs = [row for row in logs if row[9] in halves]
            self._sum_up(tx_key(first[7], first[8]), message, asks, first, None, seen, logs, several=False)
            seens = [row for row in seens if row[10] not in halves]
        seens = [row for row in seens if row[5] not in facts.not_judged]
        seen = self._sightings(seens)
        named, confirmed_us, given_up = self._decided(key, message, written, seen, decisions)
        if message in facts.set_aside:
            given_up = True
            if sharding_key:
                self.stopped_keys.add((group, sharding_key))
        if seens:
            self._examined[At.OUTBOX_PHANTOM] += 1
            if seen.us < written[2]:
                text = "it was seen before anybody wrote it"
                self._findings.add(At.OUTBOX_PHANTOM, key, message, text, (seen.place, written[3]))
            self._same_body(key, message, [written], seens, [])
            if group in facts.at_least_once:
                self._findings.duplicates += len({(row[5], row[6]) for row in seens}) - 1
            else:
                self._examined[At.ONCE] += 1
                named = self._one_place(key, message, [written], seens, []) or named
            named = not self._as_sent(key, message, [written], seens) or named
        at = min((row[6] for row in seens if row[5] == seen.queue), default=-1)
        self._transactions.add(
            WrittenMessage(
                key, ROW, message, topic, written[2], written[3], sharding_key, delay, confirmed_us, given_up, listed is not None,
                seen.us, seen.place, seen.queue, at, seen.readers, seen.store_time, named,
            )
        )  # fmt: skip

    def _decided(
        self, key: str, message: str, written: Row, seen: Sightings, decisions: list[Row]
    ) -> tuple[bool, int, bool]:
        """What was decided about this message alone: whether it was seen against that, which is reported; since when it was known to be
        confirmed (-1: it was not held); and whether it need not be published."""
        held = written[6] == HELD
        confirmed_us = FAR if held else -1
        requested_us, places, withdrawn, given_up = FAR, [written[3], seen.place], False, False
        for _, _, us, place, verdict, by, answered_us, outcome in decisions:
            places.append(place)
            if outcome == REFUSED:
                continue
            if verdict == "COMMITTED":
                requested_us = min(requested_us, us)
                if outcome == OK:
                    confirmed_us = min(confirmed_us, answered_us)
            else:
                given_up = True
                withdrawn = withdrawn or (outcome == OK and by == "application")
        named = held and seen.us < FAR and (withdrawn or seen.us < requested_us)
        if named:
            text = f"it was seen, but {'it was withdrawn' if withdrawn else 'nobody had confirmed it'}"
            self._findings.add(At.OUTBOX_PHANTOM, key, message, text, places)
        return named, confirmed_us, given_up

    # --- plain messages -------------------------------------------------------------------------------------------

    def _plain(self, message: str, asks: list[Row], first: Row, seen: Sightings, logs: list[Row]) -> None:
        facts = self._facts
        asked_us, asked_place, topic, sharding_key, delay = first[2], first[3], first[10], first[13], first[14]
        oks = sorted((row for row in asks if row[6] == OK), key=itemgetter(4, 5))
        ok_us, ok_place, ok_offset = (oks[0][4], oks[0][5], oks[0][15]) if oks else (FAR, 0, -1)
        queue, at = seen.queue, seen.at
        if delay and seen.us < FAR:
            due_us = min(row[2] + row[14] * 1_000 for row in asks)
            check_due(facts, self._findings, "", message, due_us, seen.us, (asked_place, seen.place))
        if queue < 0:
            queue, at = next(((row[5], row[6]) for row in logs if row[3] in _IN_QUEUE and row[6] >= 0), (-1, -1))
        gone = self._elsewhere(message, seen, logs) or (not delay and self._missed_in_log(message, seen, logs))
        if oks and not gone and not facts.acknowledgements_void:
            acked = [
                (facts.queue_number(row[16] or topic, row[17]), row[18], row) for row in oks if row[17] >= 0 <= row[18]
            ]
            gone = (
                self._moved(message, acked, queue, at, seen)
                or (len(acked) > 1 and self._two_log_offsets(message, acked))
                or self._left_the_log(message, ok_offset, ok_place, logs)
                or (not delay and seen.us == FAR and self._missed(message, asks, topic, oks[0], acked))
            )
            if queue < 0 and acked:
                queue, at = acked[0][:2]
        if at >= 0 and not delay and not gone and queue not in facts.not_judged:
            self._places.add(
                queue, at, message, asked_us, min(ok_us, seen.us), -1, asked_place,
                ok_place if ok_us <= seen.us else seen.place, "", sharding_key, seen.readers, seen.store_time, seen.us, seen.place,
            )  # fmt: skip
        if ok_offset >= 0 and not gone:
            self._places.add(LOG_QUEUE, ok_offset, message, asked_us, ok_us, -1, asked_place, ok_place, "")

    def _moved(self, message: str, acked: list[tuple[int, int, Row]], queue: int, at: int, seen: Sightings) -> bool:
        """Whether it was acknowledged at one place, and found (or acknowledged again) at another."""
        facts = self._facts
        for acked_queue, acked_at, row in acked:
            if at >= 0:
                then_queue, then_at, then_us, then_place = queue, at, seen.us, seen.place
            else:
                then_queue, then_at, then_us, then_place = *acked[-1][:2], acked[-1][2][4], acked[-1][2][5]
            restart = facts.restarted_between(row[4], then_us)
            self._examined[At.DURABLE_RESTART] += restart
            if (acked_queue, acked_at) == (then_queue, then_at):
                continue
            where = f"{facts.queue_text(acked_queue, acked_at)}, but was at {facts.queue_text(then_queue, then_at)}"
            text = f"it was acknowledged at {where}{' after the broker restarted' * restart}"
            self._findings.add(At.DURABLE_RESTART if restart else At.ONCE, "", message, text, (row[5], then_place))
            return True
        return False

    def _two_log_offsets(self, message: str, acked: list[tuple[int, int, Row]]) -> bool:
        """Whether it was acknowledged at one queue offset with two log offsets."""
        facts = self._facts
        first: dict[tuple[int, int], Row] = {}
        for queue, at, row in acked:
            if row[15] < 0:
                continue
            one = first.setdefault((queue, at), row)
            if one[15] != row[15]:
                restart = facts.restarted_between(one[4], row[4])
                text = f"it was acknowledged at {facts.queue_text(queue, at)} and log offset {one[15]}, and then at log offset {row[15]}"
                text += " after the broker restarted" if restart else ""
                self._findings.add(At.DURABLE_RESTART if restart else At.ONCE, "", message, text, (one[5], row[5]))
                return True
        return False

    def _left_the_log(self, message: str, ok_offset: int, ok_place: int, logs: list[Row]) -> bool:
        if ok_offset < 0 or not self._facts.log_must_have(ok_offset):
            return False
        self._examined[At.DURABLE_LOG] += 1
        if any(row[4] == ok_offset for row in logs):
            return False
        text = f"it was acknowledged at log offset {ok_offset}; the log has {records_at([row[4] for row in logs])}"
        self._findings.add(At.DURABLE_LOG, "", message, text, [ok_place, *(row[2] for row in logs)])
        return True

    def _missed(self, message: str, asks: list[Row], topic: str, ok: Row, acked: list[tuple[int, int, Row]]) -> bool:
        """Whether it was acknowledged, but not received by a reader that read everything."""
        facts = self._facts
        if acked:
            read = facts.place_was_read(acked[0][0], acked[0][1], ok[4])
        else:
            read = facts.topic_was_read(topic, tuple({row[11] for row in asks}), ok[4])
        if read is None:
            return False
        reader = facts.reader_names[read.reader]
        restart = facts.restarted_between(ok[4], read.since_us)
        check = At.DURABLE_RESTART if restart else At.MISSED
        self._examined[check] += 1
        since = "the broker restarted, and " if restart else "and "
        text = f"it was acknowledged, {since}{reader}, which read everything, never received it"
        self._findings.add(check, "", message, text, (ok[3], ok[5], read.place))
        return True


def _is_as_sent(ask: Row, seen: Row, topic: str, queue: int) -> bool:
    """Fields that reader or sender left out are not compared. RocketMQ's clients use the message id as transaction id."""
    return (
        ask[10] == topic
        and ask[11] in (-1, queue)
        # A relay publishes in transactions of its own.
        and (ask[1] == WRITTEN or (seen[10] in ("", ask[8], ask[0]) and (not seen[11] or seen[11] == ask[9])))
        and (not ask[13] or not seen[12] or seen[12] == ask[13])
    )


def _what(topic: str, queue: int, tx: str, index: int, key: str) -> str:
    """Describes the place of a message, and its transaction and key."""
    parts = [topic if queue < 0 else f"{topic} queue {queue}"]
    if tx:
        parts.append(f"as message {index} of transaction {tx}")
    if key:
        parts.append(f"with sharding key {key!r}")
    return " ".join(parts)


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _AT_MOST} more" if len(texts) > _AT_MOST else ""
    return ", ".join(texts[:_AT_MOST]) + more


def records_at(offsets: Sequence[int]) -> str:
    """Where the log has a message: for "the log has ..."."""
    return "it at " + _some([str(offset) for offset in offsets]) if offsets else "no record of it"
