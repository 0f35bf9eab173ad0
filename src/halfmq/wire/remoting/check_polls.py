"""Fetching checks with a long poll, for clients that pushes cannot reach: FMQ's Feedback (source, 3.3.5).

    HMQ_POLL_CHECKS  29009  ext ``group``, ``clientId``, ``waitMs``, ``max``; ``waitMs`` is clamped to 100..25,000, ``max`` to 256
        response  code 0; body: zero or more half messages of transactions to check, concatenated, each as in a pushed check
                  (39), with its first offsets and TRANSACTION_CHECK_TIMES

A fetched check is leased: no other client gets it before the time for the answer has passed. The answer is END_TRANSACTION (37)
with fromTransactionCheck, as for a pushed check; UNKNOWN ends the lease. RocketMQ responds with 3. Pure functions.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.text_fields import Count32, Fields, NotEmpty
from halfmq.wire.remoting.message_codec import PulledMessage, decode_pulled

#: Maximum length of a client id.
CLIENT_CHARS_MAX: Final = 255


class PollFields(Fields, gc=False):
    """A request for checks. The broker clamps the wait and the number."""

    group: NotEmpty
    client_id: Annotated[str, Meta(min_length=1, max_length=CLIENT_CHARS_MAX)]
    wait_ms: Count32 = 0
    checks_max: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] = field(name="max", default=limits.CHECK_POLL_CHECKS_MAX)


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
