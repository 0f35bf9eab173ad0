"""Fetching checks with a long poll, where a push cannot reach: FMQ's Feedback (source, 3.3.5).

    HMQ_FEEDBACK  29009  ext ``group``, ``clientId``, ``waitMs``, ``max``
        as far as it goes: ``waitMs`` counts as 100 to 25,000, ``max`` as 256 at most
        answer  code 0; body: the half messages of the transactions to be asked about, one after another, as in the pushed
                check (39), possibly none. Each stands under its first offsets, with TRANSACTION_CHECK_TIMES

What is handed out is leased: nobody else is asked before an answer is overdue. The answer is END_TRANSACTION (37) from a
check, as to a pushed one; UNKNOWN gives it back. A stock broker answers 3. Pure.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.wire.remoting.message_codec import PulledMessage, decode_pulled

HMQ_FEEDBACK: Final = 29_009

EXT_GROUP: Final = "group"
EXT_CLIENT: Final = "clientId"
EXT_WAIT_MS: Final = "waitMs"
EXT_MAX: Final = "max"
#: Characters of a client's name of itself.
CLIENT_CHARS_MAX: Final = 255


class Poll(NamedTuple):
    group: str
    client_id: str
    wait_ms: int
    checks_max: int


def encode_poll(poll: Poll) -> dict[str, str]:
    """The ext fields."""
    return {
        EXT_GROUP: poll.group, EXT_CLIENT: poll.client_id, EXT_WAIT_MS: str(poll.wait_ms), EXT_MAX: str(poll.checks_max),
    }  # fmt: skip


def decode_poll(ext: Mapping[str, str]) -> Poll | str:
    """What was asked for, or what is wrong with it. The broker cuts the wait and the number to what may be."""
    group, client_id = ext.get(EXT_GROUP, ""), ext.get(EXT_CLIENT, "")
    wait, number = ext.get(EXT_WAIT_MS, "0"), ext.get(EXT_MAX, str(limits.FEEDBACK_CHECKS_MAX))
    if not group:
        return f"{EXT_GROUP}: whose checks"
    if not client_id or len(client_id) > CLIENT_CHARS_MAX or not client_id.isprintable():
        return f"{EXT_CLIENT}: who asks, 1 to {CLIENT_CHARS_MAX} characters"
    if not (wait.isascii() and wait.isdigit() and len(wait) < 10):
        return f"{EXT_WAIT_MS} {wait!r}: milliseconds"
    if not (number.isascii() and number.isdigit() and len(number) < 10) or not int(number):
        return f"{EXT_MAX} {number!r}: 1 or more"
    return Poll(group, client_id, int(wait), int(number))


def decode_handed_out(body: bytes) -> list[PulledMessage]:
    """The halves to be asked about.

    Raises:
        ProtocolError: not such an answer. MissingDependency: as of a pull.
    """
    pulled = decode_pulled(body)
    if len(pulled) > limits.FEEDBACK_CHECKS_MAX:
        raise ProtocolError(f"{len(pulled)} checks were handed out, {limits.FEEDBACK_CHECKS_MAX} are asked for at most")
    return pulled
