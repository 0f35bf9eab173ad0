"""``Outbox``: messages as rows of the application's database, published later by a relay."""

import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, MetaData, Table, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from halfmq.client import forks
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import UsageError
from halfmq.relay.publisher import Publisher
from halfmq.relay.relay import WORKERS, Relay
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy
from halfmq.sql.alchemy.outbox_relay import LEASE_S, EngineRows
from halfmq.sql.alchemy.outbox_tables import OutboxTables
from halfmq.sql.rules.outbox import ATTEMPTS_MAX, ORDER_KEY_CHARS_MAX, Delivery, Outcome, lane_of


class Outbox:
    """The outbox: two tables, declared once beside your own, in the **same database** as the business rows.

    >>> metadata = MetaData()
    >>> outbox = Outbox(metadata)

    They are ordinary tables in your ``MetaData``: ``create_all`` creates them, and Alembic detects them. The second one is named
    ``<table>_lane``.
    """

    def __init__(self, metadata: MetaData, table: str = "mq_outbox") -> None:
        self._tables = OutboxTables(metadata, table)
        #: A class of its own for each outbox, since SQLAlchemy maps a class to one table.
        self._row_class = type("OutboxRow", (), {})
        registry(metadata=metadata).map_imperatively(self._row_class, self._tables.rows)

    @property
    def table(self) -> Table:
        """The SQLAlchemy table of the messages."""
        return self._tables.rows

    def send(
        self,
        session: Session | AsyncSession | Connection | Any,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Add a message to the transaction of ``session``, as one row. It is published if and only if that transaction commits.

        The arguments are those of ``mq.send``. Messages with the same ``sharding_key`` are published in the order in which your
        transactions commit, if your transactions wait for each other, such as by a lock on the row that the key names. A ``delay`` counts
        from now.

        The row is added to the session, also to an ``AsyncSession`` without ``await``, and written with its next flush; on a
        ``Connection`` it is written at once.

        Returns the message id, which is the same in every delivery.

        Raises:
            UsageError, InvalidName, MessageTooLarge: an argument is wrong. Nothing was added.
        """
        message = compose(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()
        if isinstance(session, AsyncSession):
            session = session.sync_session
        message = message._replace(message_id=self.new_message_id())
        if isinstance(session, Session):
            row = self._row_class()
            for name, value in row_of(message, tx_id="").items():
                setattr(row, name, value)
            session.add(row)
            row.tx_id = _transaction_id(session.get_transaction())
        elif isinstance(session, Connection):
            transaction = session.get_transaction() or session.begin()
            session.execute(insert(self.table).values(row_of(message, tx_id=_transaction_id(transaction))).inline())
        else:
            raise UsageError(
                f"outbox.send needs a Session, AsyncSession or Connection, not {type(session).__name__}",
                hint="outbox.send(session, topic, body)",
            )
        return message.message_id

    def new_message_id(self) -> str:
        """A new message id of this process."""
        return _ids().message_id()

    def write(self, connection: Connection, messages: Sequence[OutgoingMessage]) -> str:
        """Insert messages, which have ids, in the transaction that is open on ``connection``. Returns the transaction id of their rows."""
        tx_id = _ids().transaction_id()
        connection.execute(insert(self.table), [row_of(message, tx_id=tx_id) for message in messages])
        return tx_id

    def relay(
        self,
        sessions: Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any],
        publisher: Publisher,
        *,
        workers: int = WORKERS,
        lease: float = LEASE_S,
        attempts: int = ATTEMPTS_MAX,
        skip: bool = False,
        archive: bool = False,
        poll: float | None = None,
    ) -> Relay:
        """A relay of this outbox to ``publisher``: ``async with outbox.relay(engine, publisher).running(): ...``.

        ``sessions``: the engine, or your sessionmaker. Any number of relays may run at once, in any number of processes.

        ``workers``: batches published at the same time. ``lease``: seconds after which others go on with what a killed relay held.
        ``attempts``: after so many refusals a message is set aside, and messages with its sharding key wait until an operator retries or
        skips it; with ``skip`` it is skipped and they go on. ``archive``: keep the rows of published messages. ``poll``: how often it looks
        for new rows, seconds; by default 0.05, or 1 where the database tells of them (PostgreSQL).

        Raises:
            UsageError: ``sessions`` has no engine.
        """
        rows = EngineRows(
            self._tables,
            self._engine_of(sessions),
            lease_s=lease,
            messages_max=publisher.messages_max,
            attempts_max=attempts,
            skips=skip,
            archives=archive,
        )
        return Relay(rows, publisher, workers=workers, poll_s=poll)

    def _engine_of(self, sessions: Any) -> Engine | AsyncEngine:
        if isinstance(sessions, Engine | AsyncEngine):
            return sessions
        made = sessions() if callable(sessions) else None
        sync = made.sync_session if isinstance(made, AsyncSession) else made
        bind = sync.get_bind(clause=self.table) if isinstance(sync, Session) else None
        if not isinstance(bind, Engine):
            raise UsageError(
                "the relay needs an Engine, or a sessionmaker that is bound to one", hint="outbox.relay(engine, ...)"
            )
        return AsyncEngine(bind) if isinstance(made, AsyncSession) else bind


def row_of(message: OutgoingMessage, *, tx_id: str) -> dict[str, Any]:
    """The row of a message that has an id, without ``seq``.

    Raises:
        UsageError: its sharding key is too long.
    """
    if len(message.sharding_key) > ORDER_KEY_CHARS_MAX:
        raise UsageError(
            f"the sharding key has {len(message.sharding_key)} characters; {ORDER_KEY_CHARS_MAX} are allowed"
        )
    now_ms = time.time_ns() // 1_000_000
    delayed = message.delay_ms > 0
    return {
        "lane": lane_of(message.sharding_key, message.message_id),
        "delivery": Delivery.SCHEDULED.value if delayed else Delivery.WAITING.value,
        "outcome": Outcome.COMMITTED.value,
        "order_key": message.sharding_key,
        "message_id": message.message_id,
        "tx_id": tx_id,
        "topic": message.topic,
        "properties": message.properties,
        "body": message.body,
        "written_at_ms": now_ms,
        "due_at_ms": now_ms + message.delay_ms if delayed else 0,
        "published_at_ms": 0,
        "reason": "",
    }


class _ProcessIds:
    """Message and transaction ids of this process. A forked child has its own."""

    def __init__(self) -> None:
        self.made_in = forks.generation
        self.ids = UniqueIds(SystemClock(), SystemEntropy())


_current: _ProcessIds | None = None
#: The id of each transaction that has written to an outbox.
_TRANSACTIONS: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()


def _ids() -> UniqueIds:
    global _current
    if _current is None or _current.made_in != forks.generation:
        _current = _ProcessIds()
    return _current.ids


def _transaction_id(transaction: Any) -> str:
    known = _TRANSACTIONS.get(transaction)
    if known is None:
        known = _TRANSACTIONS[transaction] = _ids().transaction_id()
    return known
