"""Which session is inside an ``mq.transaction`` block: whoever would commit it there is refused on entry.

A commit inside the block makes its rows durable before its half messages are sent, and they never are.
"""

import weakref
from typing import Final

from sqlalchemy.orm import Session

from halfmq.errors import UsageError

#: Where in ``Session.info``, which an ``AsyncSession`` shares with its session. Weak, so that a block that was left
#: without its end does not hold the session for ever.
_KEY: Final = "halfmq.open_block"


def enter(session: Session, owner: object) -> None:
    """``owner`` is the block on ``session`` from now on, until ``leave`` or its own end."""
    session.info[_KEY] = weakref.ref(owner)


def leave(session: Session, owner: object) -> None:
    """Nothing happens when another one is the block of ``session``."""
    reference = session.info.get(_KEY)
    if reference is not None and reference() in (None, owner):
        del session.info[_KEY]


def refuse_nested(session: Session, hint: str) -> None:
    """
    Raises:
        UsageError: ``session`` is inside a block. Nothing was written.
    """
    reference = session.info.get(_KEY)
    if reference is not None and reference() is not None:
        raise UsageError("the session is inside an mq.transaction block, which alone may commit it", hint=hint)
