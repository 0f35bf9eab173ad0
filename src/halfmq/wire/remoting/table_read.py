"""HMQ_TABLE_READ, a command of halfmq: rows of the transaction table, and the records that name their transactions, as they are stored.

    request   code 29016, ext ``store`` (32 hex digits), ``wanted``: one of ``WANTED``, ``firstHalf``, ``endHalf`` (half indexes),
              ``position`` (log offset at which the rows are read, as an earlier response stated it; 0: the newest one), ``maxBytes``
              (of records; at most 2 MiB, and the first one always fits)
    response  code 0   ext ``rows`` (their number, N), ``recordBytes``, ``nextHalf``, ``position``, and ``tableFirst``, ``tableEnd`` (the rows
                         that the table has), ``logStart``; body:
                         CRC-32 of the rest of the body 4
                         N entries of 144 bytes: half index 8, start of its record 4, length of its record 4, row 128
                         (docs/storage-format.md). A length of 0: no record; -1: it is damaged
                         records, ``recordBytes`` together; several rows may have one
                         JSON {topic id: name, ...} of the topics of these rows that exist
              22  this is another store (ext ``store``)
              2   ask again in a moment

A response may have no rows although there are others from ``nextHalf`` on. RocketMQ, and halfmq before this command, respond with 3.
Checksum and frame are those of ``raw_read``. Pure functions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import ProtocolError

EXT_STORE: Final = "store"
#: All rows without records; with the record of the verdict, or of the half without its body; undecided rows without records; undecided
#: rows with the whole record of the half.
WANTED: Final = ("rows", "transactions", "undecided", "halves")
_REQUEST: Final = ("firstHalf", "endHalf", "position", "maxBytes")
_RESPONSE: Final = ("rows", "recordBytes", "nextHalf", "position", "tableFirst", "tableEnd", "logStart")
#: Numbers have at most 18 digits; longer ones are not parsed.
_DIGITS_MAX: Final = 18
_NAMES: Final = msgspec.json.Decoder(dict[int, str])


class TableReadFields(NamedTuple):
    """A request."""

    store: str
    wanted: str
    first: int
    end: int
    position: int
    bytes_max: int


class TableFound(NamedTuple):
    """Ext fields of a response with code 0."""

    rows: int
    record_bytes: int
    next_half: int
    position: int
    table_first: int
    table_end: int
    log_start: int


def encode_request_fields(fields: TableReadFields) -> dict[str, str]:
    """Ext fields of the request."""
    return {EXT_STORE: fields.store, "wanted": fields.wanted} | dict(zip(_REQUEST, map(str, fields[2:]), strict=True))


def decode_request_fields(ext: Mapping[str, str]) -> TableReadFields | str:
    """The request, or a text that says what is wrong with it."""
    numbers = []
    for name in _REQUEST:
        text = ext.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            return f"{name} {text[:40]!r}: not a number"
        numbers.append(int(text))
    if ext.get("wanted") not in WANTED:
        return f"wanted {ext.get('wanted', '')[:40]!r}: must be one of {', '.join(WANTED)}"
    fields = TableReadFields(ext.get(EXT_STORE, ""), ext["wanted"], *numbers)
    return fields if fields.first <= fields.end else f"endHalf {fields.end} is before firstHalf {fields.first}"


def encode_found(found: TableFound) -> dict[str, int]:
    """Ext fields of a response with code 0."""
    return dict(zip(_RESPONSE, found, strict=True))


def decode_found(ext: Mapping[str, str]) -> TableFound:
    """The inverse of ``encode_found``.

    Raises:
        ProtocolError: a field is missing or invalid.
    """
    try:
        found = TableFound(*[int(ext[name]) for name in _RESPONSE])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a response to HMQ_TABLE_READ is malformed: {error!r}") from error
    if min(found) < 0:
        raise ProtocolError(f"a response to HMQ_TABLE_READ has a negative number: {found}")
    return found


def encode_topics(names: Mapping[int, str]) -> bytes:
    """The end of the body."""
    return msgspec.json.encode(names)


def decode_topics(data: bytes | memoryview) -> dict[int, str]:
    """The inverse of ``encode_topics``.

    Raises:
        ProtocolError: it is invalid.
    """
    try:
        return _NAMES.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the topics in a response to HMQ_TABLE_READ are malformed: {error}") from error
