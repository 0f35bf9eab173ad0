"""The ROCKETMQ serialisation of a header: fixed fields, remark, ext fields as length-prefixed text.

    code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark length 4, remark | ext bytes 4
    { key length 2, key, value length 4, value } ...

Codes are at most 32,767. Empty values are equivalent to missing ones. Source: ``RocketMQSerializable``.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import LANGUAGE_NUMBERS, LANGUAGE_OTHER, LANGUAGE_OURS, LANGUAGES, VERSION_OURS

_FIXED: Final = struct.Struct(">hBhiii")
_INT32: Final = struct.Struct(">i")
_NUMBER_OURS: Final = LANGUAGE_NUMBERS[LANGUAGE_OURS]


class BinaryHeader(NamedTuple):
    """A decoded header. ``has_many``: it has more than ``limits.HEADER_FIELDS_MAX`` fields, of which ``ext`` are the first."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext: dict[str, str]
    has_many: bool = False


def decode_binary_header(header: bytes) -> BinaryHeader:
    """Decode a header.

    Raises:
        ProtocolError: inconsistent lengths, or text that is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = (None, at) if remark_bytes == 0 else _text(header, at, remark_bytes)
        (ext_bytes,) = _INT32.unpack_from(header, at)
        at += 4
        ext, has_many = _read_ext(header, at, ext_bytes) if ext_bytes else ({}, False)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a binary header of {len(header)} bytes cannot be read: {error}") from error
    name = LANGUAGES[language] if language < len(LANGUAGES) else LANGUAGE_OTHER
    return BinaryHeader(code, name, version, opaque, flag, remark, ext, has_many)


def _text(header: bytes, at: int, size: int) -> tuple[str, int]:
    end = at + size
    if size < 0 or end > len(header):
        raise ProtocolError(f"a text of {size} bytes at {at} exceeds its header of {len(header)} bytes")
    return header[at:end].decode(), end


def _read_ext(header: bytes, at: int, ext_bytes: int) -> tuple[dict[str, str], bool]:
    end = at + ext_bytes
    if ext_bytes < 0 or end > len(header):
        raise ProtocolError(f"ext fields of {ext_bytes} bytes at {at} exceed their header of {len(header)} bytes")
    block = header[:end]
    ext: dict[str, str] = {}
    for _ in range(limits.HEADER_FIELDS_MAX):
        if at >= end:
            break
        key, at = _text(block, at + 2, int.from_bytes(block[at : at + 2], "big", signed=True))
        (size,) = _INT32.unpack_from(block, at)
        value, at = _text(block, at + 4, size)
        if value:
            ext[key] = value
    return ext, at < end


def encode_binary_header(
    code: int, opaque: int, flag: int, remark: str | None, ext: Iterable[tuple[str, str]], version: int = VERSION_OURS
) -> bytes:
    """Encode the header of a request or response.

    Raises:
        ProtocolError: ``code`` does not fit in 16 bits.
    """
    if not -0x8000 <= code <= 0x7FFF:
        raise ProtocolError(f"code {code} does not fit in a binary header", hint="send it in JSON")
    note = b"" if remark is None else remark.encode("utf-8", "replace")
    block = b"".join(_entry(name.encode("utf-8", "replace"), value.encode("utf-8", "replace")) for name, value in ext)
    fixed = _FIXED.pack(code, _NUMBER_OURS, version, opaque, flag, len(note))
    return b"".join((fixed, note, _INT32.pack(len(block)), block))


def _entry(name: bytes, value: bytes) -> bytes:
    return b"".join((len(name).to_bytes(2, "big"), name, len(value).to_bytes(4, "big"), value))
