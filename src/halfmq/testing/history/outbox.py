"""Third pass, for messages of an outbox: against the outcome of the local transaction that wrote them.

A relay publishes a row if and only if its transaction committed, so

    the transaction rolled back, or does not list it     it must not be received
    it committed, and everything has settled             it must be, unless it is held and not confirmed, withdrawn, skipped, or set
                                                         aside, or behind one that is set aside
    the outcome is not known                             either

Whether it was received against a decision about this message alone, or twice, is checked in ``messages.py``; its place in the order of
its sharding key in ``order.py``. Half messages of the same transaction must roll back, which ``transactions.py`` checks.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from halfmq.testing.history.facts import FAR, Facts, TransactionFacts, WrittenMessage
from halfmq.testing.history.order import Places
from halfmq.testing.history.report import At, Findings


class OutboxMessages:
    """Checks the messages of outboxes. ``stopped_keys``: group and sharding key of messages that are set aside."""

    def __init__(
        self, facts: Facts, findings: Findings, places: Places, stopped_keys: AbstractSet[tuple[str, str]]
    ) -> None:
        self._facts = facts
        self._findings = findings
        self._examined = findings.examined
        self._places = places
        self._stopped_keys = stopped_keys

    def judge(self, transaction: TransactionFacts, rows: Iterable[WrittenMessage]) -> None:
        """Check the messages of one transaction."""
        for row in rows:
            if not self._phantom(transaction, row):
                known_us = max(transaction.local_us, row.confirmed_us) if transaction.local else FAR
                stopped = row.given_up or (transaction.group, row.sharding_key) in self._stopped_keys
                if not stopped and not row.delay_ms and known_us <= self._facts.settled_us:
                    self._published(transaction, row)
                if row.seen_us < FAR and not row.named and not row.delay_ms:
                    self._give_places(transaction, row, known_us)

    def _phantom(self, transaction: TransactionFacts, row: WrittenMessage) -> bool:
        """Whether it must not be received."""
        if transaction.local == "ROLLED_BACK":
            why = "the database says ROLLED_BACK"
        elif transaction.listing and not row.listed:
            why = "the database does not list it among the messages of its transaction"
        else:
            return False
        if row.seen_us < FAR and not row.named:
            places = (row.place, transaction.local_place, row.seen_place)
            self._findings.add(At.OUTBOX_PHANTOM, row.key, row.message, f"it was seen, but {why}", places)
        return True

    def _published(self, transaction: TransactionFacts, row: WrittenMessage) -> None:
        """It had to be published before the history settled."""
        facts = self._facts
        if facts.acknowledgements_void or row.written_us <= facts.lost_us:
            return  # a power loss may have lost what the target confirmed
        if row.seen_us < FAR:
            self._examined[At.OUTBOX_MISSED] += row.queue in facts.reads
            return
        read = facts.topic_was_read(row.topic, (-1,), facts.settled_us)
        if read is None:
            return
        self._examined[At.OUTBOX_MISSED] += 1
        text = f"its transaction committed, and {facts.reader_names[read.reader]}, which read everything, never received it"
        places = (row.place, transaction.local_place, read.place)
        self._findings.add(At.OUTBOX_MISSED, row.key, row.message, text, places)

    def _give_places(self, transaction: TransactionFacts, row: WrittenMessage, known_us: int) -> None:
        order = (row.readers, row.store_time, row.seen_us, row.seen_place)
        # With a sharding key its commit decides about its order, not when it was written.
        written_us = -1 if row.sharding_key else row.written_us
        self._places.add(
            row.queue, row.at, row.message, written_us, row.seen_us, -1, row.place, row.seen_place, row.key, row.sharding_key, *order
        )  # fmt: skip
        if not row.sharding_key or not self._first_is_known(transaction.group, row.queue):
            return
        known_us = min(known_us, row.seen_us)
        self._places.commits.add(
            (row.queue, row.sharding_key, row.at,
             (row.queue, row.at, row.message, row.written_us, known_us, -1, row.place, transaction.local_place, row.key,
              row.sharding_key, *order))
        )  # fmt: skip

    def _first_is_known(self, group: str, queue: int) -> bool:
        """Whether the first place of a message in ``queue`` is known: it has only one, or the queue was read from its beginning."""
        reads = self._facts.reads.get(queue, ())
        return group not in self._facts.at_least_once or any(read.first == 0 for read in reads)
