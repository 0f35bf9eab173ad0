"""The property string of a message, ``name 0x01 value 0x02 name 0x01 value 0x02 ...`` in UTF-8.

The hot path never creates a dictionary: ``find`` looks up one name, ``append`` adds pairs at the end.

Reader rules (RocketMQ ``MessageDecoder``, 4.9.1 and later): split at 0x02, each piece at its *first* 0x01; pieces with an empty name or
value are dropped; of two pairs with one name the last wins. Writers differ in whether a 0x02 follows the last pair; both forms are
read, ours writes it.
"""

from collections.abc import Iterable, Mapping
from typing import AnyStr, Final

NAME_VALUE_SEPARATOR: Final = b"\x01"
PROPERTY_SEPARATOR: Final = b"\x02"
#: The same as numbers: what a byte of a property string is equal to.
NAME_VALUE_BYTE: Final = NAME_VALUE_SEPARATOR[0]
PROPERTY_BYTE: Final = PROPERTY_SEPARATOR[0]

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
#: Region and trace switch, as RocketMQ 5 stores them: without the switch its client drops the trace of consumed messages.
TRACED: Final = f"{MSG_REGION}\x01DefaultRegion\x02{TRACE_ON}\x01true\x02"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
#: Of a request, and of its reply: the client that waits for it, what it knows it by, and how long it waits, in ms. Of a reply: that it is
#: one, and when the broker pushed it to that client.
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
CORRELATION_ID: Final = "CORRELATION_ID"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
#: W3C Trace Context: where the message was made, in a trace. The user's: kept with the message, and never reserved.
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

#: Ours. Several halves with one HMQ_TX_ID are one transaction; INDEX counts from 0; only the last half has COUNT.
HMQ_TX_ID: Final = "HMQ_TX_ID"
HMQ_TX_INDEX: Final = "HMQ_TX_INDEX"
HMQ_TX_COUNT: Final = "HMQ_TX_COUNT"
#: Name of the check function.
HMQ_TX_NAME: Final = "HMQ_TX_NAME"
#: Key by which the application finds its local transaction (FMQ source, 3.2.2 ``queryId``).
HMQ_QUERY_ID: Final = "HMQ_QUERY_ID"
#: The marker table of the transaction, and the marker's time: a check needs them to trust that a marker is absent.
HMQ_TX_MARKER: Final = "HMQ_TX_MARKER"
#: For whoever decides in the application's place: what it advises if in doubt, COMMIT or ROLLBACK, and a text for people.
HMQ_ADVICE: Final = "HMQ_ADVICE"
HMQ_COMMENT: Final = "HMQ_COMMENT"
#: The coordinator that decides the transaction, with the epoch in which it was prepared (``model.coordinator``); and the branch of the
#: coordinator's own transaction that this one is.
HMQ_COORDINATOR: Final = "HMQ_COORDINATOR"
HMQ_BRANCH: Final = "HMQ_BRANCH"
#: The user who sent a half message. Written by the broker, which removes what a client says.
HMQ_USER: Final = "HMQ_USER"
#: Of a dead letter: the exception with which its last attempt failed, as its consumer says it. Written by the broker.
HMQ_DEAD_REASON: Final = "HMQ_DEAD_REASON"
#: Of a redelivered message: how often it came to a member of the group that does not consume its topic. Written by the broker.
HMQ_NOT_CONSUMED: Final = "HMQ_NOT_CONSUMED"
#: Of a message that an operator sent again: the offset id of the dead letter that it is a copy of.
HMQ_REDRIVEN_FROM: Final = "HMQ_REDRIVEN_FROM"
#: The id of the message for which this one makes amends.
HMQ_COMPENSATES: Final = "HMQ_COMPENSATES"

#: A call of a branch of Try/Confirm/Cancel: the global transaction and its producer group, the branch, which call it is; the broker that
#: has the transaction, and its log position when that began. LATER: how often the message was put off because it is undecided.
HMQ_TCC_ID: Final = "HMQ_TCC_ID"
HMQ_TCC_GROUP: Final = "HMQ_TCC_GROUP"
HMQ_TCC_BRANCH: Final = "HMQ_TCC_BRANCH"
HMQ_TCC_OP: Final = "HMQ_TCC_OP"
HMQ_TCC_BROKER: Final = "HMQ_TCC_BROKER"
HMQ_TCC_SINCE: Final = "HMQ_TCC_SINCE"
HMQ_TCC_LATER: Final = "HMQ_TCC_LATER"
#: Of the reply to a try: why it is refused.
HMQ_TCC_REFUSED: Final = "HMQ_TCC_REFUSED"

#: Property names reserved by RocketMQ. Precedent: its ``MessageConst.STRING_HASH_SET``; its client refuses them too. See ``is_reserved``.
RESERVED: Final = frozenset(
    (
        *("KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP"),
        *("MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG"),
        *("MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "INSTANCE_ID", "CLUSTER", "TRACE_ON", "DUP_INFO", "__transactionId__"),
        *("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE"),
        *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__SHARDINGKEY"),
    )
)
#: Before each name of ours, also of later versions.
OWN_PREFIX: Final = "HMQ_"
#: Of ours, what a message is in a larger whole: whoever copies a message to another place copies these.
CARRIED: Final = frozenset(
    (HMQ_COMPENSATES, HMQ_TCC_ID, HMQ_TCC_GROUP, HMQ_TCC_BRANCH, HMQ_TCC_OP, HMQ_TCC_BROKER, HMQ_TCC_SINCE)
)
#: Properties that are not the user's, and are not copied with a message: also those that brokers write, although clients do not refuse
#: them. The names of request-reply (CORRELATION_ID, TTL and others) are not among them, since a user may mean something else by them.
SYSTEM: Final = RESERVED | {
    *(CHECK_IMMUNITY_SECONDS, PUSH_REPLY_TIME, "ARRIVE_TIME", DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID),
    *(
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
    ),
    *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    *(HMQ_TX_ID, HMQ_TX_INDEX, HMQ_TX_COUNT, HMQ_TX_NAME, HMQ_QUERY_ID, HMQ_TX_MARKER, HMQ_ADVICE, HMQ_COMMENT),
    *(HMQ_DEAD_REASON, HMQ_NOT_CONSUMED, HMQ_REDRIVEN_FROM),
    *(HMQ_COORDINATOR, HMQ_BRANCH, HMQ_USER, HMQ_TCC_LATER, HMQ_TCC_REFUSED),
}


def is_reserved(name: str) -> bool:
    """Whether a user may not set the property: the protocol's, or one of ours. What arrives from other clients is the broker's business."""
    return name in RESERVED or name.startswith(OWN_PREFIX)


def find(properties: bytes, name: str) -> bytes | None:
    """The value of ``name``; None if it is missing or empty. The last of several wins."""
    key = name.encode() + NAME_VALUE_SEPARATOR
    end = len(properties)
    while True:
        at = properties.rfind(key, 0, end)
        if at < 0:
            return None
        if at == 0 or properties[at - 1] == PROPERTY_BYTE:
            start = at + len(key)
            stop = properties.find(PROPERTY_SEPARATOR, start)
            value = properties[start:] if stop < 0 else properties[start:stop]
            if value:
                return value
        end = at + len(key) - 1


def to_dict(properties: bytes | str) -> dict[str, str]:
    """All pairs, decoded."""
    text = properties if isinstance(properties, str) else properties.decode("utf-8", "replace")
    return cut(text, "\x01", "\x02")


def cut(text: AnyStr, between: AnyStr, behind: AnyStr) -> dict[AnyStr, AnyStr]:
    """All pairs of a property string, by the rules of readers. ``between``, ``behind``: the separators, in its type."""
    pairs: dict[AnyStr, AnyStr] = {}
    for piece in text.split(behind):
        name, _, value = piece.partition(between)
        if name and value:
            pairs[name] = value
    return pairs


def encode(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """The property string of ``pairs``; pairs with an empty value are omitted, as readers would drop them.

    Raises:
        ValueError: a name contains 0x01 or 0x02 or is empty, or a value contains 0x02: there is no escape for them.
    """
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    out = []
    for name, value in items:
        if not name or "\x01" in name or "\x02" in name:
            raise ValueError(f"property name {name!r} is empty or holds a separator byte (0x01 or 0x02)")
        if "\x02" in value:
            raise ValueError(f"value of property {name!r} holds the separator byte 0x02")
        if value:
            out.append(f"{name}\x01{value}\x02")
    return "".join(out).encode()


def append(properties: bytes, added: bytes) -> bytes:
    """``properties`` followed by ``added`` (itself a property string), with a separator between if one is missing."""
    if properties and properties[-1] != PROPERTY_BYTE:
        return properties + PROPERTY_SEPARATOR + added
    return properties + added


def without(properties: bytes, *names: str) -> bytes:
    """``properties`` without the pairs of these names. For cold paths (retry, dead letters)."""
    pairs = to_dict(properties)
    for name in names:
        pairs.pop(name, None)
    return encode(pairs)
