"""``mq.send_on_commit``: a message as a row of the outbox, in the transaction that is open on Django's connection. ``sql.rules.outbox``
says what the row means; ``manage.py halfmq_relay`` publishes it.
"""

from typing import Any, Unpack

from django.db import DEFAULT_DB_ALIAS
from django.db.models.expressions import RawSQL

from halfmq.client.arguments import MessageOptions, refuse_misspelt
from halfmq.client.outgoing import compose
from halfmq.client.unique_ids import process_ids
from halfmq.django.configuration import configuration
from halfmq.django.database import connection_to
from halfmq.django.marker_rows import wall_ms
from halfmq.django.tables import OUTBOX_TABLE
from halfmq.errors import UsageError
from halfmq.sql.rules.outbox import row_of


def send_on_commit(topic: str, body: object, *, using: str | None = None, **options: Unpack[MessageOptions]) -> str:
    """Add a message to the transaction of ``atomic``, as one row. A relay publishes it if and only if that transaction commits.

    No broker has to be there. The arguments are those of ``Client.send``: ``tag``, ``key``, ``keys``, ``sharding_key``, ``delay`` (seconds)
    and ``properties``. Messages with the same ``sharding_key`` are published in the order in which your transactions commit, if these wait
    for each other, such as by ``select_for_update`` on the row that the key names. In a block that is rolled back to its savepoint the
    message goes with it.

    Outside of ``atomic`` it is refused, as ``select_for_update`` is: there Django commits each statement by itself, so that a process that
    dies between the business row and this one has lost the message. A ``TestCase`` does not count as ``atomic``, so that a test sees what
    production does.

    Returns the message id, which is the same in every delivery.

    Raises:
        UsageError, InvalidName, MessageTooLarge: an argument is wrong, there is no transaction, or nobody relays the outbox of ``using``,
            which is not in ``HALFMQ["DATABASES"]``. Nothing was written.
        django.db.Error: the database's own; the transaction is as after any failed statement.
    """
    refuse_misspelt(options, send_on_commit)
    using = using or DEFAULT_DB_ALIAS
    message = compose(topic, body, **options)
    if using not in (known := configuration().databases):
        raise UsageError(
            f"no relay publishes the outbox of database {using!r}", hint=f"HALFMQ['DATABASES'] has {', '.join(known)}"
        )
    connection = connection_to(using)
    if not _is_in_transaction(connection):
        raise UsageError(
            "send_on_commit is outside of a transaction, where each statement is committed by itself",
            hint="with transaction.atomic(): write your rows, then send_on_commit",
        )
    ids = process_ids()
    message = message._replace(message_id=ids.message_id())
    row = row_of(message, tx_id=_transaction_id(connection), now_ms=wall_ms())

    from halfmq.django.models import OutboxMessage

    OutboxMessage(**row, attempts=_none_yet(connection)).save(using=using, force_insert=True)
    return message.message_id


def _is_in_transaction(connection: Any) -> bool:
    """Whether a transaction of the application is open; that of a TestCase is not one, as for ``atomic(durable=True)``."""
    if not connection.in_atomic_block:
        return not connection.get_autocommit()
    return not (connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase)


def _none_yet(connection: Any) -> Any:
    """0, the number of attempts of a new row; on PostgreSQL it also wakes the relays when the transaction commits."""
    if connection.vendor != "postgresql":
        return 0
    return RawSQL("(SELECT 0 FROM pg_notify(%s, ''))", [OUTBOX_TABLE])  # nosec B611


def _transaction_id(connection: Any) -> str:
    """The id of the open transaction, for people: the same in all rows of it. Django has no object that lives as long as a transaction; its
    list of functions for ``on_commit`` is another one after each end, and after a rollback to a savepoint, which gives an id more."""
    functions = connection.run_on_commit
    known = getattr(connection, "_halfmq_transaction", None)
    if known is None or known[0] is not functions:
        known = connection._halfmq_transaction = functions, process_ids().transaction_id()
    return str(known[1])
