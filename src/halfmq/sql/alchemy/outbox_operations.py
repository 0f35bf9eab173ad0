"""What people do with an outbox: look at it, retry or skip what its relays have set aside, and prune what is over.

A change of rows first locks their lanes, as relays do, so that no relay decides about the same rows at the same time: without the lock a
relay could put a row behind one that is being skipped, and nothing would free it again. A row in the recorded batch of its lane may be
published at this moment, and is left alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, or_, select, update

from halfmq.relay.rows import Figures
from halfmq.sql.alchemy.dialects import now_ms
from halfmq.sql.alchemy.outbox_rows import RowStatements, Settings
from halfmq.sql.alchemy.outbox_tables import OutboxTables, none_yet
from halfmq.sql.rules.marker import PRUNE_ROWS_MAX
from halfmq.sql.rules.outbox import (
    ENDED,
    LANES,
    STOPS_ITS_KEY,
    UNPUBLISHED,
    Delivery,
    Outcome,
    decode_seqs,
    lane_of,
    skip_reason,
)

#: Rows of one transaction of ``retry`` and ``skip``.
PAGE: Final = 1_000

#: States from which an operator may skip a row that is named by its id.
_SKIPPABLE: Final = (*UNPUBLISHED, Delivery.SET_ASIDE, Delivery.HELD)


class Which(NamedTuple):
    """One message, what stops one order key, or, with both empty, everything that is set aside."""

    message_id: str = ""
    order_key: str = ""


class HeldLane(NamedTuple):
    """A lane that a relay holds, or has left with a recorded batch."""

    lane: int
    #: Host and process of the relay that holds it, or held it last.
    holder: str
    #: Seconds until its lease ends; negative: it has ended.
    lease_s: float
    #: Messages of the recorded batch.
    messages: int


class Status(NamedTuple):
    """An outbox for people."""

    figures: Figures
    lanes: list[HeldLane]


class ListedRow(NamedTuple):
    """A row without its body."""

    message_id: str
    delivery: Delivery
    topic: str
    order_key: str
    tx_id: str
    attempts: int
    age_s: float
    #: Seconds until it is due; None: it waits for no time.
    due_in_s: float | None
    reason: str


class Changed(NamedTuple):
    """What one transaction of ``retry`` or ``skip`` did."""

    message_ids: list[str]
    #: Message id -> why it was left alone.
    refused: dict[str, str]
    #: For the next call; 0: that was all.
    after_seq: int


class OutboxOperations:
    """The statements, each call in the transaction of its connection, at READ COMMITTED."""

    def __init__(self, tables: OutboxTables) -> None:
        self._tables = tables
        self._rows = tables.rows
        self._lanes = tables.lanes
        #: The locks and the waking of rows are those of a relay.
        self._statements = RowStatements(tables, Settings("", 0))

    # --- looking ---------------------------------------------------------------------------------------------------

    def status(self, connection: Connection) -> Status:
        """Rows by state, age, and who holds which lane."""
        lanes = self._lanes.c
        left_ms = lanes.lease_until_ms - now_ms()
        found = connection.execute(
            select(lanes.lane, lanes.holder, left_ms, lanes.batch_seqs)
            .where(or_(lanes.lease_until_ms > now_ms(), lanes.batch_id != ""))
            .order_by(lanes.lane)
        )
        held = [
            HeldLane(lane, holder, int(lease_ms) / 1000, len(decode_seqs(seqs)))
            for lane, holder, lease_ms, seqs in found
        ]
        return Status(self._statements.figures(connection), held)

    def listed(self, connection: Connection, states: Sequence[Delivery], most: int) -> list[ListedRow]:
        """The oldest rows in these states."""
        rows = self._rows.c
        found = connection.execute(
            select(
                rows.message_id, rows.delivery, rows.topic, rows.order_key, rows.tx_id, rows.attempts,
                now_ms() - rows.written_at_ms, rows.due_at_ms, rows.due_at_ms - now_ms(), rows.reason,
            ).where(rows.delivery.in_(states)).order_by(rows.seq).limit(most)
        )  # fmt: skip
        return [
            ListedRow(
                message_id, Delivery(delivery), topic, key, tx_id, attempts, max(0, int(age_ms)) / 1000,
                int(due_in_ms) / 1000 if due_at_ms and delivery not in ENDED else None, reason,
            )
            for message_id, delivery, topic, key, tx_id, attempts, age_ms, due_at_ms, due_in_ms, reason in found
        ]  # fmt: skip

    def count(self, connection: Connection, which: Which) -> int:
        """Rows to which a change of ``which`` applies."""
        where = self._chosen(which)
        return connection.scalar(select(func.count()).select_from(self._rows).where(where)) or 0

    # --- changing --------------------------------------------------------------------------------------------------

    def retry(self, connection: Connection, which: Which, after_seq: int = 0) -> Changed:
        """Let rows that were refused or set aside be published again, with all their attempts, and free their keys. A key that nothing
        stops any more, because somebody has deleted the row that did, is freed as well.

        At most ``PAGE`` rows, after ``after_seq``: commit, and go on.
        """
        values = {"delivery": Delivery.WAITING, "attempts": 0, "due_at_ms": 0, "reason": ""}
        changed = self._change(connection, which, after_seq, STOPS_ITS_KEY, lambda _: values)
        if which.order_key and not (changed.message_ids or changed.refused):
            return self._free(connection, which.order_key)
        return changed

    def _free(self, connection: Connection, order_key: str) -> Changed:
        rows, lane = self._rows.c, lane_of(order_key, "")
        self._locked(connection, {lane})
        behind = rows.delivery == Delivery.BEHIND, rows.lane == lane, rows.order_key == order_key
        freed = list(connection.scalars(select(rows.message_id).where(*behind).order_by(rows.seq)))
        if freed:
            self._statements.free(connection, lane, {order_key})
            self._wake(connection)
        return Changed(freed, {}, 0)

    def skip(self, connection: Connection, which: Which, operator: str, reason: str, after_seq: int = 0) -> Changed:
        """Never publish rows that were refused or set aside, and free their keys; a row that is named by its id also in other states.

        At most ``PAGE`` rows, after ``after_seq``: commit, and go on.
        """
        return self._change(
            connection,
            which,
            after_seq,
            _SKIPPABLE,
            lambda before: {
                "delivery": Delivery.SKIPPED,
                "due_at_ms": now_ms(),
                "reason": skip_reason(operator, reason, before),
            },
        )

    def _chosen(self, which: Which) -> ColumnElement[bool]:
        rows = self._rows.c
        if which.message_id:
            return rows.message_id == which.message_id
        if which.order_key:
            lane = lane_of(which.order_key, "")
            return and_(rows.delivery.in_(STOPS_ITS_KEY), rows.lane == lane, rows.order_key == which.order_key)
        return rows.delivery == Delivery.SET_ASIDE

    def _change(
        self,
        connection: Connection,
        which: Which,
        after_seq: int,
        changeable: Sequence[Delivery],
        values_of: Any,
    ) -> Changed:
        rows = self._rows
        self._statements.begin_writing(connection)
        page = (
            select(rows.c.seq, rows.c.lane, rows.c.message_id, rows.c.order_key, rows.c.delivery, rows.c.reason)
            .where(self._chosen(which), rows.c.seq > after_seq)
            .order_by(rows.c.seq)
            .limit(PAGE)
        )
        lanes = {row.lane for row in connection.execute(page)}
        in_batch = self._locked(connection, lanes)
        # Again, since a relay may have finished with a lane before it was locked.
        found = connection.execute(page).all()
        changed: list[Any] = []
        refused: dict[str, str] = {}
        for row in found:
            if row.lane not in lanes:
                continue
            if row.seq in in_batch:
                refused[row.message_id] = f"it is being published by {in_batch[row.seq]}"
            elif row.delivery not in changeable:
                refused[row.message_id] = f"its state is {Delivery(row.delivery).shown}"
            else:
                changed.append(row)
        for row in changed:
            connection.execute(update(rows).where(rows.c.seq == row.seq).values(values_of(row.reason)))
        for lane in sorted({row.lane for row in changed}):
            self._statements.free(connection, lane, {row.order_key for row in changed if row.lane == lane})
        if changed:
            self._wake(connection)
        return Changed([row.message_id for row in changed], refused, found[-1].seq if len(found) == PAGE else 0)

    def _wake(self, connection: Connection) -> None:
        """Relays, with the commit."""
        connection.execute(select(none_yet(self._tables.name)))

    def _locked(self, connection: Connection, lanes: set[int]) -> Mapping[int, str]:
        """Lock the lanes, and return the rows of their recorded batches with who recorded them."""
        table = self._lanes
        in_batch: dict[int, str] = {}
        found = connection.execute(
            select(table.c.holder, table.c.batch_seqs)
            .where(table.c.lane.in_(lanes))
            .order_by(table.c.lane)  # as everybody who locks several
            .with_for_update()
        )
        for holder, seqs in found:
            in_batch |= dict.fromkeys(decode_seqs(seqs), holder)
        return in_batch

    # --- the application's -----------------------------------------------------------------------------------------

    def decide_held(self, connection: Connection, message_id: str, *, is_confirmed: bool) -> bool:
        """A held row waits from now on, or is never published. False: it is not held."""
        rows = self._rows.c
        values: Mapping[str, Any] = {"delivery": Delivery.SKIPPED, "outcome": Outcome.WITHDRAWN, "due_at_ms": now_ms()}
        if is_confirmed:
            values = {"delivery": Delivery.WAITING, "due_at_ms": 0, "attempts": none_yet(self._tables.name)}
        decided = update(self._rows).where(rows.message_id == message_id, rows.delivery == Delivery.HELD).values(values)
        return connection.execute(decided).rowcount == 1

    def prune(self, connection: Connection, older_than_ms: int) -> int:
        """Delete rows that were published or skipped so long ago, at most ``PRUNE_ROWS_MAX``. Returns the number deleted."""
        rows = self._rows.c
        old = connection.scalars(
            select(rows.seq)
            # The lanes are named so that each is a range of the index, however many younger rows there are.
            .where(rows.delivery.in_(ENDED), rows.lane.in_(range(LANES)), rows.due_at_ms < now_ms() - older_than_ms)
            .limit(PRUNE_ROWS_MAX)
        ).all()
        if old:
            connection.execute(delete(self._rows).where(rows.seq.in_(bindparam("seqs", expanding=True))), {"seqs": old})
        return len(old)
