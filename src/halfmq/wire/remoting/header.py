"""Decodes requests and responses from frames, and encodes them.

JSON headers of frequent commands (sends, END_TRANSACTION, pulls, offset commits) are decoded directly into their structs. Other
commands, and headers that this decoder rejects (booleans as numbers, nulls), take the general path, with the same result.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.queue_reads import PullRequest
from halfmq.model.text_fields import Int32, read_fields, without_empty
from halfmq.wire.remoting import frame as frames
from halfmq.wire.remoting.binary_header import decode_binary_header, encode_binary_header
from halfmq.wire.remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGE_OTHER,
    LANGUAGE_OURS,
    LANGUAGES,
    VERSION_OURS,
    RequestCode,
)
from halfmq.wire.remoting.fields import (
    FIELDS_OF_COMMAND,
    SEND_LETTER_OF_NAME,
    EndFields,
    SendFields,
    UpdateOffsetFields,
    read_answer_fields,
)

E = TypeVar("E")
F = TypeVar("F")
S = TypeVar("S", bound=Struct)
Bytes = bytes | bytearray | memoryview


class Request(Struct, Generic[E], gc=False, kw_only=True):
    """A request, or (``is_response``) a response. ``ext``: the struct of the command from ``fields``; otherwise a dict of text."""

    # In Java's order, which is the fastest for the decoder.
    code: Int32
    ext: E = field(name="extFields")
    flag: Int32 = 0
    #: Name of a ``LanguageCode``.
    language: str = "JAVA"
    opaque: Int32
    remark: str | None = None
    version: Int32 = 0
    # ``decode`` always sets the next two, so JSON keys with these names have no effect.
    body: bytes = b""
    #: The header was in the ROCKETMQ serialisation; the response must be, too.
    binary: bool = False

    @property
    def is_response(self) -> bool:
        """Whether it is a response."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response: the receiver must not send one, not even an error."""
        return self.flag & FLAG_ONEWAY != 0

    def read(self: "Request[Any]", shape: type[S]) -> S:
        """The fields of a response. The caller checks ``code`` first: errors have no fields.

        Raises:
            ProtocolError: a field is missing or malformed.
        """
        return read_answer_fields(shape, self.ext, f"a response with code {self.code}")

    def to_answer(self, ext: F) -> "Request[F]":
        """A copy with another ``ext`` and only the fields for a later response: body, remark and fields could take a whole frame."""
        language = self.language if self.language in LANGUAGES else LANGUAGE_OTHER
        return Request(
            code=self.code, ext=ext, flag=self.flag, language=language, opaque=self.opaque, version=self.version,
            binary=self.binary,
        )  # fmt: skip


class InvalidHeader(ProtocolError):
    """Fields of a command are missing or malformed.

    The caller may keep the connection: respond to ``request`` with code 1 and this text, unless it is one-way, as RocketMQ does.
    ``request.ext`` is the dict of the received fields.
    """

    def __init__(self, message: str, request: Request[dict[str, str]]) -> None:
        super().__init__(message)
        self.request = request


def _json_reader(request: Any) -> Callable[[bytes], Request[Any]]:
    # Not strict: converts "4" to an int and "true" to a bool, since Java sends all values as text.
    reader: Callable[[bytes], Request[Any]] = msgspec.json.Decoder(request, strict=False).decode
    return reader


#: Fast decoders, by the three bytes after ``{"code":``, where all known clients write the code: (code, decoder).
_FAST: Final = {
    b"310": (310, _json_reader(Request[SendFields])),
    b"320": (320, _json_reader(Request[SendFields])),
    b"37,": (37, _json_reader(Request[EndFields])),
    b"11,": (11, _json_reader(Request[PullRequest])),
    b"15,": (15, _json_reader(Request[UpdateOffsetFields])),
}
#: Commands with the long names of the ``SendFields``.
_LONG_NAMES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})
#: Serialisation and header length as one word, and these bytes.
_start_of: Final = struct.Struct(">I8x3s").unpack_from
_word_of: Final = struct.Struct(">I").unpack_from


def decode(frame: bytes, fields_of: Mapping[int, type[Struct]] = FIELDS_OF_COMMAND) -> Request[Any]:
    """Decode a frame (without ``total``, as from ``FrameSplitter``). ``fields_of``: the structs of the fields of requests, by code.

    Raises:
        InvalidHeader: fields of the command are invalid; the caller may respond.
        ProtocolError: unreadable; the caller must close the connection.
    """
    try:
        word, start = _start_of(frame)
    except struct.error:  # shorter than any header with a code
        word, start = _word_of(frame)[0], b""
    header_end = 4 + (word & 0xFFFFFF)
    if header_end > len(frame):
        raise _too_long(header_end, frame)
    if word <= 0xFFFFFF:
        fast = _FAST.get(start)
        if fast is not None:
            code, read = fast
            try:
                request = read(frame[4:header_end])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass  # the general path decodes it or raises
            else:
                if request.code == code and not request.flag & FLAG_RESPONSE:
                    request.body = frame[header_end:]
                    request.binary = False
                    return request
    return _typed(_loose(frame, word, header_end), fields_of)


def decode_text(frame: bytes) -> Request[dict[str, str]]:
    """As ``decode``, with all fields as the text that was sent, the empty ones too: what a signature is of."""
    word = _word_of(frame)[0]
    header_end = 4 + (word & 0xFFFFFF)
    if header_end > len(frame):
        raise _too_long(header_end, frame)
    return _loose(frame, word, header_end)


def _too_long(header_end: int, frame: bytes) -> ProtocolError:
    return ProtocolError(f"a header of {header_end - 4} bytes was announced in a frame of {len(frame)}")


def _loose(frame: bytes, word: int, header_end: int) -> Request[dict[str, str]]:
    if word <= 0xFFFFFF:
        loose = _decode_json(frame[4:header_end])
    elif word >> 24 == 1:
        loose = _decode_binary(frame[4:header_end])
    else:
        raise ProtocolError(f"serialisation {word >> 24} is unknown", hint="0 is JSON, 1 is ROCKETMQ")
    loose.body = frame[header_end:]
    return loose


Scalar = str | int | float | bool | None


class _WithoutFields(Struct, gc=False):
    """Header of any command, whose fields are skipped. Typed, so that a malicious header cannot create other objects."""

    code: Scalar = None
    flag: Scalar = None
    language: Scalar = "JAVA"
    opaque: Scalar = None
    remark: Scalar = None
    version: Scalar = None


class _Loose(_WithoutFields, gc=False):
    """Header of any command."""

    ext: dict[str, Scalar] | None = field(name="extFields", default=None)


_read_loose: Final = msgspec.json.Decoder(_Loose).decode
_read_without_fields: Final = msgspec.json.Decoder(_WithoutFields).decode
#: Headers up to this size are not examined: they cannot have so many fields that it matters.
_SMALL_HEADER_BYTES: Final = 4_096
#: A header with more quotation marks, in addition to escaped ones, has more fields than it may: a name has two, and so has a value.
_QUOTES_MAX: Final = 4 * limits.HEADER_FIELDS_MAX + 64


def _decode_json(header: bytes) -> Request[dict[str, str]]:
    # Counted before they are decoded: a header of 4 MiB has space for 400,000 fields, which take 200 ms. An escaped mark in a text is not
    # counted; where a text ends with an escaped backslash its end is not counted either, but its beginning is.
    has_many = len(header) > _SMALL_HEADER_BYTES and header.count(b'"') - header.count(b'\\"') > _QUOTES_MAX
    try:
        keys = _read_without_fields(header) if has_many else _read_loose(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a header of {len(header)} bytes cannot be read: {error}") from error
    remark = keys.remark
    request = Request(
        code=_int32(keys.code, "code"),
        ext=_texts(keys.ext) if isinstance(keys, _Loose) and keys.ext else {},
        flag=_int32(keys.flag, "flag"),
        language=_language(keys.language),
        # If absent, Java's decoder takes a new number; no response could match it, so 0 is equivalent.
        opaque=_int32(keys.opaque, "opaque"),
        remark=None if remark is None else str(remark),
        version=_int32(keys.version, "version"),
    )
    if has_many:
        raise _too_many_fields(request)
    return request


def _too_many_fields(request: Request[dict[str, str]]) -> "InvalidHeader":
    request.ext = {}
    return InvalidHeader(f"a header of command {request.code} has more than {limits.HEADER_FIELDS_MAX} fields", request)


def _texts(ext: Mapping[str, Scalar]) -> dict[str, str]:
    # A text is almost every value, and a call takes longer than to look.
    return {
        name: scalar if type(scalar) is str else _scalar_text(scalar)
        for name, scalar in ext.items()
        if scalar is not None
    }


def _int32(value: Scalar, name: str) -> int:
    if value is None:
        return 0
    try:
        return msgspec.convert(value, Int32, strict=False)
    except msgspec.ValidationError as error:
        text = f"{name} of a header: a whole number of 32 bits is expected, not {_scalar_text(value)[:64]!r}"
        raise ProtocolError(text) from error


def _language(value: Scalar) -> str:
    """Java writes the name; fastjson also accepts the ordinal."""
    if isinstance(value, int):
        return LANGUAGES[value] if 0 <= value < len(LANGUAGES) else LANGUAGE_OTHER
    return value if isinstance(value, str) else LANGUAGE_OTHER


def _scalar_text(value: Scalar) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_binary(header: bytes) -> Request[dict[str, str]]:
    code, language, version, opaque, flag, remark, ext, has_many = decode_binary_header(header)
    request = Request(
        code=code, ext=ext, flag=flag, language=language, opaque=opaque, remark=remark, version=version, binary=True
    )
    if has_many:
        raise _too_many_fields(request)
    return request


def _typed(loose: Request[dict[str, str]], fields_of: Mapping[int, type[Struct]]) -> Request[Any]:
    wanted = None if loose.flag & FLAG_RESPONSE else fields_of.get(loose.code)
    ext = loose.ext
    if len(ext) > limits.HEADER_FIELDS_MAX:
        raise _too_many_fields(loose)
    if wanted is None:
        loose.ext = without_empty(ext) if "" in ext.values() else ext
        return loose
    if loose.code in _LONG_NAMES:
        ext = {SEND_LETTER_OF_NAME.get(name, name): value for name, value in ext.items()}
    typed: Request[Any] = loose
    try:
        typed.ext = read_fields(wanted, ext)
    except msgspec.ValidationError as error:
        loose.ext = without_empty(loose.ext)
        raise InvalidHeader(f"fields of command {loose.code}: {error}", loose) from error
    return typed


# --- responses ---------------------------------------------------------------------------------------------------

#: End of all JSON headers. Ext values are always text: the C++ client reads a number as 0.
_JSON_TAIL: Final = f',"language":"{LANGUAGE_OURS}","opaque":%d,"version":{VERSION_OURS}}}'.encode()
_PULLED_JSON: Final = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    b'"flag":1,"remark":"%b"' + _JSON_TAIL
)
_SENT_JSON: Final = (
    b'{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1' + _JSON_TAIL
)
_EMPTY_JSON: Final = b'{"code":0,"extFields":{},"flag":1' + _JSON_TAIL


def encode_send_response(
    opaque: int, message_id: bytes, queue_id: int, queue_offset: int, transaction_id: bytes, binary: bool = False
) -> bytes:
    """The answer to a stored message, whole frame. ``message_id`` is the offset message id (for a batch: comma-joined), in UTF-8 as
    ``transaction_id``, which must hold no character that JSON escapes; it is left empty otherwise by the caller.
    """
    if binary:
        ext = (
            ("msgId", message_id.decode()),
            ("queueId", str(queue_id)),
            ("queueOffset", str(queue_offset)),
            ("transactionId", transaction_id.decode()),
            ("MSG_REGION", "DefaultRegion"),
            ("TRACE_ON", "true"),
        )
        return frames.assemble(encode_binary_header(0, opaque, FLAG_RESPONSE, None, ext), binary=True)
    return frames.assemble_head(_SENT_JSON % (message_id, queue_id, queue_offset, transaction_id, opaque), 0)


def encode_empty_response(opaque: int, *, binary: bool = False) -> bytes:
    """A response with code 0 and no fields, as a complete frame."""
    if binary:
        return frames.assemble(encode_binary_header(0, opaque, FLAG_RESPONSE, None, ()), binary=True)
    return frames.assemble_head(_EMPTY_JSON % opaque, 0)


def encode_pull_response_head(
    request: Request[Any], code: int, remark: str, next_offset: int, min_offset: int, max_offset: int, body_bytes: int
) -> bytes:
    """A pull response without its body; the caller sends ``body_bytes`` of stored messages after it.

    ``remark`` is the name of the status (FOUND, PULL_NOT_FOUND, ...); it is not escaped.
    """
    if request.binary:
        ext = (
            ("suggestWhichBrokerId", "0"),
            ("nextBeginOffset", str(next_offset)),
            ("minOffset", str(min_offset)),
            ("maxOffset", str(max_offset)),
        )
        header = encode_binary_header(code, request.opaque, FLAG_RESPONSE, remark, ext)
        return frames.assemble_head(header, body_bytes, binary=True)
    header = _PULLED_JSON % (code, next_offset, min_offset, max_offset, remark.encode(), request.opaque)
    return frames.assemble_head(header, body_bytes)


def encode_response(
    request: Request[Any],
    code: int,
    remark: str | None = None,
    ext: Mapping[str, object] | None = None,
    body: Bytes = b"",
) -> bytes:
    """A response as a complete frame, in the serialisation of ``request``.

    ``ext`` values are written as text (True as ``true``). ``extFields`` is always present, since clients read it without a check.
    Characters that UTF-8 cannot encode become ``?``.
    """
    header = _header(code, request.opaque, FLAG_RESPONSE, _bounded(remark), ext, request.binary)
    return frames.assemble(header, body, request.binary)


def encode_response_head(
    request: Request[Any], code: int, remark: str | None, ext: Mapping[str, object] | None, body_bytes: int
) -> bytes:
    """As ``encode_response``, without the body; the caller sends ``body_bytes`` after it."""
    header = _header(code, request.opaque, FLAG_RESPONSE, _bounded(remark), ext, request.binary)
    return frames.assemble_head(header, body_bytes, request.binary)


def _bounded(remark: str | None) -> str | None:
    """It may quote what a peer sent."""
    if remark is None or len(remark) <= limits.REMARK_CHARS_MAX:
        return remark
    return remark[: limits.REMARK_CHARS_MAX - 3] + "..."


# --- requests ----------------------------------------------------------------------------------------------------


def encode_oneway_request(code: int, opaque: int, ext: Mapping[str, object] | None = None, body: Bytes = b"") -> bytes:
    """A push to a client (39, 40, ...) as a complete frame, always in JSON, which all clients support."""
    return frames.assemble(_header(code, opaque, FLAG_ONEWAY, None, ext, False), body)


def encode_request(
    code: int,
    opaque: int,
    ext: Mapping[str, object] | None = None,
    body: Bytes = b"",
    *,
    oneway: bool = False,
    remark: str | None = None,
    binary: bool = False,
) -> bytes:
    """A request as a complete frame. None values in ``ext`` are omitted."""
    header = _header(code, opaque, FLAG_ONEWAY if oneway else 0, remark, ext, binary)
    return frames.assemble(header, body, binary)


def _header(
    code: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, object] | None, binary: bool
) -> bytes:
    pairs = (
        {n: value if type(value) is str else ext_text(value) for n, value in ext.items() if value is not None}
        if ext
        else {}
    )
    if binary:
        return encode_binary_header(code, opaque, flag, remark, pairs.items())
    keys = {
        "code": code,
        "extFields": pairs,
        "flag": flag,
        "language": LANGUAGE_OURS,
        "opaque": opaque,
        "version": VERSION_OURS,
    }
    if remark is not None:
        keys["remark"] = remark
    return _json_bytes(keys)


def ext_text(value: object) -> str:
    """A header field as Java writes it."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def _json_bytes(keys: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(keys)
    except UnicodeEncodeError:
        # A lone surrogate, for instance of a file name in an error text. The response must be sent nevertheless.
        return msgspec.json.encode(_encodable(keys))


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
