"""What a relay does in the database of an outbox, each call in one transaction.

A relay holds a lane by a lease with a token. The token is a random one of each holder, and every statement that changes something names it,
so that a relay whose lease has ended (it was paused, or cut off) changes nothing any more: its transaction finds no row and is rolled back.
The time of leases is the database's.

Before messages are published their numbers are recorded in the lane, under an id that is never used again. So the next holder knows what
the last one may have published: see ``halfmq.relay.publisher``.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from halfmq.errors import UnsupportedCombination
from halfmq.relay.publisher import Batch, OutboxMessage, Published
from halfmq.relay.rows import Figures, Lease, LeaseLost, Work
from halfmq.sql.alchemy.connection_events import SETS_UP
from halfmq.sql.alchemy.declared import require
from halfmq.sql.alchemy.dialects import now_ms, one_that_may_fail
from halfmq.sql.alchemy.outbox_tables import HOLDER_CHARS_MAX, OutboxTables
from halfmq.sql.rules.outbox import (
    AT_A_TIME,
    ATTEMPTS_MAX,
    LANES,
    STOPS_ITS_KEY,
    Delivery,
    after_refusal,
    decode_seqs,
    encode_seqs,
)

#: Databases whose clock and locks a relay knows (``dialects``).
RELAYED: Final = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
#: In one batch, whatever a target would take. Their numbers, at most 20 characters each, are in one column, where MySQL's TEXT has 65,535
#: bytes; and each is a parameter of a statement, of which SQLite takes 32,766.
MESSAGES_MAX: Final = 3_000
#: Bytes of bodies in one batch, unless a single message has more.
BATCH_BYTES_MAX: Final = 4 << 20


#: How often a transaction looks for rows that wait for nothing, before it commits what it has put behind others: each look passes what the
#: ones before it have moved, so that a backlog of a million rows of one key would be a transaction of minutes.
_PAGES_MAX: Final = 20


class Settings(NamedTuple):
    """What a relay may choose."""

    #: Who holds a lane, for people: host and process.
    holder: str
    lease_ms: int
    #: Of a batch.
    messages_max: int = 500
    attempts_max: int = ATTEMPTS_MAX
    #: A row that was refused ``attempts_max`` times is skipped, and no longer stops its key.
    skips: bool = False
    #: Keep the rows of published messages.
    archives: bool = False


class _State(NamedTuple):
    """What a lane has beside rows that wait."""

    one_by_one_to_seq: int
    #: Rows that are due, after they were refused, and delayed ones.
    retries: bool
    scheduled: bool
    #: Rows for which others may wait.
    stops: bool


class octets(FunctionElement[int]):  # noqa: N801 - used like a function
    """Bytes of a body."""

    type = Integer()
    inherit_cache = True


@compiles(octets)
def _octets(element: octets, compiler: Any, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(octets, "sqlite")
def _length(element: octets, compiler: Any, **options: Any) -> str:
    return f"length({compiler.process(element.clauses, **options)})"  # before 3.43 it has no other


#: A lane that nobody holds.
_RELEASED: Final[Mapping[str, Any]] = MappingProxyType({"lease_until_ms": 0, "token": ""})  # nosec B105 # nobody's token


class RowStatements:
    """The statements of one relay on one outbox."""

    def __init__(self, tables: OutboxTables, settings: Settings) -> None:
        self._rows = tables.rows
        self._lanes = tables.lanes
        self._settings = settings
        rows, lanes = tables.rows.c, tables.lanes.c
        # Those of every batch are built once: to build one costs SQLAlchemy as much as to execute it.
        self._held = update(tables.lanes).where(
            lanes.lane == bindparam("of_lane"), lanes.token == bindparam("of_token")
        )
        self._held_longer = self._held.values(lease_until_ms=now_ms() + settings.lease_ms)
        is_due = rows.due_at_ms <= now_ms()
        self._state = select(
            lanes.one_by_one_to_seq,
            self._exists(Delivery.RETRYING, lanes.lane, is_due),
            self._exists(Delivery.SCHEDULED, lanes.lane, is_due),
            or_(*[self._exists(delivery, lanes.lane) for delivery in STOPS_ITS_KEY]),
        ).where(lanes.lane == bindparam("lane"))
        # Without bodies that are large: the others have together no more bytes than a batch.
        small_bytes = BATCH_BYTES_MAX // max(1, settings.messages_max)
        in_turn = (
            select(*self._message(case((octets(rows.body) <= small_bytes, rows.body))))
            .where(rows.lane == bindparam("lane"))
            .order_by(rows.due_at_ms, rows.seq)
            .limit(bindparam("limit", type_=Integer))
        )
        self._retried = in_turn.where(rows.delivery == Delivery.RETRYING, is_due)
        self._scheduled = in_turn.where(rows.delivery == Delivery.SCHEDULED, is_due)
        self._waiting = in_turn.where(rows.delivery == Delivery.WAITING)

    def _message(self, body: ColumnElement[bytes]) -> list[ColumnElement[Any]]:
        """The columns of an ``OutboxMessage``."""
        rows = self._rows.c
        return [
            rows.seq, rows.message_id, rows.topic, body, rows.properties, rows.order_key, rows.tx_id,
            rows.written_at_ms,
        ]  # fmt: skip

    def _exists(self, delivery: Delivery, lane: ColumnElement[int], *where: ColumnElement[bool]) -> ColumnElement[bool]:
        rows = self._rows.c
        return exists().where(rows.delivery == delivery, rows.lane == lane, *where)

    # --- lanes -----------------------------------------------------------------------------------------------------

    def establish(self, connection: Connection) -> None:
        """Insert the lanes that are missing.

        Raises:
            UsageError: the tables do not exist, or are from an earlier release.
            UnsupportedCombination: a relay does not know this database.
        """
        if connection.dialect.name not in RELAYED:
            raise UnsupportedCombination(
                f"a relay does not know {connection.dialect.name}", hint=f"it knows {', '.join(sorted(RELAYED))}"
            )
        lanes = self._lanes
        require(connection, (self._rows, lanes))
        known = set(connection.scalars(select(lanes.c.lane)))
        for lane in range(LANES):
            if lane not in known:
                free = {"token": "", "holder": "", "lease_until_ms": 0, "batch_id": "", "batch_seqs": ""}  # nosec B105 # as above
                try:
                    with one_that_may_fail(connection):
                        row = insert(lanes).values(lane=lane, one_by_one_to_seq=0, **free)
                        connection.execute(row, execution_options=SETS_UP)
                except IntegrityError:
                    pass  # another relay was faster

    def free_lanes(self, connection: Connection) -> list[int]:
        """Lanes that nobody holds, and that have something to do."""
        lanes = self._lanes.c
        has_work = or_(lanes.batch_id != "", self._has_due(lanes.lane))
        return list(connection.scalars(select(lanes.lane).where(lanes.lease_until_ms < now_ms(), has_work)))

    def _has_due(self, lane: ColumnElement[int]) -> ColumnElement[bool]:
        is_due = self._rows.c.due_at_ms <= now_ms()
        due = [self._exists(delivery, lane, is_due) for delivery in AT_A_TIME]
        return or_(self._exists(Delivery.WAITING, lane), *due)

    def claim(self, connection: Connection, lane: int) -> Work | None:
        """Hold ``lane``, and return its recorded batch, or record the next one. None: another relay was faster, or nothing is due."""
        lanes = self._lanes
        self.begin_writing(connection)
        # Where two relays want it at once, the second does not wait for the first.
        found = connection.execute(
            select(lanes.c.batch_id, lanes.c.batch_seqs)
            .where(lanes.c.lane == lane, lanes.c.lease_until_ms < now_ms())
            .with_for_update(skip_locked=True)
        ).first()
        if found is None:
            return None
        lease = Lease(lane, secrets.token_hex(16))
        connection.execute(
            update(lanes)
            .where(lanes.c.lane == lane)
            .values(
                token=lease.token,
                holder=self._settings.holder[:HOLDER_CHARS_MAX],
                lease_until_ms=now_ms() + self._settings.lease_ms,
            )
        )
        if found.batch_id:
            messages = self._messages(connection, decode_seqs(found.batch_seqs))
            return Work(lease, Batch(found.batch_id, messages), True)
        return self._next(connection, lease, 0, self._state_of(connection, lane))

    def begin_writing(self, connection: Connection) -> None:
        """SQLite: a transaction that began with a read cannot always go on to write."""
        if connection.dialect.name == "sqlite":
            connection.execute(update(self._lanes).where(self._lanes.c.lane == -1).values(holder=""))

    def renew(self, connection: Connection, lease: Lease) -> None:
        """Hold the lane longer.

        Raises:
            LeaseLost: somebody else holds it.
        """
        self._change(connection, lease, self._held_longer, {})

    def _change(self, connection: Connection, lease: Lease, held: Update, values: Mapping[str, Any]) -> None:
        changed = connection.execute(held, {"of_lane": lease.lane, "of_token": lease.token, **values}).rowcount
        if changed != 1:
            raise LeaseLost(
                f"lane {lease.lane} is held by another relay", hint="its lease had ended before this one went on"
            )

    # --- batches ---------------------------------------------------------------------------------------------------

    def finish(self, connection: Connection, work: Work, published: Published, *, number: int) -> Work | None:
        """Write down what is known of a batch, and record the lane's next one. ``number``: of the next batch under this lease; 0: release
        the lane. None: it is released.

        While the target is unavailable the batch stays recorded, and the lane is released.

        Raises:
            LeaseLost: somebody else holds the lane. Nothing was changed.
        """
        self.begin_writing(connection)
        lease, batch = work.lease, work.batch
        goes_on = number > 0 and not published.unavailable
        values: dict[str, Any] = {} if goes_on else dict(_RELEASED)
        if not published.unavailable:
            values |= {"batch_id": "", "batch_seqs": ""}
        if published.one_by_one:
            values["one_by_one_to_seq"] = max(message.seq for message in batch.messages)
        # First: it proves the lease, and keeps every other holder out until the end of the transaction.
        self._change(connection, lease, self._held_longer if goes_on else self._held, values)
        state = self._state_of(connection, lease.lane)
        freed = {
            row.order_key for row in self._stopping(connection, lease.lane, state) if row.seq in published.confirmed
        }
        self._remove(connection, published.confirmed)
        freed |= self._refuse(connection, published.refused)
        self.free(connection, lease.lane, freed)
        if not goes_on:
            return None
        if published.refused:
            state = self._state_of(connection, lease.lane)
        return self._next(connection, lease, number, state)

    def _next(self, connection: Connection, lease: Lease, number: int, state: "_State") -> Work | None:
        messages = self._due(connection, lease.lane, state)
        if not messages:
            self._change(connection, lease, self._held, _RELEASED)
            return None
        batch = Batch(f"outbox-{lease.token}-{number}", messages)
        recorded = {"batch_id": batch.id, "batch_seqs": encode_seqs(tuple([message.seq for message in messages]))}
        self._change(connection, lease, self._held, recorded)
        return Work(lease, batch, False)

    def _state_of(self, connection: Connection, lane: int) -> "_State":
        return _State._make(connection.execute(self._state, {"lane": lane}).one())

    def _due(self, connection: Connection, lane: int, state: "_State") -> tuple[OutboxMessage, ...]:
        """The messages of the next batch."""
        most = self._settings.messages_max
        found: list[Any] = []
        if state.retries:
            found += connection.execute(self._retried, {"lane": lane, "limit": most}).all()
        stopped = {row.order_key for row in self._stopping(connection, lane, state)}
        for wanted, exist in ((self._scheduled, state.scheduled), (self._waiting, True)):
            if exist:
                found += self._not_stopped(connection, wanted, lane, most - len(found), stopped)
        messages: Sequence[OutboxMessage] = [OutboxMessage._make(row) for row in found]
        if any(message.body is None for message in messages):
            messages = self._with_large(connection, messages)
        if state.one_by_one_to_seq:
            messages = _until_one_by_one(messages, state.one_by_one_to_seq)
        return tuple(messages)

    def _with_large(self, connection: Connection, messages: Sequence[OutboxMessage]) -> Sequence[OutboxMessage]:
        """As many as fit in one batch, of which some have no body yet."""
        rows = self._rows.c
        large = [message.seq for message in messages if message.body is None]
        sized = select(rows.seq, octets(rows.body)).where(among(connection, rows.seq, large))
        sizes = {seq: int(size) for seq, size in connection.execute(sized)}
        left = BATCH_BYTES_MAX
        first: list[int] = []
        for message in messages:
            left -= len(message.body) if message.seq not in sizes else sizes[message.seq]
            if first and left < 0:
                break
            first.append(message.seq)
        return self._messages(connection, first)

    def _not_stopped(
        self, connection: Connection, wanted: Select[Any], lane: int, most: int, stopped: Collection[str]
    ) -> Sequence[Any]:
        """The first of the ``wanted`` rows, after those that have to wait for a row with their order key are out of the way."""
        for _ in range(_PAGES_MAX if most > 0 else 0):
            found = connection.execute(wanted, {"lane": lane, "limit": most}).all()
            behind = [row.seq for row in found if row.order_key in stopped] if stopped else []
            if not behind:
                return found
            # Each of them is looked at once, not again before every batch.
            chosen = among(connection, self._rows.c.seq, behind)
            connection.execute(update(self._rows).where(chosen).values(delivery=Delivery.BEHIND))
        return []

    def _stopping(self, connection: Connection, lane: int, state: "_State") -> Sequence[Any]:
        """Number and order key of the rows for which others wait."""
        if not state.stops:
            return []
        rows = self._rows.c
        return connection.execute(
            select(rows.seq, rows.order_key).where(
                rows.delivery.in_(STOPS_ITS_KEY),
                rows.lane == lane,
                # To MySQL and MariaDB a key of blanks equals none.
                or_(rows.order_key != "", func.length(rows.order_key) > 0),
            )
        ).all()

    def _messages(self, connection: Connection, seqs: Sequence[int]) -> tuple[OutboxMessage, ...]:
        """The rows, as far as they exist, in the order of ``seqs``."""
        rows = self._rows.c
        wanted = select(*self._message(rows.body)).where(among(connection, rows.seq, seqs))
        found = {row[0]: OutboxMessage._make(row) for row in connection.execute(wanted).all()}
        return tuple([found[seq] for seq in seqs if seq in found])

    def _remove(self, connection: Connection, confirmed: Collection[int]) -> None:
        if not confirmed:
            return
        rows = self._rows
        chosen = among(connection, rows.c.seq, confirmed)
        if self._settings.archives:
            values = {"delivery": Delivery.PUBLISHED, "published_at_ms": now_ms(), "due_at_ms": now_ms()}
            connection.execute(update(rows).where(chosen).values(values))
        else:
            connection.execute(delete(rows).where(chosen))

    def _refuse(self, connection: Connection, refused: Mapping[int, str]) -> set[str]:
        """Returns the order keys of rows that are skipped, so that others no longer wait for them."""
        if not refused:
            return set()
        rows, settings = self._rows, self._settings
        found = connection.execute(
            select(rows.c.seq, rows.c.attempts, rows.c.order_key, now_ms()).where(rows.c.seq.in_(refused))
        ).all()
        skipped = set()
        for seq, attempts, order_key, at_ms in found:
            after = after_refusal(attempts, at_ms, refused[seq], settings.attempts_max)
            if settings.skips and after.delivery is Delivery.SET_ASIDE:
                after = after._replace(delivery=Delivery.SKIPPED, due_at_ms=at_ms)
                skipped.add(order_key)
            connection.execute(update(rows).where(rows.c.seq == seq).values(after._asdict()))
        return skipped

    def free(self, connection: Connection, lane: int, order_keys: Collection[str]) -> None:
        """Let the rows go on that waited for one with their order key."""
        keys = [key for key in order_keys if key]
        if keys:
            rows = self._rows.c
            behind = and_(rows.delivery == Delivery.BEHIND, rows.lane == lane, rows.order_key.in_(keys))
            # A delayed one has been due for long: it is not to be after everything that comes.
            connection.execute(update(self._rows).where(behind).values(delivery=Delivery.WAITING, due_at_ms=0))

    # --- for people ------------------------------------------------------------------------------------------------

    def figures(self, connection: Connection) -> Figures:
        """See ``OutboxRows``."""
        rows = self._rows.c
        counted = connection.execute(select(rows.delivery, func.count()).group_by(rows.delivery))
        by_delivery = {str(delivery): int(number) for delivery, number in counted}
        late = rows.delivery.in_((Delivery.WAITING, Delivery.RETRYING, Delivery.BEHIND))
        written_ms = connection.scalar(select(func.min(rows.written_at_ms)).where(late))
        due = rows.delivery == Delivery.SCHEDULED, rows.due_at_ms <= now_ms()
        scheduled, due_ms, at_ms = connection.execute(
            select(func.count(), func.min(rows.due_at_ms), now_ms()).select_from(self._rows).where(*due)
        ).one()
        oldest_ms = min((one for one in (written_ms, due_ms) if one is not None), default=None)
        wanted = scheduled + sum(by_delivery.get(one, 0) for one in (Delivery.WAITING, Delivery.RETRYING))
        return Figures(
            by_delivery,
            None if oldest_ms is None else max(0, at_ms - oldest_ms) / 1000,
            wanted,
            wanted + by_delivery.get(Delivery.BEHIND, 0),
        )


def among(connection: Connection, column: Column[int], numbers: Collection[int]) -> ColumnElement[bool]:
    """``column IN numbers``. On PostgreSQL with one parameter, as text: hundreds are taken apart three times over, by SQLAlchemy, driver
    and server, and a list once more by the driver.
    """
    if connection.dialect.name == "postgresql":
        return column == any_(cast(literal(f"{{{','.join(map(str, numbers))}}}", Text), ARRAY(BigInteger)))
    return column.in_(numbers)


def _until_one_by_one(messages: Sequence[OutboxMessage], one_by_one_to: int) -> Sequence[OutboxMessage]:
    """The messages before the first one up to ``one_by_one_to``; if that is the first of all, that one alone."""
    for number, message in enumerate(messages):
        if message.seq <= one_by_one_to:
            return messages[: number or 1]
    return messages
