"""CloudEvents 1.0 as messages, as the RocketMQ binding of the Java SDK (module ``cloudevents-rocketmq``) writes and reads them.

- **Binary mode**: attributes and extensions are properties ``CE_...``, ``datacontenttype`` is ``CE_contenttype``, the body is the data. A
  message must have a body: without data it is one byte, 0.
- **Structured mode**: ``CE_contenttype`` is ``application/cloudevents+json``, and the body is the whole event.

Pure: it composes messages and reads them. ``id`` is the key of the message in both modes, so that tools find it, and the extension
``partitionkey`` its sharding key.
"""

import base64
import builtins
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from halfmq.client.bodies import from_json
from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage, compose, encode_body
from halfmq.errors import UsageError

_T = TypeVar("_T")
#: What an extension may be. In binary mode it is text when it is read again.
Extension: TypeAlias = str | bool | int

_PREFIX: Final = "CE_"
_CONTENT_TYPE: Final = "CE_contenttype"
_SPEC_VERSION: Final = "1.0"
_STRUCTURED: Final = "application/cloudevents+json"
_STRUCTURED_HINT: Final = "compose_event(..., structured=True)"
_JSON: Final = "application/json"
_NO_DATA: Final = b"\0"
#: CloudEvents 1.0, "Naming conventions", and the characters that it excludes from strings.
_NAME: Final = re.compile(r"[a-z0-9]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_IS_JSON: Final = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_REQUIRED: Final = ("id", "source", "type")
_OPTIONAL: Final = ("subject", "time", "datacontenttype", "dataschema")
_OWN: Final = frozenset((*_REQUIRED, *_OPTIONAL, "specversion", "data", "data_base64"))
#: Of the column of an inbox, without the sign that it puts behind a key that ends with a space (``halfmq.sql``).
_INBOX_KEY_CHARS_MAX: Final = 254


class NotACloudEvent(ValueError):
    """A message is no CloudEvent of version 1.0. Another attempt would not help: ``Retry(dead_on=(NotACloudEvent,))``."""


@dataclass(frozen=True, kw_only=True)
class CloudEvent:
    """An event. ``id`` and ``source`` together name it: who sends it again sends the same.

    ``data``: bytes as they are, text, or anything else that has a JSON form, as a body; of a received event always bytes, None if there is
    none. ``time``: with a time zone. ``datacontenttype`` is ``application/json`` or ``text/plain`` if data that is not bytes has none.

    Raises:
        UsageError: an attribute is no CloudEvent's.
    """

    id: str
    source: str
    type: str
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    data: object = None

    def __post_init__(self) -> None:
        for name, value in self.attributes().items():
            _check(name, value)
        if self.time is not None and self.time.tzinfo is None:
            raise UsageError("the time of an event has no time zone", hint="datetime.now(UTC)")
        if not isinstance(self.data, bytes | None) and self.datacontenttype is None:
            object.__setattr__(self, "datacontenttype", "text/plain" if isinstance(self.data, str) else _JSON)

    def attributes(self) -> dict[str, Any]:
        """Those that it has, with ``specversion`` and the extensions; ``time`` is a datetime."""
        own = {name: value for name in (*_REQUIRED, *_OPTIONAL) if (value := getattr(self, name)) is not None}
        if taken := self.extensions.keys() & _OWN:
            raise UsageError(f"{min(taken)!r} is no extension of an event", hint="it is an argument, or reserved")
        return {"specversion": _SPEC_VERSION, **own, **self.extensions}

    def decode(self, into: builtins.type[_T]) -> _T:
        """Data decoded into type ``into``, as ``Message.decode``.

        Raises:
            msgspec.DecodeError, msgspec.ValidationError, ``pydantic.ValidationError``, UnicodeDecodeError: as there. UsageError: no data.
        """
        data = self._data()
        if data is None:
            raise UsageError("the event has no data")
        if into is bytes:
            return cast(_T, data)
        return cast(_T, data.decode() if into is str else from_json(data, into))

    def _data(self) -> bytes | None:
        """Without any there is none: the binding does not distinguish it from empty data."""
        is_empty = self.data is None or (isinstance(self.data, bytes | str) and not self.data)
        return None if is_empty else encode_body(self.data)


def compose_event(
    topic: str, event: CloudEvent, *, structured: bool = False, tag: str | None = None, delay: float | None = None
) -> OutgoingMessage:
    """A message for ``send``, ``tx.send`` and ``prepare``; no I/O. ``tag``, ``delay``: as for ``compose``.

    Raises:
        UsageError: data has no JSON form, or ``partitionkey`` is empty; in binary mode also for what a reader would take for something
            else: data that is one byte 0, an extension that is empty or named ``contenttype``, and a ``datacontenttype`` that says that the
            body is an event.
        InvalidName, MessageTooLarge: as ``compose``.
    """
    if structured:
        properties, body = {_CONTENT_TYPE: _STRUCTURED}, _structured(event)
    else:
        properties, body = _binary(event)
    ordered_by = event.extensions.get("partitionkey")
    return compose(
        topic,
        body,
        tag=tag,
        key=None if any(map(str.isspace, event.id)) else event.id,  # keys are separated by spaces
        sharding_key=None if ordered_by is None else _text(ordered_by),
        delay=delay,
        properties=properties,
    )


def from_message(message: Message) -> CloudEvent:
    """The event of a message in either mode.

    Raises:
        NotACloudEvent: it is none, or of another version or format.
    """
    content_type = message.properties.get(_CONTENT_TYPE, "")
    try:
        if _is_of_event(content_type):
            if content_type.partition(";")[0].strip().lower() != _STRUCTURED:
                raise NotACloudEvent(f"{message!r} is in the format {content_type!r}, which is not supported")
            return _from_structured(message.body)
        return _from_binary(message.properties, message.body)
    except (msgspec.DecodeError, UsageError, ValueError, TypeError) as error:
        if isinstance(error, NotACloudEvent):
            raise
        raise NotACloudEvent(f"{message!r} is no CloudEvent: {error}") from error


def inbox_key(message: Message) -> str:
    """``source`` and ``id``, for an inbox that recognises an event whichever message brings it: ``Inbox(metadata, key=inbox_key)``.

    Raises:
        NotACloudEvent: as ``from_message``.
    """
    event = from_message(message)
    # A URI reference has no space.
    key = f"{event.source} {event.id}"
    return key if len(key) <= _INBOX_KEY_CHARS_MAX else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _is_of_event(content_type: str) -> bool:
    """Whether it says that the body is an event, and not its data."""
    return content_type.lower().startswith("application/cloudevents")


def _binary(event: CloudEvent) -> tuple[dict[str, str], bytes]:
    data = event._data()
    if data == _NO_DATA:
        raise UsageError("data of one byte 0 is no data in binary mode", hint=_STRUCTURED_HINT)
    if _CONTENT_TYPE.removeprefix(_PREFIX) in event.extensions:
        raise UsageError(f"in binary mode the property {_CONTENT_TYPE} is datacontenttype", hint=_STRUCTURED_HINT)
    if event.datacontenttype is not None and _is_of_event(event.datacontenttype):
        raise UsageError(f"{event.datacontenttype} says that the message is in structured mode", hint=_STRUCTURED_HINT)
    properties = {_property(name): _text(value) for name, value in event.attributes().items()}
    return properties, _NO_DATA if data is None else data


def _from_binary(properties: Mapping[str, str], body: bytes) -> CloudEvent:
    found = {name.removeprefix(_PREFIX): value for name, value in properties.items() if name.startswith(_PREFIX)}
    if _CONTENT_TYPE in properties:
        found.setdefault("datacontenttype", found.pop("contenttype"))
    return _event(found, None if body == _NO_DATA else body)


def _property(name: str) -> str:
    return _CONTENT_TYPE if name == "datacontenttype" else f"{_PREFIX}{name}"


def _structured(event: CloudEvent) -> bytes:
    """The JSON format of CloudEvents 1.0."""
    members = {
        name: _text(value) if isinstance(value, datetime) else value for name, value in event.attributes().items()
    }
    data = event._data()
    if data is not None:
        members |= _data_member(data, event.datacontenttype)
    return msgspec.json.encode(members)


def _data_member(data: bytes, content_type: str | None) -> dict[str, Any]:
    if content_type is not None and _IS_JSON.fullmatch(content_type):
        try:
            return {"data": msgspec.json.decode(data)}
        except msgspec.DecodeError as error:
            raise UsageError(f"data is {content_type}, and no JSON: {error}") from error
    if content_type is not None and content_type.lower().startswith("text/"):
        try:
            return {"data": data.decode()}
        except UnicodeDecodeError:  # of another charset
            pass
    return {"data_base64": base64.b64encode(data).decode()}


def _from_structured(body: bytes) -> CloudEvent:
    found = msgspec.json.decode(body, type=dict[str, Any])
    if found.keys() >= {"data", "data_base64"}:
        raise ValueError("it has data and data_base64")
    encoded, data = found.pop("data_base64", None), None
    if encoded is not None:
        data = base64.b64decode(encoded, validate=True)
    if "data" in found:
        given = found.pop("data")
        content_type = found.setdefault("datacontenttype", _JSON)  # what its absence means in this format
        is_text = isinstance(given, str) and not _IS_JSON.fullmatch(content_type)
        data = given.encode() if is_text else msgspec.json.encode(given)
    return _event({name: value for name, value in found.items() if value is not None}, data)


def _event(found: dict[str, Any], data: bytes | None) -> CloudEvent:
    version = found.pop("specversion", None)
    if version != _SPEC_VERSION:
        raise NotACloudEvent("no specversion" if version is None else f"specversion {version!r} is not {_SPEC_VERSION}")
    own = {name: found.pop(name) for name in (*_REQUIRED, *_OPTIONAL) if name in found}
    if "time" in own:
        own["time"] = msgspec.convert(own["time"], datetime)
    return CloudEvent(**own, extensions=found, data=data)


def _check(name: str, value: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"an attribute of an event is named {name!r}", hint="lower-case letters and digits: traceid")
    if name == "time":
        if not isinstance(value, datetime):
            raise UsageError("the time of an event is no datetime", hint="datetime.now(UTC)")
    elif not isinstance(value, str | bool | int) or (name in _OWN and not isinstance(value, str)):
        raise UsageError(f"attribute {name!r} of an event is of type {type(value).__name__}", hint="text")
    elif isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31:
        raise UsageError(f"attribute {name!r} of an event does not fit in 32 bits", hint="text")
    elif isinstance(value, str) and _CONTROL.search(value):
        raise UsageError(f"attribute {name!r} of an event has a control character")
    elif name in _OWN and not value:
        raise UsageError(f"attribute {name!r} of an event is empty")
    elif name == "source" and any(map(str.isspace, cast(str, value))):
        raise UsageError("the source of an event has a space", hint="a URI reference: /shop/orders")


def _text(value: object) -> str:
    """The canonical text of CloudEvents' type system."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)
