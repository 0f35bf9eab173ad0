"""Tracks which sessions are inside an ``mq.transaction`` block, to reject nested blocks that would commit them, and what a block committed.

A commit inside the block would make its rows durable without its messages.
"""

import weakref
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from halfmq.client.log import logger
from halfmq.errors import UsageError

_log = logger(__name__)

#: Key in ``Session.info``, which an ``AsyncSession`` shares with its session. The value is a weak reference, so that a block
#: that never ended does not mark the session forever.
_KEY: Final = "halfmq.open_block"
#: Key of a weak reference to the last transaction of the session that a block has committed.
_COMMITTED: Final = "halfmq.committed_by_block"


def enter(session: Session, owner: object) -> None:
    """Mark ``session`` as inside the block ``owner``, until ``leave`` or until ``owner`` is collected."""
    session.info[_KEY] = weakref.ref(owner)


def leave(session: Session, owner: object) -> None:
    """Remove the mark of ``owner``; does nothing if another block set it."""
    reference = session.info.get(_KEY)
    if reference is not None and reference() in (None, owner):
        del session.info[_KEY]


def is_open(session: Session) -> bool:
    """Whether ``session`` is inside a block."""
    reference = session.info.get(_KEY)
    return reference is not None and reference() is not None


def proven_commit(session: Session, transaction: SessionTransaction | None) -> None:
    """A block has committed ``transaction``, and proven it."""
    if transaction is not None:
        session.info[_COMMITTED] = weakref.ref(transaction)


def was_committed_by_block(session: Session, transaction: SessionTransaction | None) -> bool:
    """Whether ``proven_commit`` was called with this transaction last."""
    reference = session.info.get(_COMMITTED)
    return reference is not None and reference() is transaction


def refuse_nested(session: Session, hint: str) -> None:
    """Reject a session that is inside a block.

    Raises:
        UsageError: it is; nothing was written.
    """
    if is_open(session):
        raise UsageError("the session is inside an mq.transaction block, which alone may commit it", hint=hint)


def roll_back(session: Session, what: str) -> None:
    """Roll back after an exception, which the caller raises: where that fails, only the connection is given up."""
    try:
        session.rollback()
    except SQLAlchemyError:  # the connection is lost, or a hook failed during commit
        _log.warning("rollback after %s failed, closing its connection", what, exc_info=True)
        session.invalidate()
