"""Attributes of topics and of consumer groups that this broker knows.

Of a topic (``attributes`` of 17, ``TopicConfig.attributes`` of 351), the type of its messages, a label: RocketMQ's broker does not enforce
it either, only its gRPC proxy, and the tools show it.

    message.type   NORMAL, FIFO, DELAY, TRANSACTION, MIXED or UNSPECIFIED

Of a group (``SubscriptionGroupConfig.attributes``, 200 and 201), what it holds:

    hold.topics    topics, separated by ``:``, which no topic's name contains; ``mqadmin`` separates attributes by commas
    hold.ms        the age of a message at which retention no longer keeps it for the group, milliseconds; 0: no limit by age

A change names an attribute with ``+`` to set it or ``-`` to remove it, as in RocketMQ since 5.0 (``mqadmin updateSubGroup --attributes
+hold.topics=orders:payments``, ``updateTopic -a +message.type=FIFO``). One that a change does not name stays as it is, so tools that know
no attributes change none. A name without a sign, as in the response to 201 or 351, sets it: a tool that sends back what it has read changes
nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.model.ids import checked_name
from halfmq.wire.remoting import java_json

HOLD_TOPICS: Final = "hold.topics"
HOLD_MS: Final = "hold.ms"
_SEPARATOR: Final = ":"
MESSAGE_TYPE: Final = "message.type"
#: RocketMQ's types without PRIORITY and LITE, kinds of messages that this broker does not have.
MESSAGE_TYPES: Final = frozenset({"NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"})


class HoldChange(NamedTuple):
    """None: unchanged."""

    topics: tuple[str, ...] | None
    hold_ms: int | None


def read_hold_change(attributes: Mapping[str, str]) -> HoldChange:
    """The change that the attributes of a request (200) ask for.

    Raises:
        ValueError: an attribute is unknown or invalid; the text names it.
    """
    topics: tuple[str, ...] | None = None
    hold_ms: int | None = None
    for key, value in attributes.items():
        name = key.lstrip("+-")
        if key.startswith("-"):
            value = ""
        if name == HOLD_TOPICS:
            topics = tuple([topic for topic in value.split(_SEPARATOR) if topic])
        elif name == HOLD_MS:
            if value and not value.isdecimal():
                raise ValueError(f"{HOLD_MS} is {value!r}: a number of milliseconds")
            hold_ms = int(value) if value else limits.HOLD_MS
        else:
            raise ValueError(f"attribute {name!r} is not supported: there are {HOLD_TOPICS} and {HOLD_MS}")
    return HoldChange(topics, hold_ms)


def hold_attributes(topics: Sequence[str], hold_ms: int) -> dict[str, str]:
    """The attributes of a group with this hold, in a response; empty if it holds nothing."""
    return {HOLD_TOPICS: _SEPARATOR.join(topics), HOLD_MS: str(hold_ms)} if topics else {}


def hold_set(topics: Sequence[str], hold_ms: int | None = None) -> dict[str, str]:
    """The change after which a group holds ``topics``, at least one. ``hold_ms`` None: its limit by age stays as it is.

    Raises:
        InvalidName: the broker would read it as several topics, or as none.
    """
    for topic in topics:
        checked_name(topic, "topic", limits.TOPIC_CHARS_MAX)
    age = {} if hold_ms is None else {"+" + HOLD_MS: str(hold_ms)}
    return {"+" + HOLD_TOPICS: _SEPARATOR.join(topics), **age}


def change_body(group: str, attributes: Mapping[str, str]) -> bytes:
    """Body of 200 that changes only these attributes of the group. RocketMQ's brokers refuse the attributes, and change nothing."""
    return java_json.dumps({"groupName": group, "attributes": dict(attributes)})


def hold_removed() -> dict[str, str]:
    """The change after which a group holds nothing."""
    return {"-" + HOLD_TOPICS: ""}


def read_topic_change(attributes: str) -> str | None:
    """The type of messages that a request (17) asks for; "": none any more. None: unchanged.

    Raises:
        ValueError: an attribute is unknown or invalid; the text names it.
    """
    message_type: str | None = None
    for change in filter(None, attributes.split(",")):
        key, _, value = change.strip().partition("=")
        name = key.lstrip("+-")
        if name != MESSAGE_TYPE:
            raise ValueError(f"unsupported key: {name[:64]!r}; there is {MESSAGE_TYPE}")
        if message_type is not None:
            raise ValueError(f"alter duplication key: {name}")
        message_type = "" if key.startswith("-") else value
        if message_type not in MESSAGE_TYPES and not key.startswith("-"):
            raise ValueError(f"{name} is {value[:64]!r}, not one of {', '.join(sorted(MESSAGE_TYPES))}")
    return message_type


def topic_attributes(message_type: str) -> dict[str, str]:
    """The attributes of a topic in a response."""
    return {MESSAGE_TYPE: message_type} if message_type else {}
