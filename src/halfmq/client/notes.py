"""What an application says of a transaction to whoever may have to decide in its place: one set of arguments for every call that begins one.

It travels as properties of each half message and decides nothing: ``halfmq tx`` and the check function show it.
"""

from typing import TypedDict

from halfmq import limits
from halfmq.client.arguments import checked_text
from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.model import properties as names

_ADVICE = "Outcome.COMMIT, Outcome.ROLLBACK, or None for no advice"
_COMMENT = f"at most {limits.COMMENT_CHARS_MAX} printable characters, such as comment='ask the warehouse'"


class Notes(TypedDict, total=False):
    """Arguments of ``begin``, ``transaction``, ``prepare``, ``send_in_transaction`` and ``App.transaction``."""

    #: If nobody can find out what happened: COMMIT or ROLLBACK. None: no advice.
    advice: Outcome | None
    #: For people: at most ``limits.COMMENT_CHARS_MAX`` printable characters.
    comment: str


class PrepareOptions(Notes, total=False):
    """What a database integration passes from ``transaction(session, ...)`` to ``prepare`` as it came."""

    #: The application's key for its local transaction, for the check function.
    query_id: str
    #: Seconds, for each of the two calls at the end of the block; None: the client's.
    timeout: float | None


def note_pairs(advice: object = None, comment: object = "") -> list[tuple[str, str]]:
    """The properties that carry the notes; those that were not given are empty, and empty properties are not sent.

    Raises:
        UsageError: an argument is wrong.
    """
    if advice not in (None, Outcome.COMMIT, Outcome.ROLLBACK):
        raise UsageError(f"advice={advice!r}", hint=_ADVICE)
    text = checked_text(comment, "comment", _COMMENT)
    if len(text) > limits.COMMENT_CHARS_MAX:
        raise UsageError(f"a comment of {len(text)} characters", hint=_COMMENT)
    if not text.isprintable():
        raise UsageError(f"comment={text!r} has characters that cannot be shown", hint=_COMMENT)
    return [
        (names.HMQ_ADVICE, advice.name if isinstance(advice, Outcome) else ""),
        (names.HMQ_COMMENT, text),
    ]


def advice_in(text: str) -> Outcome | None:
    """The value of HMQ_ADVICE; None: there is none that is known."""
    return {"COMMIT": Outcome.COMMIT, "ROLLBACK": Outcome.ROLLBACK}.get(text)
