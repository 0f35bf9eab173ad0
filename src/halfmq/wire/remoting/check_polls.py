"""Fetching checks with a long poll, for clients that pushes cannot reach: FMQ's Feedback (source, 3.3.5).

    HMQ_POLL_CHECKS  29009  ext ``group``, ``clientId``, ``waitMs``, ``max``; ``waitMs`` is clamped to 100..25,000, ``max`` to 256
        response  code 0; body: zero or more half messages of transactions to check, concatenated, each as in a pushed check
                  (39), with its first offsets and TRANSACTION_CHECK_TIMES

A fetched check is leased: no other client gets it before the time for the answer has passed. The answer is END_TRANSACTION (37)
with fromTransactionCheck, as for a pushed check; UNKNOWN ends the lease. RocketMQ responds with 3. Pure functions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.wire.remoting.message_codec import PulledMessage, decode_pulled

EXT_GROUP: Final = "group"
EXT_CLIENT: Final = "clientId"
EXT_WAIT_MS: Final = "waitMs"
EXT_MAX: Final = "max"
#: Maximum length of a client id.
CLIENT_CHARS_MAX: Final = 255


class Poll(NamedTuple):
    """A request for checks."""

    group: str
    client_id: str
    wait_ms: int
    checks_max: int


def encode_poll(poll: Poll) -> dict[str, str]:
    """Ext fields of the request."""
    return {
        EXT_GROUP: poll.group, EXT_CLIENT: poll.client_id, EXT_WAIT_MS: str(poll.wait_ms), EXT_MAX: str(poll.checks_max),
    }  # fmt: skip


def decode_poll(ext: Mapping[str, str]) -> Poll | str:
    """The request, or a text that says what is wrong with it. The caller clamps wait and number."""
    group, client_id = ext.get(EXT_GROUP, ""), ext.get(EXT_CLIENT, "")
    wait, number = ext.get(EXT_WAIT_MS, "0"), ext.get(EXT_MAX, str(limits.CHECK_POLL_CHECKS_MAX))
    if not group:
        return f"{EXT_GROUP} is missing"
    if not client_id or len(client_id) > CLIENT_CHARS_MAX or not client_id.isprintable():
        return f"{EXT_CLIENT}: 1 to {CLIENT_CHARS_MAX} printable characters"
    if not (wait.isascii() and wait.isdigit() and len(wait) < 10):
        return f"{EXT_WAIT_MS} {wait!r}: not a number of milliseconds"
    if not (number.isascii() and number.isdigit() and len(number) < 10) or not int(number):
        return f"{EXT_MAX} {number!r}: 1 or more"
    return Poll(group, client_id, int(wait), int(number))


def decode_handed_out(body: bytes) -> list[PulledMessage]:
    """The half messages to check.

    Raises:
        ProtocolError: not a response to HMQ_POLL_CHECKS.
        MissingDependency: as ``decode_pulled``.
    """
    pulled = decode_pulled(body)
    if len(pulled) > limits.CHECK_POLL_CHECKS_MAX:
        raise ProtocolError(f"a response with {len(pulled)} checks; the maximum is {limits.CHECK_POLL_CHECKS_MAX}")
    return pulled
