"""Tracks which sessions are inside an ``mq.transaction`` block, to reject nested blocks that would commit them.

A commit inside the block would make its rows durable without its messages.
"""

import weakref
from typing import Final

from sqlalchemy.orm import Session

from halfmq.errors import UsageError

#: Key in ``Session.info``, which an ``AsyncSession`` shares with its session. The value is a weak reference, so that a block
#: that never ended does not mark the session forever.
_KEY: Final = "halfmq.open_block"


def enter(session: Session, owner: object) -> None:
    """Mark ``session`` as inside the block ``owner``, until ``leave`` or until ``owner`` is collected."""
    session.info[_KEY] = weakref.ref(owner)


def leave(session: Session, owner: object) -> None:
    """Remove the mark of ``owner``; does nothing if another block set it."""
    reference = session.info.get(_KEY)
    if reference is not None and reference() in (None, owner):
        del session.info[_KEY]


def refuse_nested(session: Session, hint: str) -> None:
    """Reject a session that is inside a block.

    Raises:
        UsageError: it is; nothing was written.
    """
    reference = session.info.get(_KEY)
    if reference is not None and reference() is not None:
        raise UsageError("the session is inside an mq.transaction block, which alone may commit it", hint=hint)
