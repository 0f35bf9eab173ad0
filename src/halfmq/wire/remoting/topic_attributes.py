"""Attributes of a topic (``attributes`` of 17, ``TopicConfig.attributes`` of 351) that this broker keeps: the type of its messages.

    message.type   NORMAL, FIFO, DELAY, TRANSACTION, MIXED or UNSPECIFIED

It is a label: RocketMQ's broker does not enforce it either, only its gRPC proxy, and the tools show it. A change names it with ``+`` to set it or with
``-`` to remove it (``mqadmin updateTopic -a +message.type=FIFO``); a name without a sign, as in the response to 351, sets it.
"""

from typing import Final

MESSAGE_TYPE: Final = "message.type"
#: RocketMQ's types without PRIORITY and LITE, kinds of messages that this broker does not have.
MESSAGE_TYPES: Final = frozenset({"NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"})


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
