"""Reads and writes JSON with fastjson's extensions.

RocketMQ's bodies use two: integer keys without quotes (``{0:"10.0.0.1:10911"}``), and objects as keys
(``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``). As in fastjson, such an object may also be a JSON string. ``loads`` returns all
keys as text; for an object key call ``loads`` on this text.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from halfmq.errors import ProtocolError

#: Maximum nesting; RocketMQ's bodies stay below ten.
DEPTH_MAX: Final = 64
#: Maximum body, bytes. Bounds memory: decoding a malicious body takes 30 times its size. A cluster of a thousand brokers has 200 KiB.
BYTES_MAX: Final = 1 << 20
#: Maximum body that is not standard JSON, bytes. Bounds time: the tolerant parser takes up to a second for it. Enough for the
#: route of a topic on a thousand brokers from a name server before 4.9.4.
TOLERANT_BYTES_MAX: Final = 1 << 18
#: The same for the body of a request, which the broker decodes while it serves nothing else: up to 30 ms. A heartbeat with a thousand
#: subscriptions has 200 KiB; clients write all these bodies as standard JSON.
REQUEST_BYTES_MAX: Final = 1 << 19
TOLERANT_REQUEST_BYTES_MAX: Final = 1 << 14

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR: Final = re.compile(r"[-+.0-9A-Za-z]+")


def at_most(body: bytes | bytearray | memoryview, bytes_max: int) -> bytes | bytearray | memoryview:
    """``body``, if it is small enough to decode. Raises ProtocolError."""
    if len(body) > bytes_max:
        raise ProtocolError(f"a JSON body of {len(body)} bytes; the maximum is {bytes_max}")
    return body


def loads_request(body: bytes | bytearray | memoryview) -> Any:
    """``loads`` for the body of a request, with lower bounds."""
    return loads(body, REQUEST_BYTES_MAX, TOLERANT_REQUEST_BYTES_MAX)


def loads(
    body: bytes | bytearray | memoryview, bytes_max: int = BYTES_MAX, tolerant_bytes_max: int = TOLERANT_BYTES_MAX
) -> Any:
    """Decode a body. Keys are always text: ``"0"`` for 0, compact JSON for an object.

    Raises:
        ProtocolError: neither JSON nor fastjson's JSON; nested deeper than ``DEPTH_MAX``; or too long.
    """
    try:
        value = msgspec.json.decode(at_most(body, bytes_max))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the tolerant parser reads it or raises
    else:
        if not _is_deep(value):
            return value
        raise ProtocolError(f"a JSON body is nested deeper than {DEPTH_MAX}")
    if len(body) > tolerant_bytes_max:
        raise ProtocolError(
            f"a body of {len(body)} bytes is not standard JSON; the maximum for fastjson's JSON is {tolerant_bytes_max}"
        )
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a body of {len(body)} bytes is not UTF-8: {error}") from error
    reader = _Reader(text)
    value = reader.value(0)
    reader.expect_end()
    return value


def _is_deep(value: Any) -> bool:
    """Whether it is nested deeper than ``DEPTH_MAX``: callers may recurse over it, as ``str`` does."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        if not inner:
            return False
        level = inner
    return any(isinstance(part, dict | list) for part in level)


def key_text(key: Mapping[str, Any]) -> str:
    """The text that ``loads`` returns for an object key."""
    return msgspec.json.encode(dict(key), order="sorted").decode()


def dumps(value: Any) -> bytes:
    """Compact standard JSON."""
    return msgspec.json.encode(value)


def dumps_object_keys(pairs: list[tuple[Any, Any]]) -> bytes:
    """A map with unquoted objects as keys, as in fastjson."""
    encode = msgspec.json.encode
    return b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in pairs) + b"}"


def dumps_integer_keys(mapping: Mapping[int, Any], *, quoted: bool) -> bytes:
    """A map with ascending integer keys, unquoted for old clients; see ``route``."""
    mark = b'"' if quoted else b""
    pairs = (b"%b%d%b:%b" % (mark, key, mark, msgspec.json.encode(mapping[key])) for key in sorted(mapping))
    return b"{" + b",".join(pairs) + b"}"


class _Reader:
    """Recursive descent parser; ``at`` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        #: Inside an object key, which cannot contain another: each level would double the escapes.
        self.in_key = False

    def value(self, depth: int) -> Any:
        match self._peek(depth):
            case "{":
                return self._map(depth)
            case "[":
                return self._list(depth)
            case _:
                return self._scalar()

    def expect_end(self) -> None:
        self._skip_space()
        if self.at != len(self.text):
            raise self._wrong("unexpected text after the value")

    def _map(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        self.at += 1
        while self._peek(depth) != "}":
            key = self._key(depth + 1)
            self._take(":")
            pairs[key] = self.value(depth + 1)
            if self._peek(depth) != "}":
                self._take(",")
        self.at += 1
        return pairs

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        while self._peek(depth) != "]":
            items.append(self.value(depth + 1))
            if self._peek(depth) != "]":
                self._take(",")
        self.at += 1
        return items

    def _key(self, depth: int) -> str:
        if self._peek(depth) == "{":
            return self._object_key(depth)
        value = self.value(depth)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self._wrong("a key is neither text nor a number nor an object")

    def _object_key(self, depth: int) -> str:
        if self.in_key:
            raise self._wrong("an object key inside an object key")
        self.in_key = True
        key = self._map(depth)
        self.in_key = False
        return key_text(key)

    def _scalar(self) -> Any:
        found = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
        if found is None:
            raise self._wrong("a value is missing")
        try:
            value = msgspec.json.decode(found.group())
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._wrong(str(error)) from error
        self.at = found.end()
        return value

    def _peek(self, depth: int) -> str:
        if depth > DEPTH_MAX:
            raise self._wrong(f"nested deeper than {DEPTH_MAX}")
        self._skip_space()
        return self.text[self.at : self.at + 1]

    def _take(self, mark: str) -> None:
        self._skip_space()
        if not self.text.startswith(mark, self.at):
            raise self._wrong(f"{mark!r} is missing")
        self.at += 1

    def _skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _wrong(self, what: str) -> ProtocolError:
        near = self.text[self.at : self.at + 20]
        return ProtocolError(f"a body is not JSON at character {self.at}: {what}", hint=f"near {near!r}")
