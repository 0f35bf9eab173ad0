"""What the rows of an outbox mean, and what happens to one after an attempt to publish it.

The outbox is a table beside the business rows: a message is a row that the application's transaction inserts, so that it exists if and only
if that transaction committed (the event queue and the state table of the FMQ source, 1.3.2 and 2.1). ``outcome`` is the state of the
transaction, ``delivery`` that of the message.

Order. Each row is in one of ``LANES`` lanes, by its order key, and one relay at a time holds a lane. Within a lane rows are published in
the order of ``seq``, which the database assigns when the row is inserted. Two transactions that the application lets wait for each other
get numbers in the order of their commits; two that run at the same time may commit in the other order. So the order of a key is the commit
order of transactions that the application serialises for it.

A row may be written now and decided later (the state table of the source, 2.1): it is HELD until the application confirms or withdraws it,
and takes its place in the order of its key when it is confirmed, after what was published meanwhile.

A row that was refused is tried again later, and after ``attempts_max`` attempts set aside. Until it is published, or skipped by an
operator, it stops the rows behind it that have the same order key, and no others.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

from halfmq.client.outgoing import OutgoingMessage
from halfmq.errors import InvalidName, UsageError
from halfmq.model.checksum import crc32
from halfmq.printable import printable

#: Never changed: the lane is stored in each row, and an order key must stay in its lane.
LANES: Final = 64

#: Attempts before a row is set aside.
ATTEMPTS_MAX: Final = 10

#: First pause before a refused row is tried again, ms; it doubles up to the second one.
RETRY_MIN_MS: Final = 500
RETRY_MAX_MS: Final = 60_000

#: Characters of a reason that are kept.
REASON_CHARS_MAX: Final = 500

#: Characters of an order key.
ORDER_KEY_CHARS_MAX: Final = 255

#: Characters of a topic: of Kafka's names up to 249, of RabbitMQ's routing keys 255 bytes.
TOPIC_CHARS_MAX: Final = 255


class Delivery(StrEnum):
    """State of a message."""

    #: Written, and not decided yet: the application confirms or withdraws it. No relay looks at it.
    HELD = "H"
    #: To be published in the order of its lane.
    WAITING = "W"
    #: Not before ``due_at_ms``; nothing waits for it.
    SCHEDULED = "S"
    #: Refused; tried again at ``due_at_ms``. Rows with its order key are behind it.
    RETRYING = "R"
    #: Behind a row with the same order key that is retried or set aside.
    BEHIND = "B"
    #: Refused too often: an operator retries or skips it. Rows with its order key are behind it.
    SET_ASIDE = "A"
    #: Confirmed by the target at ``due_at_ms``, and kept because the outbox archives.
    PUBLISHED = "P"
    #: Never published: an operator or the relay skipped it at ``due_at_ms``, or the application withdrew it.
    SKIPPED = "X"

    @property
    def shown(self) -> str:
        """For people: ``set-aside``."""
        return self.name.lower().replace("_", "-")


class Outcome(StrEnum):
    """State of the transaction, as the application left it."""

    COMMITTED = "C"
    #: Withdrawn before it was published: the application's compensation was faster.
    WITHDRAWN = "R"


#: Rows with the same order key wait for a row in one of these.
STOPS_ITS_KEY: Final = (Delivery.RETRYING, Delivery.SET_ASIDE)
#: Published when they are due.
AT_A_TIME: Final = (Delivery.RETRYING, Delivery.SCHEDULED)
#: Not published yet, and meant to be.
UNPUBLISHED: Final = (Delivery.WAITING, Delivery.SCHEDULED, Delivery.RETRYING, Delivery.BEHIND)
#: Nothing happens to these any more; they are kept until they are pruned.
ENDED: Final = (Delivery.PUBLISHED, Delivery.SKIPPED)


def checked_any_topic(topic: object) -> str:
    """``topic`` if some target may have one of this name.

    Raises:
        InvalidName: it is empty, too long, no text, or has a character that cannot be printed.
    """
    if not isinstance(topic, str) or not 0 < len(topic) <= TOPIC_CHARS_MAX or not topic.isprintable():
        raise InvalidName(f"{topic!r} is no name of a topic", hint=f"1 to {TOPIC_CHARS_MAX} printable characters")
    return topic


def checked_order_key(order_key: str) -> str:
    """``order_key`` if every database takes it.

    Raises:
        UsageError: it is too long, or has a NUL, which PostgreSQL does not store in text.
    """
    if len(order_key) > ORDER_KEY_CHARS_MAX:
        raise UsageError(f"the sharding key has {len(order_key)} characters; {ORDER_KEY_CHARS_MAX} are allowed")
    if "\0" in order_key:
        raise UsageError(f"the sharding key {order_key!r} has a NUL", hint="not every database can store it")
    return order_key


def lane_of(order_key: str, message_id: str) -> int:
    """The lane of a row; rows without an order key are spread over all."""
    return crc32((order_key or message_id).encode()) % LANES


def row_of(message: OutgoingMessage, *, tx_id: str, now_ms: int, hold: bool = False) -> dict[str, Any]:
    """The columns of a message that has an id, without ``seq``, which the database assigns, and ``attempts``, by whose value PostgreSQL
    wakes the relays. ``now_ms``: the wall clock.

    Raises:
        UsageError: as ``checked_order_key``.
    """
    checked_order_key(message.sharding_key)
    delayed = message.delay_ms > 0
    delivery = Delivery.HELD if hold else Delivery.SCHEDULED if delayed else Delivery.WAITING
    return {
        "lane": lane_of(message.sharding_key, message.message_id),
        "delivery": delivery.value,
        "outcome": Outcome.COMMITTED.value,
        "order_key": message.sharding_key,
        "message_id": message.message_id,
        "tx_id": tx_id,
        "topic": message.topic,
        "properties": message.properties,
        "body": message.body,
        "written_at_ms": now_ms,
        "due_at_ms": now_ms + message.delay_ms if delayed else 0,
        "published_at_ms": 0,
        "reason": "",
    }


def skip_reason(operator: str, reason: str, before: str) -> str:
    """What is kept with a row that an operator skips; ``before``: why it was set aside."""
    parts = [f"skipped by {operator}", *([reason] if reason else []), *([before] if before else [])]
    return _kept(": ".join(parts))


def _kept(reason: str) -> str:
    """What a column of text takes, whatever a target has said: PostgreSQL no NUL, and no driver half of a surrogate pair."""
    return printable(reason)[:REASON_CHARS_MAX]


class AfterRefusal(NamedTuple):
    """What a row becomes."""

    delivery: Delivery
    attempts: int
    #: When it is tried again, ms; 0 if it is not.
    due_at_ms: int
    reason: str


def after_refusal(attempts: int, now_ms: int, reason: str, attempts_max: int = ATTEMPTS_MAX) -> AfterRefusal:
    """A row that has failed ``attempts`` times before was refused once more."""
    attempts += 1
    reason = _kept(reason)
    if attempts >= attempts_max:
        return AfterRefusal(Delivery.SET_ASIDE, attempts, 0, reason)
    pause_ms = min(RETRY_MIN_MS << (attempts - 1), RETRY_MAX_MS)
    return AfterRefusal(Delivery.RETRYING, attempts, now_ms + pause_ms, reason)


def encode_seqs(seqs: tuple[int, ...]) -> str:
    """The rows of a recorded batch as text: the first number, then differences."""
    parts, last = [], 0
    for seq in seqs:
        parts.append(str(seq - last))
        last = seq
    return " ".join(parts)


def decode_seqs(text: str) -> tuple[int, ...]:
    """The inverse of ``encode_seqs``."""
    seqs, last = [], 0
    for part in text.split():
        last += int(part)
        seqs.append(last)
    return tuple(seqs)
