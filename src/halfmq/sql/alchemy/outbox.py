"""``Outbox``: messages as rows of the application's database, published later by a relay."""

import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self, Unpack

from sqlalchemy import Connection, Engine, MetaData, Table, event, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from halfmq.client.arguments import OutboxRelayOptions, checked_count, checked_seconds, refuse_misspelt
from halfmq.client.async_client import AsyncClient
from halfmq.client.outgoing import OutgoingMessage, checked_topic, compose
from halfmq.client.unique_ids import process_ids
from halfmq.errors import InvalidName, UnsupportedCombination, UsageError
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.publisher import Publisher
from halfmq.relay.relay import WORKERS, Relay
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.sql.alchemy.database import engine_of
from halfmq.sql.alchemy.declared import Declared, declare
from halfmq.sql.alchemy.outbox_operations import OutboxOperations
from halfmq.sql.alchemy.outbox_relay import LEASE_S, EngineRows
from halfmq.sql.alchemy.outbox_rows import RowStatements, Settings
from halfmq.sql.alchemy.outbox_tables import LANES_STORAGE, ROWS_STORAGE, OutboxTables
from halfmq.sql.alchemy.transaction_guard import refuse_autocommit
from halfmq.sql.rules.marker import WhichUndecided
from halfmq.sql.rules.outbox import ATTEMPTS_MAX, checked_any_topic, row_of

#: How often the log says so, seconds.
_SAY_S: Final = 60.0
#: Stands for a topic whose name follows other rules than RocketMQ's while its message is composed.
ANY_TOPIC: Final = "any"
_SEND: Final = "outbox.send"


class Outbox(Declared):
    """The outbox: two tables, declared once beside your own, in the **same database** as the business rows.

    >>> metadata = MetaData()
    >>> outbox = Outbox(metadata)

    They are ordinary tables in your ``MetaData``: ``create_all`` creates them, and Alembic detects them. The second one is named
    ``<table>_lane``.

    ``any_topic``: topics may have names that RocketMQ does not allow, such as ``orders.created``, for a target that does: RabbitMQ (a
    routing key) or Kafka. ``notify``: on PostgreSQL a commit wakes the relays by NOTIFY, for which transactions that send wait for each
    other at COMMIT; False, in all processes: relays poll, which does not slow down thousands of commits a second.
    """

    kind = "outbox"

    def __init__(
        self, metadata: MetaData, table: str = "mq_outbox", *, any_topic: bool = False, notify: bool = True
    ) -> None:
        self._tables = OutboxTables(metadata, table, notifies=notify)
        self._any_topic = any_topic
        #: A class of its own for each outbox, since SQLAlchemy maps a class to one table.
        self._row_class = type("OutboxRow", (), {})
        registry(metadata=metadata).map_imperatively(self._row_class, self._tables.rows)
        event.listen(
            self._row_class, "before_insert", lambda _mapper, connection, _row: refuse_autocommit(connection, _SEND)
        )
        #: How often transactions went to it because the broker did not take their half messages.
        self.fallbacks = LogThrottle(time.monotonic, rest_s=_SAY_S)
        #: For people: see ``halfmq outbox``.
        self.operations = OutboxOperations(self._tables)
        declare(metadata, self)

    @classmethod
    def named(cls, name: str) -> Self:
        """The outbox in the table ``TABLE`` or ``SCHEMA.TABLE``, in a ``MetaData`` of its own."""
        schema, _, table = name.rpartition(".")
        return cls(MetaData(schema=schema or None), table)

    @property
    def table(self) -> Table:
        """The SQLAlchemy table of the messages."""
        return self._tables.rows

    @property
    def tables(self) -> tuple[Table, ...]:
        return self._tables.rows, self._tables.lanes

    @property
    def storage(self) -> Mapping[Table, Mapping[str, str]]:
        return {self._tables.rows: ROWS_STORAGE, self._tables.lanes: LANES_STORAGE}

    def fill(self, connection: Connection) -> None:
        """See ``Declared``: the lanes."""
        RowStatements(self._tables, Settings("", 0)).establish(connection)

    def prune_page(self, connection: Connection, older_than_s: float, undecided: WhichUndecided | None) -> int:
        return self.prune(connection, older_than_s=older_than_s)

    def send(
        self,
        session: Session | AsyncSession | Connection | scoped_session[Any] | async_scoped_session[Any],
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        hold: bool = False,
    ) -> str:
        """Add a message to the transaction of ``session``, as one row. It is published if and only if that transaction commits.

        The arguments are those of ``mq.send``. Messages with the same ``sharding_key`` are published in the order in which your
        transactions commit, if your transactions wait for each other, such as by a lock on the row that the key names. A ``delay`` counts
        from now.

        ``hold``: write it now, and decide later: it is published only after ``confirm``, and never after ``withdraw``. It keeps no other
        message waiting: with a ``sharding_key`` it comes after what was published before its confirmation.

        The row is added to the session, also to an ``AsyncSession`` without ``await``, and written with its next flush; on a
        ``Connection`` it is written at once.

        Returns the message id, which is the same in every delivery.

        Raises:
            UsageError, InvalidName, MessageTooLarge: an argument is wrong. Nothing was added. The flush raises UsageError if the connection
                is in autocommit, so that there is no transaction.
        """
        message = compose(
            ANY_TOPIC if self._any_topic else _rocketmq_topic(topic),
            body,
            tag=tag,
            key=key,
            keys=keys,
            sharding_key=sharding_key,
            delay=delay,
            properties=properties,
        )
        if self._any_topic:
            message = message._replace(topic=checked_any_topic(topic))
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()
        if isinstance(session, AsyncSession):
            session = session.sync_session
        message = message._replace(message_id=self.new_message_id())
        if hold and message.delay_ms:
            raise UnsupportedCombination("a held message has no delay", hint="it waits for outbox.confirm")
        if isinstance(session, Session):
            row = self._row_class()
            for name, value in row_of(message, tx_id="", now_ms=_now_ms(), hold=hold).items():
                setattr(row, name, value)
            session.add(row)
            row.tx_id = _transaction_id(session.get_transaction())
        elif isinstance(session, Connection):
            open_before = session.get_transaction()
            transaction = open_before or session.begin()
            try:
                refuse_autocommit(session, _SEND)  # after an application's own BEGIN
            except UsageError:
                if open_before is None:
                    transaction.rollback()
                raise
            session.execute(
                insert(self.table)
                .values(row_of(message, tx_id=_transaction_id(transaction), now_ms=_now_ms(), hold=hold))
                .inline()
            )
        else:
            raise UsageError(
                f"outbox.send needs a Session, AsyncSession or Connection, not {type(session).__name__}",
                hint="outbox.send(session, topic, body)",
            )
        return message.message_id

    def confirm(self, session: Session | Connection, message_id: str) -> bool:
        """Let a held message be published, if and only if the transaction of ``session`` commits. One UPDATE in it.

        Returns False if it is not held: it is confirmed or withdrawn already, or does not exist. With an ``AsyncSession``:
        ``await session.run_sync(outbox.confirm, message_id)``.
        """
        return self._decide(session, "confirm", message_id, is_confirmed=True)

    def withdraw(self, session: Session | Connection, message_id: str) -> bool:
        """Never publish a held message, if and only if the transaction of ``session`` commits. One UPDATE in it. The row is kept until
        ``prune``.

        Returns False as ``confirm``: a message that was confirmed cannot be taken back.
        """
        return self._decide(session, "withdraw", message_id, is_confirmed=False)

    def _decide(self, session: Session | Connection, what: str, message_id: str, *, is_confirmed: bool) -> bool:
        connection = self._connection_of(session, what)
        refuse_autocommit(connection, f"outbox.{what}")
        return self.operations.decide_held(connection, message_id, is_confirmed=is_confirmed)

    def prune(self, session: Session | Connection, *, older_than_s: float) -> int:
        """Delete rows that were published (``archive=True``) or skipped more than ``older_than_s`` seconds ago, in the transaction of
        ``session``. Returns the number deleted.

        >>> while outbox.prune(session, older_than_s=7 * 86_400):
        ...     session.commit()

        Deletes at most 1,000 rows a call; commit, and repeat until it returns 0. With an ``AsyncSession``:
        ``await session.run_sync(lambda sync: outbox.prune(sync, older_than_s=...))``.

        Raises:
            UsageError: ``older_than_s`` is not a number of seconds.
        """
        older_than_ms = round(checked_seconds(older_than_s, "older_than_s", zero=True) * 1000)
        return self.operations.prune(self._connection_of(session, "prune"), older_than_ms)

    def _connection_of(self, session: Any, what: str) -> Connection:
        if isinstance(session, scoped_session):
            session = session()
        if isinstance(session, Connection):
            return session
        if not isinstance(session, Session):
            raise UsageError(
                f"outbox.{what} needs a Session or a Connection, not {type(session).__name__}",
                hint=f"await session.run_sync(outbox.{what}, ...)",
            )
        session.flush()  # the message may have been added to this session
        return session.connection(bind_arguments={"clause": self.table})

    def new_message_id(self) -> str:
        """A new message id of this process."""
        return process_ids().message_id()

    def write(self, connection: Connection, messages: Sequence[OutgoingMessage]) -> str:
        """Insert messages, which have ids, in the transaction that is open on ``connection``. Returns the transaction id of their rows."""
        tx_id = process_ids().transaction_id()
        connection.execute(insert(self.table), [row_of(message, tx_id=tx_id, now_ms=_now_ms()) for message in messages])
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
            UsageError: ``sessions`` has no engine, or another argument is wrong.
        """
        if any(not hasattr(publisher, name) for name in ("messages_max", "open", "publish", "recover")):
            # Not shown: it may be a URL with a password.
            raise UsageError(
                f"a target is a publisher, not {type(publisher).__name__}", hint="such as RabbitMqPublisher(url)"
            )
        rows = EngineRows(
            self._tables,
            engine_of(sessions, self.table),
            lease_s=checked_seconds(lease, "lease"),
            messages_max=checked_count(publisher.messages_max, "messages_max of the publisher", 1),
            attempts_max=checked_count(attempts, "attempts", 1),
            skips=skip,
            archives=archive,
        )
        poll_s = None if poll is None else checked_seconds(poll, "poll")
        return Relay(rows, publisher, workers=checked_count(workers, "workers", 1), poll_s=poll_s)

    def bind_relay(
        self,
        client: AsyncClient,
        sessions: Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any],
        *,
        to: Publisher | None = None,
        broker: str = "",
        **options: Unpack[OutboxRelayOptions],
    ) -> Relay:
        """The relay behind ``mq.relay(outbox, sessions)``. Without ``to`` it publishes to the broker of ``client``, and ``broker`` is as
        for ``HalfmqPublisher``. ``options``: those of ``relay``.

        Raises:
            UsageError: there is no ``to``, and ``client`` has no group; or as ``relay``.
        """
        refuse_misspelt(options, Outbox.bind_relay)
        if to is None:
            if not client.group:
                raise UsageError("the relay needs a group", hint='AsyncClient(url, group="orders"), or to=')
            to = HalfmqPublisher(
                client.url, group=f"{client.group}-relay", broker=broker, telemetry=client.telemetry or False
            )
        elif broker:
            raise UsageError("broker= is for the client's own broker", hint="leave it out with to=")
        return self.relay(sessions, to, **options)


def _rocketmq_topic(topic: str) -> str:
    try:
        return checked_topic(topic)
    except InvalidName as error:
        raise InvalidName(
            f"topic {topic!r} is not a valid name",
            hint=f"{error.hint}; for others, of RabbitMQ or Kafka: Outbox(metadata, any_topic=True)",
        ) from None


#: The id of each transaction that has written to an outbox.
_TRANSACTIONS: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _transaction_id(transaction: Any) -> str:
    known = _TRANSACTIONS.get(transaction)
    if known is None:
        known = _TRANSACTIONS[transaction] = process_ids().transaction_id()
    return known
