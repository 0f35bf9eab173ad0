"""A frame to a command, and commands and answers to frames.

The commands of the hot path (sends, END_TRANSACTION, pulls, offsets) are read from JSON straight into their typed
struct: no dict is made. Everything else, and every header that the fast reader refuses (numbers as booleans, nulls,
another order of keys), takes the general way, which gives the same values.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from halfmq.errors import ProtocolError
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
    Int32,
    PullFields,
    SendFields,
    UpdateOffsetFields,
)

E = TypeVar("E")
F = TypeVar("F")
Bytes = bytes | bytearray | memoryview


class Request(Struct, Generic[E], gc=False, kw_only=True):
    """A command of the peer, or (``is_response``) its answer to one of ours.

    ``ext`` is the command's struct from ``fields``, or a dict of text for a command that has none and for answers.
    """

    # In the order in which Java writes them: the reader looks for the next key behind the last one.
    code: Int32
    ext: E = field(name="extFields")
    flag: Int32 = 0
    #: Name of a ``LanguageCode``.
    language: str = "JAVA"
    opaque: Int32
    remark: str | None = None
    version: Int32 = 0
    # ``decode`` always sets the next two, so that a key of that name in a JSON header means nothing.
    body: bytes = b""
    #: The header came in the ROCKETMQ serialisation: answer in the same.
    binary: bool = False

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """No answer may be sent, not even a refusal."""
        return self.flag & FLAG_ONEWAY != 0

    def to_answer(self, ext: F) -> "Request[F]":
        """What an answer needs, and ``ext``: for who waits. Of the rest (body, remark, fields) a peer may send a whole frame."""
        language = self.language if self.language in LANGUAGES else LANGUAGE_OTHER
        return Request(
            code=self.code, ext=ext, flag=self.flag, language=language, opaque=self.opaque, version=self.version,
            binary=self.binary,
        )  # fmt: skip


class InvalidHeader(ProtocolError):
    """The frame is whole, but fields of the command are missing or malformed.

    The connection may live: answer ``request`` with code 1 and this text unless it is one-way, as RocketMQ does.
    ``request.ext`` is the dict of what came.
    """

    def __init__(self, message: str, request: Request[dict[str, str]]) -> None:
        super().__init__(message)
        self.request = request


def _json_reader(request: Any) -> Callable[[bytes], Request[Any]]:
    # Not strict: "4" is read into an int and "true" into a bool, since Java sends every value as text.
    reader: Callable[[bytes], Request[Any]] = msgspec.json.Decoder(request, strict=False).decode
    return reader


#: By the three bytes behind ``{"code":``, where every known client writes the code: the code that it is then, and the reader.
_FAST: Final = {
    b"310": (310, _json_reader(Request[SendFields])),
    b"320": (320, _json_reader(Request[SendFields])),
    b"37,": (37, _json_reader(Request[EndFields])),
    b"11,": (11, _json_reader(Request[PullFields])),
    b"15,": (15, _json_reader(Request[UpdateOffsetFields])),
}
#: Commands that say the names of ``SendFields`` in full.
_LONG_NAMES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})
#: In a frame: behind the word with the header's length, and ``{"code":``.
_AT_CODE: Final = 12
_AT_CODE_END: Final = 15
_word_at: Final = struct.Struct(">I").unpack_from


def decode(frame: bytes) -> Request[Any]:
    """Read a frame (without ``total``, as ``FrameSplitter`` gives it).

    Raises:
        InvalidHeader: the command's fields are wrong; the connection may live.
        ProtocolError: nothing can be answered; close the connection.
    """
    word: int = _word_at(frame)[0]
    header_end = 4 + (word & 0xFFFFFF)
    if header_end > len(frame):
        raise ProtocolError(f"a header of {header_end - 4} bytes was announced in a frame of {len(frame)}")
    if word <= 0xFFFFFF:
        fast = _FAST.get(frame[_AT_CODE:_AT_CODE_END])
        if fast is not None:
            try:
                request = fast[1](frame[4:header_end])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass  # the general way reads it, or says what is wrong with it
            else:
                if request.code == fast[0] and not request.flag & FLAG_RESPONSE:
                    request.body = frame[header_end:]
                    request.binary = False
                    return request
        loose = _decode_json(frame[4:header_end])
    elif word >> 24 == 1:
        loose = _decode_binary(frame[4:header_end])
    else:
        raise ProtocolError(f"serialisation {word >> 24} is unknown", hint="0 is JSON, 1 is ROCKETMQ")
    loose.body = frame[header_end:]
    return _typed(loose)


Scalar = str | int | float | bool | None


class _Loose(Struct, gc=False):
    """A header of any command. Typed, so that a hostile one makes no objects but these: what is unknown is skipped."""

    code: Scalar = None
    flag: Scalar = None
    language: Scalar = "JAVA"
    opaque: Scalar = None
    remark: Scalar = None
    version: Scalar = None
    ext: dict[str, Scalar] | None = field(name="extFields", default=None)


_read_loose: Final = msgspec.json.Decoder(_Loose).decode


def _decode_json(header: bytes) -> Request[dict[str, str]]:
    try:
        keys = _read_loose(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a header of {len(header)} bytes cannot be read: {error}") from error
    remark = keys.remark
    return Request(
        code=_int32(keys.code, "code"),
        ext={name: _scalar_text(scalar) for name, scalar in keys.ext.items() if scalar is not None} if keys.ext else {},
        flag=_int32(keys.flag, "flag"),
        language=_language(keys.language),
        # Java's reader invents a number when there is none; nobody could match the answer, so 0 does as well.
        opaque=_int32(keys.opaque, "opaque"),
        remark=None if remark is None else str(remark),
        version=_int32(keys.version, "version"),
    )


def _int32(value: Scalar, name: str) -> int:
    if value is None:
        return 0
    try:
        return msgspec.convert(value, Int32, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{name} of a header: {error}") from error


def _language(value: Scalar) -> str:
    """Java writes the name; fastjson also takes the ordinal."""
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
    code, language, version, opaque, flag, remark, ext = decode_binary_header(header)
    return Request(
        code=code,
        ext=ext,
        flag=flag,
        language=language,
        opaque=opaque,
        remark=remark,
        version=version,
        binary=True,
    )


def _typed(loose: Request[dict[str, str]]) -> Request[Any]:
    wanted = None if loose.flag & FLAG_RESPONSE else FIELDS_OF_COMMAND.get(loose.code)
    ext = loose.ext
    if wanted is None:
        loose.ext = _without_empty(ext)
        return loose
    if loose.code in _LONG_NAMES:
        ext = {SEND_LETTER_OF_NAME.get(name, name): value for name, value in ext.items()}
    typed: Request[Any] = loose
    try:
        typed.ext = msgspec.convert(ext, wanted, strict=False)
    except msgspec.ValidationError:
        loose.ext = _without_empty(loose.ext)
        try:
            typed.ext = msgspec.convert(_without_empty(ext), wanted, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidHeader(f"fields of command {loose.code}: {error}", loose) from error
    return typed


def _without_empty(ext: dict[str, str]) -> dict[str, str]:
    """Empty text is as if missing where it cannot stand, since a binary header cannot say it."""
    return {name: text for name, text in ext.items() if text} if "" in ext.values() else ext


# --- answers -----------------------------------------------------------------------------------------------------

#: How every JSON header of ours ends. Ext values are always text: the C++ client reads a number as 0.
_JSON_TAIL: Final = f',"language":"{LANGUAGE_OURS}","opaque":%d,"version":{VERSION_OURS}}}'.encode()
_PULLED_JSON: Final = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    b'"flag":1,"remark":"%b"' + _JSON_TAIL
)
_SENT_JSON: Final = '{"code":0,"extFields":{"msgId":"'
_LANGUAGE_JSON: Final = f'"language":"{LANGUAGE_OURS}","opaque":'
_VERSION_JSON: Final = f',"version":{VERSION_OURS}}}'
_EMPTY_JSON: Final = b'{"code":0,"extFields":{},"flag":1' + _JSON_TAIL


def encode_send_response(
    opaque: int, message_id: str, queue_id: int, queue_offset: int, transaction_id: str, *, binary: bool = False
) -> bytes:
    """The answer to a stored message, whole frame. ``message_id`` is the offset message id (for a batch: comma-joined).

    ``transaction_id`` must hold no character that JSON escapes; it is left empty otherwise by the caller.
    """
    if binary:
        ext = (
            ("msgId", message_id),
            ("queueId", str(queue_id)),
            ("queueOffset", str(queue_offset)),
            ("transactionId", transaction_id),
            ("MSG_REGION", "DefaultRegion"),
            ("TRACE_ON", "true"),
        )
        return frames.assemble(encode_binary_header(0, opaque, FLAG_RESPONSE, None, ext), binary=True)
    # An f-string, though the others are bytes: this is for every message, and costs a fifth less.
    header = (
        f'{_SENT_JSON}{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}","transactionId":"{transaction_id}'
        f'","MSG_REGION":"DefaultRegion","TRACE_ON":"true"}},"flag":1,{_LANGUAGE_JSON}{opaque}{_VERSION_JSON}'
    ).encode()
    return frames.assemble_head(header, 0)


def encode_empty_response(opaque: int, *, binary: bool = False) -> bytes:
    """Code 0 and nothing else, whole frame."""
    if binary:
        return frames.assemble(encode_binary_header(0, opaque, FLAG_RESPONSE, None, ()), binary=True)
    return frames.assemble_head(_EMPTY_JSON % opaque, 0)


def encode_pull_response_head(
    request: Request[Any], code: int, remark: str, next_offset: int, min_offset: int, max_offset: int, body_bytes: int
) -> bytes:
    """The answer to a pull up to its body; send ``body_bytes`` of stored messages behind it.

    ``remark`` is the status's name (FOUND, PULL_NOT_FOUND...): plain letters, nothing that JSON escapes.
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
    """Any answer, whole frame, in the serialisation that ``request`` came in.

    ``ext`` values are written as text (True as ``true``). The object is always there, since clients read it unasked.
    Raises nothing for text that is not valid Unicode: what cannot be encoded becomes ``?``.
    """
    return _encode(code, request.opaque, FLAG_RESPONSE, remark, ext, body, binary=request.binary)


# --- commands of ours --------------------------------------------------------------------------------------------


def encode_oneway_request(code: int, opaque: int, ext: Mapping[str, object] | None = None, body: Bytes = b"") -> bytes:
    """A push to a client (39, 40...), whole frame, always in JSON: every client reads it."""
    return _encode(code, opaque, FLAG_ONEWAY, None, ext, body, binary=False)


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
    """A command of a client, whole frame. None values in ``ext`` are left out."""
    return _encode(code, opaque, FLAG_ONEWAY if oneway else 0, remark, ext, body, binary=binary)


def _encode(
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: Mapping[str, object] | None,
    body: Bytes,
    *,
    binary: bool,
) -> bytes:
    pairs = {name: ext_text(value) for name, value in ext.items() if value is not None} if ext else {}
    if binary:
        return frames.assemble(encode_binary_header(code, opaque, flag, remark, pairs.items()), body, binary=True)
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
    return frames.assemble(_json_bytes(keys), body)


def ext_text(value: object) -> str:
    """How Java writes a header field."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def _json_bytes(keys: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(keys)
    except UnicodeEncodeError:
        # A lone surrogate, as from an undecodable file name in an error text. An answer must leave all the same.
        return msgspec.json.encode(_encodable(keys))


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
