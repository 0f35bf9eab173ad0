"""``with mq.atomic() as tx``: ``transaction.atomic`` whose messages become visible if and only if it commits."""

from contextlib import AbstractContextManager
from typing import Any, Unpack

from django.db import DEFAULT_DB_ALIAS

from halfmq.client.arguments import PrepareOptions, refuse_misspelt
from halfmq.django.configuration import configuration
from halfmq.django.markers import markers_of
from halfmq.django.process import client
from halfmq.errors import UsageError
from halfmq.sql.rules.block import SqlTransaction


def atomic(
    using: str | None = None, *, durable: bool = True, **options: Unpack[PrepareOptions]
) -> AbstractContextManager[SqlTransaction]:
    """``transaction.atomic(using, durable=True)`` with messages: ``with mq.atomic() as tx: tx.send(topic, body)``.

    The half messages are sent at the end of the block, then the database commits, and then the messages become visible. An exception in the
    block rolls back, and nothing was sent. Code that runs in ``on_commit`` runs after the verdict.

    Within another ``atomic`` (ATOMIC_REQUESTS) it needs ``durable=False``; that of a ``TestCase`` does not count, as for Django's own
    ``durable=True``. The marker is then in the outer transaction, the halves are prepared at the end of this block, and nothing is visible
    before the outermost block commits. If that rolls back, or goes back to a savepoint from before this block, the broker finds out by its
    check.

    ``options``: as for ``Client.transaction``: ``query_id``, ``timeout``, seconds, ``advice`` and ``comment``.

    Raises:
        UsageError: it is inside another ``atomic``, and ``durable`` is True; HALFMQ["DATABASES"] does not name the alias, so
            that nobody would answer its checks.
        HalfmqError: at the end of the block, if the broker does not take the messages; rolled back.
        TransactionUnknown: the connection was lost during COMMIT: look for your rows before you repeat it.
    """
    refuse_misspelt(options, atomic)
    alias = using or DEFAULT_DB_ALIAS
    if alias not in (databases := configuration().databases):
        raise UsageError(
            f"nobody answers checks about database {alias!r}: HALFMQ['DATABASES'] names {', '.join(map(repr, databases)) or 'none'}",
            hint=f"add {alias!r}, and run manage.py migrate --database {alias}",
        )
    block: Any = client().transaction(durable, markers=markers_of(alias), checked_elsewhere=True, **options)
    return block
