"""Composing outgoing messages: encodes the body and validates properties before any network I/O.

A caller's mistake raises here rather than as a broker error later.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.client.bodies import to_json
from halfmq.errors import MessageTooLarge, UsageError
from halfmq.model import properties as names
from halfmq.model.ids import checked_name


class OutgoingMessage(NamedTuple):
    """A validated message, made by ``compose``. ``properties``: the encoded property string, still without message id."""

    topic: str
    body: bytes
    properties: bytes
    sharding_key: str
    #: 0: no delay.
    delay_ms: int
    #: UNIQ_KEY; empty: the client makes one when it sends the message.
    message_id: str = ""


def encode_body(body: object, topic: str = "") -> bytes:
    """Encode a body: bytes as they are, str as UTF-8, anything else as JSON (dict, list, dataclass, msgspec Struct, pydantic model).

    ``topic``: for errors.

    Raises:
        UsageError: not encodable, or empty (RocketMQ rejects empty bodies). It names the topic and the field.
        MessageTooLarge: more than ``limits.BODY_BYTES_MAX``.
    """
    if isinstance(body, bytes):
        encoded = body
    elif isinstance(body, str):
        encoded = body.encode()
    elif isinstance(body, bytearray | memoryview):
        encoded = bytes(body)
    elif isinstance(body, OutgoingMessage):
        raise UsageError(f"{_body_for(topic)} is a composed message", hint="its body here, or mq.send(topic, message)")
    else:
        encoded = to_json(body, _body_for(topic))
    if not encoded:
        raise UsageError(f"{_body_for(topic)} is empty", hint="brokers reject an empty body")
    if len(encoded) > limits.BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"{_body_for(topic)} has {len(encoded)} bytes, {limits.BODY_BYTES_MAX} are allowed",
            hint="store the data elsewhere and send a reference",
        )
    return encoded


def _body_for(topic: str) -> str:
    return f"the body for topic {topic}" if topic else "the body"


def checked_bodies(bodies: Any) -> Iterable[object]:
    """``bodies`` if it is an iterable of bodies.

    Raises:
        UsageError: it is a single body, or not iterable.
    """
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping) or not isinstance(bodies, Iterable):
        raise UsageError(f"send_many takes several bodies, not a {type(bodies).__name__}", hint="[body, body], or send")
    return bodies


_good_topics: set[str] = set()


def checked_topic(topic: str) -> str:
    """``topic`` if it is a valid name; raises InvalidName otherwise. Valid names are cached."""
    if not isinstance(topic, str) or topic not in _good_topics:
        checked_name(topic, "topic", limits.TOPIC_CHARS_MAX)
        if len(_good_topics) < 10_000:
            _good_topics.add(topic)
    return topic


def compose(
    topic: str,
    body: object,
    *,
    tag: str | None = None,
    key: object = None,
    keys: Sequence[object] | str = (),
    sharding_key: object = None,
    delay: float | timedelta | None = None,
    properties: Mapping[str, str] | None = None,
) -> OutgoingMessage:
    """Validate and encode one message; no I/O.

    ``key`` is added to ``keys``. Messages with the same ``sharding_key`` go to the same queue; None: without order. ``delay``: seconds.

    Raises:
        UsageError, InvalidName, MessageTooLarge: an argument is wrong.
    """
    encoded = encode_body(body, topic)
    delay_ms = 0 if delay is None else _delay_ms(delay)
    if tag is None and key is None and not keys and keys != "" and sharding_key is None and properties is None:
        return OutgoingMessage(checked_topic(topic), encoded, b"", "", delay_ms)
    pairs: list[tuple[str, str]] = []
    if tag is not None:
        pairs.append((names.TAGS, _checked_tag(tag)))
    all_keys = [*([] if key is None else [key]), *_several(keys)]
    if all_keys:
        pairs.append((names.KEYS, " ".join(map(_checked_key, all_keys))))
    shard = "" if sharding_key is None else _checked_sharding_key(sharding_key)
    if shard:
        pairs.append((names.SHARDING_KEY, shard))
    if properties is not None:
        pairs.extend(_checked_properties(properties))
    try:
        text = names.encode(pairs)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if len(text) > limits.PROPERTIES_BYTES_MAX - OWN_PROPERTIES_BYTES:
        raise MessageTooLarge(
            f"the properties take {len(text)} bytes, {limits.PROPERTIES_BYTES_MAX - OWN_PROPERTIES_BYTES} are allowed"
        )
    return OutgoingMessage(checked_topic(topic), encoded, text, shard, delay_ms)


def checked_composed(message: OutgoingMessage, topic: str, **named: object) -> OutgoingMessage:
    """``message`` in the place of a body. ``named``: the arguments of ``compose`` beside it, which would be dropped.

    Raises:
        UsageError: it is for another topic, or one of them is given.
    """
    if message.topic != topic:
        raise UsageError(f"the message is for topic {message.topic}, not {topic}")
    if given := [name for name, value in named.items() if value is not None and value != ()]:
        raise UsageError(
            f"{', '.join(given)} beside a composed message, which has its own", hint=f"compose(..., {given[0]}=...)"
        )
    return message


#: Reserved for properties that client and broker add (ids, group, transaction, real topic), bytes.
OWN_PROPERTIES_BYTES: Final = 1_536


def _delay_ms(delay: float | timedelta) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float):
        raise UsageError(f"delay={delay!r} is not a duration", hint="seconds as a number, or a timedelta")
    if not 0 <= seconds <= limits.TIMER_DELAY_MAX_MS / 1000:
        raise UsageError(
            f"delay {seconds:g} s is out of range", hint=f"0 to {limits.TIMER_DELAY_MAX_MS // 1000} seconds"
        )
    return round(seconds * 1000)


def _several(keys: object) -> Iterable[object]:
    if isinstance(keys, str):
        return (keys,)
    if keys is None:
        return ()
    if isinstance(keys, bytes | Mapping) or not isinstance(keys, Iterable):
        raise UsageError(f"keys={keys!r} is no list of keys", hint='key="7", or keys=["7", "C-1"]')
    return keys


def _checked_tag(tag: str) -> str:
    if not isinstance(tag, str) or not tag or tag.strip() != tag or "|" in tag:
        raise UsageError(f"tag {tag!r} cannot be subscribed to", hint="text, not empty, no '|', no blanks around it")
    return tag


def _checked_key(key: object) -> str:
    text = "" if key is None or isinstance(key, bytes) else str(key)
    if not text or any(character.isspace() for character in text):
        raise UsageError(
            f"key {key!r} is None, empty or contains whitespace",
            hint="a str or a number; keys are separated by spaces on the wire",
        )
    return text


def _checked_sharding_key(sharding_key: object) -> str:
    """An empty one would keep no order, and say nothing of it."""
    text = "" if isinstance(sharding_key, bytes) else str(sharding_key)
    if not text:
        raise UsageError(
            f"sharding_key {sharding_key!r} is empty or bytes",
            hint="a str or a number; None for a message without order",
        )
    return text


class OwnProperties(dict[str, str]):
    """Checked properties with some of ours, for a send that refuses those of users."""


def with_own(properties: Mapping[str, str] | None, own: Mapping[str, str]) -> OwnProperties:
    """The user's ``properties``, and our ``own``.

    Raises:
        UsageError: as ``compose``.
    """
    checked = {} if properties is None else dict(_checked_properties(properties))
    return OwnProperties(checked, **own)


def _checked_properties(properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if not isinstance(properties, Mapping):
        raise UsageError(f"properties={properties!r} is not a mapping", hint='properties={"source": "web"}')
    is_ours = isinstance(properties, OwnProperties)
    for name, value in properties.items():
        if not isinstance(name, str):
            raise UsageError(f"a property is named {name!r}", hint="names are text")
        if names.is_reserved(name) and not is_ours:
            raise UsageError(f"property {name!r} is reserved", hint="use the argument for it, or another name")
        if not isinstance(value, str) or not value:
            raise UsageError(f"property {name!r} must be text that is not empty", hint=f"it is {value!r}")
        yield name, value


def delay_properties(delay_ms: int, *, any_delay: bool) -> bytes:
    """The property that delays a message; empty if ``delay_ms`` is 0.

    Uses a standard delay level if one fits exactly, because every broker supports them.

    Raises:
        UsageError: not a standard level, and ``any_delay`` is False (RocketMQ before 5.0).
    """
    if delay_ms <= 0:
        return b""
    if delay_ms in limits.DELAY_LEVELS_MS:
        return names.encode([(names.DELAY, str(limits.DELAY_LEVELS_MS.index(delay_ms) + 1))])
    if not any_delay:
        levels = ", ".join(f"{level // 1000}" for level in limits.DELAY_LEVELS_MS)
        raise UsageError(f"this broker cannot delay by {delay_ms} ms", hint=f"it knows {levels} seconds")
    if delay_ms % 1000:
        return names.encode([(names.TIMER_DELAY_MS, str(delay_ms))])
    return names.encode([(names.TIMER_DELAY_SEC, str(delay_ms // 1000))])
