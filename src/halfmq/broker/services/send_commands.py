"""From a send to a command: a plain message, a half message, or a batch, with the fields of its property string.

The property string is part of a stored message, whichever front door it came through; it decides nothing about a
send in core, which gets fields.

As in RocketMQ, the property TRAN_MSG makes a half, not the prepared bit of the sys flag. The bit without the property, which RocketMQ
stores where no consumer will ever see it, is refused. A retry (``reconsume_times`` > 0, or a ``%RETRY%`` topic) copies all properties
of its original, including TRAN_MSG, and is a plain message.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from halfmq import limits
from halfmq.core.commands import BatchEntry, SendBatch, SendHalf, SendMessage
from halfmq.core.decision import Refused, Why
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX
from halfmq.errors import InvalidName
from halfmq.model.cached import Cached
from halfmq.model.ids import UNIQUE_ID_CHARS, checked_name, is_generated_id
from halfmq.model.message_facts import CommonValues, common_values, coordinator_in, delay_in, half_facts, plain_facts
from halfmq.model.properties import (
    CLUSTER,
    HMQ_COORDINATOR,
    HMQ_TX_COUNT,
    HMQ_TX_ID,
    HMQ_TX_INDEX,
    HMQ_USER,
    MSG_REGION,
    PROPERTY_BYTE,
    TRACE_ON,
    append,
    without,
)
from halfmq.model.steps import Steps
from halfmq.model.stored_message import SYS_PREPARED, SYS_TRANSACTION_MASK

_HMQ_TX_ID: Final = HMQ_TX_ID.encode()
_HMQ_COORDINATOR: Final = HMQ_COORDINATOR.encode()
_HMQ_USER: Final = HMQ_USER.encode()
_TRACE_ON: Final = TRACE_ON.encode()
_HMQ_TX_INDEX: Final = HMQ_TX_INDEX.encode()
_HMQ_TX_COUNT: Final = HMQ_TX_COUNT.encode()
_COPIES: Final = (RETRY_PREFIX, DLQ_PREFIX)
_PREPARED_WITHOUT_PROPERTY: Final = Refused(
    Why.MESSAGE_ILLEGAL,
    "the sys flag says prepared but property TRAN_MSG is not true: set both for a half message, or neither",
)


class SendRequest(Protocol):
    """What a front door knows of a send; ``wire.remoting.fields.SendFields`` is one."""

    group: str
    topic: str
    #: Number of queues if this send creates the topic.
    default_queues: int
    #: Negative: the broker selects a write queue.
    queue_id: int
    sys_flag: int
    #: By the sender's clock.
    born_time_ms: int
    #: The application's own number, which consumers get.
    flag: int
    #: Property string (``model.properties``).
    properties: str
    reconsume_times: int
    #: -1: not set.
    max_reconsume_times: int
    #: An earlier attempt got no response.
    sent_again: bool


#: Bytes of properties between two places where ``batch_command`` may be interrupted: at most 5 ms, for two tags of 32 KB; and what a
#: message counts besides.
_BYTES_AT_ONCE: Final = 65_536
_MESSAGE_COST: Final = 256
#: A message of a batch: (flag, body, property string).
BatchMessage = tuple[int, bytes, bytes]


def send_command(
    connection: int, born_host: bytes, request: SendRequest, body: bytes, user: str = ""
) -> SendMessage | SendHalf | Refused:
    """The command for a send of one message, or why it is invalid.

    ``user``: the name of who sends it, which a half message gets as a property; "" if the broker has no users. What a client says in
    this property is removed.
    """
    properties = request.properties.encode()
    values = common_values(properties)
    is_half = values[1] == b"true" or values[1].lower() == b"true"
    if (is_half or request.sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED) and not (
        request.reconsume_times > 0
        or ("%" in request.topic and request.topic.startswith(_COPIES))  # ``in`` alone takes a quarter
    ):
        if not is_half:
            return _PREPARED_WITHOUT_PROPERTY
        return _half(connection, born_host, request, body, properties, values, user)
    pairs = values[0]
    if pairs and _HMQ_USER in pairs:
        properties = without(properties, HMQ_USER)
    tag_hash, key_hash, keys = plain_facts(values)
    return SendMessage(
        connection, request.group, request.topic, request.default_queues, request.queue_id, request.sys_flag,
        request.born_time_ms, request.flag, properties, request.reconsume_times, request.max_reconsume_times, body, born_host,
        request.sent_again, values[3].decode(), tag_hash, key_hash, keys, delay_in(pairs),
    )  # fmt: skip


def batch_command(
    connection: int, born_host: bytes, request: SendRequest, messages: Iterable[BatchMessage]
) -> Steps[SendBatch | Refused]:
    """The command for a send of several messages, or why it is invalid: a batch contains plain messages without delay.

    RocketMQ's client creates no other batches. The properties of ``request`` are not used.
    """
    entries: list[BatchEntry] = []
    keys_found = done_bytes = 0
    for flag, one, properties in messages:
        done_bytes += len(properties) + _MESSAGE_COST
        if done_bytes > _BYTES_AT_ONCE:
            done_bytes = 0
            yield
        if len(entries) >= limits.BATCH_MESSAGES_MAX:
            return Refused(
                Why.MESSAGE_ILLEGAL, f"a batch of more than {limits.BATCH_MESSAGES_MAX} messages: send smaller ones"
            )
        try:
            properties.decode()  # not validated before: they are bytes inside of the body
        except UnicodeDecodeError:
            return Refused(Why.MESSAGE_ILLEGAL, "the properties of a message in the batch are not UTF-8")
        values = common_values(properties)
        pairs, tran_msg, _, unique_id, _, keys = values
        if _HMQ_USER in pairs:
            properties = without(properties, HMQ_USER)
        keys_found += keys.count(b" ") + 1 if keys else 0
        if tran_msg.lower() == b"true" or request.sys_flag & SYS_TRANSACTION_MASK:
            return Refused(Why.MESSAGE_ILLEGAL, "a batch cannot contain half messages")
        if delay_in(pairs):
            return Refused(Why.MESSAGE_ILLEGAL, "a batch cannot contain delayed messages")
        entries.append(BatchEntry(flag, one, properties, unique_id.decode(), *plain_facts(values)))
    if keys_found > limits.REQUEST_KEYS_MAX:
        text = f"the messages of the batch have {keys_found} keys together, at most {limits.REQUEST_KEYS_MAX}: send smaller ones"
        return Refused(Why.MESSAGE_ILLEGAL, text)
    return SendBatch(
        connection, request.group, request.topic, request.default_queues, request.queue_id, request.sys_flag,
        request.born_time_ms, born_host, tuple(entries), request.sent_again,
    )  # fmt: skip


def _half(
    connection: int,
    born_host: bytes,
    request: SendRequest,
    body: bytes,
    properties: bytes,
    values: CommonValues,
    user: str,
) -> SendHalf | Refused:
    pairs, _, raw_group, raw_id, _, _ = values
    if not raw_group:
        raw_group = request.group.encode()
        properties = append(properties, b"PGROUP\x01%b\x02" % raw_group)
    group = _group_names[raw_group]
    if type(group) is not str:
        return group  # type: ignore[return-value]  # an invalid name is a refusal
    # With arguments ``decode`` takes twice as long, 0.1 % of a transaction.
    unique_id = raw_id.decode() if raw_id.isascii() else raw_id.decode("ascii", "replace")
    tx_id, index, count = unique_id, 0, 1
    searched_to = (
        -1 if len(raw_id) == 32 or len(raw_id) in UNIQUE_ID_CHARS or not raw_id else 0
    )  # 32 is almost every one
    coordinator = None
    if pairs:
        if _HMQ_USER in pairs:
            properties = without(properties, HMQ_USER)
        if _HMQ_COORDINATOR in pairs:
            coordinator = coordinator_in(pairs)
            if coordinator is None:
                text = f"{HMQ_COORDINATOR}: an epoch, a blank and a name of 1 to {limits.COORDINATOR_NAME_CHARS_MAX} characters"
                return Refused(Why.INVALID_PARAMETER, text)
        raw_tx_id = pairs.get(_HMQ_TX_ID)
        if raw_tx_id is not None:
            identity = _identity(pairs, raw_tx_id)
            if isinstance(identity, Refused):
                return identity
            tx_id, index, count = identity
            searched_to = -1 if is_generated_id(tx_id) else 0
        if _TRACE_ON in pairs:  # a copy of a stored message
            properties = without(properties, CLUSTER, MSG_REGION, TRACE_ON)
    if user:
        said = _properties_of_user[user]
        properties += said[1:] if properties[-1] == PROPERTY_BYTE else said
    tag_hash, key_hash, id_hash, delay, grace_ms, keys, has_marker = half_facts(values)
    return SendHalf(
        connection, group, tx_id, index, count, request.topic, request.default_queues, request.queue_id, request.sys_flag,
        request.born_time_ms, request.flag, properties, request.reconsume_times, body, born_host, unique_id, tag_hash,
        key_hash, id_hash, delay, grace_ms, keys, searched_to, None, coordinator, has_marker,
        user,
    )  # fmt: skip


def _group_name(raw: bytes) -> str | Refused:
    """The name in PGROUP, or why it is invalid."""
    try:
        return checked_name(raw.decode(), "producer group", limits.GROUP_CHARS_MAX)
    except (InvalidName, UnicodeDecodeError) as error:
        return Refused(Why.INVALID_PARAMETER, str(error))


#: By user: what follows on properties that do not end as each of them may.
_properties_of_user: Final[Cached[str, bytes]] = Cached(
    lambda user: b"\x02%b\x01%b\x02" % (_HMQ_USER, user.encode()), 256
)
#: An invalid name may be as long as a property string, and is quoted: these take at most some 30 MiB.
_group_names: Final[Cached[bytes, str | Refused]] = Cached(_group_name, 256)


def _identity(pairs: Mapping[bytes, bytes], raw: bytes) -> tuple[str, int, int] | Refused:
    """(transaction id, index, count) of a half that is one of several, whose HMQ_TX_ID is ``raw``."""
    tx_id = raw.decode("ascii", "replace")
    index = _number(pairs.get(_HMQ_TX_INDEX))
    count = _number(pairs.get(_HMQ_TX_COUNT, b"0"))
    if not 0 <= index < limits.TRANSACTION_MESSAGES_MAX or not 0 <= count <= limits.TRANSACTION_MESSAGES_MAX:
        return Refused(
            Why.INVALID_PARAMETER,
            f"transaction {tx_id!r}: {HMQ_TX_INDEX} counts from 0 and {HMQ_TX_COUNT} says how many, at most "
            f"{limits.TRANSACTION_MESSAGES_MAX}",
        )
    if count and index >= count:
        return Refused(Why.INVALID_PARAMETER, f"transaction {tx_id!r}: index {index} of {count} messages")
    return tx_id, index, count


def _number(raw: bytes | None) -> int:
    return int(raw) if raw is not None and len(raw) < 10 and raw.isdigit() else -1
