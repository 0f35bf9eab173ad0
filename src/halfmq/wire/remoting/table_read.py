"""HMQ_TABLE_READ, a command of halfmq: rows of the transaction table, and the records that name their transactions, as they are stored.

    request   code 29016, ext ``store`` (32 hex digits), ``wanted``: one of ``Wanted``, ``firstHalf``, ``endHalf`` (half indexes),
              ``position`` (log offset at which the rows are read, as an earlier response stated it; 0: the newest one), ``maxBytes``
              (of records; at most 2 MiB, and the first one always fits)
    response  code 0   ext ``rows`` (their number, N), ``recordBytes``, ``nextHalf``, ``position``, ``tableFirst``, ``tableEnd`` (the rows
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

from typing import Final, Literal

from msgspec import field

from halfmq.model.text_fields import Count64, Fields
from halfmq.wire.remoting.fields import JsonBody

EXT_STORE: Final = "store"
#: All rows without records; with the record of the verdict, or of the half without its body; undecided rows without records; undecided
#: rows with the whole record of the half.
Wanted = Literal["rows", "transactions", "undecided", "halves"]
#: The end of the body: names by topic id.
TOPICS: Final = JsonBody(dict[int, str], "the topics in a response to HMQ_TABLE_READ are")


class TableReadFields(Fields, gc=False):
    """A request."""

    store: str
    wanted: Wanted
    first: Count64 = field(name="firstHalf")
    end: Count64 = field(name="endHalf")
    position: Count64
    bytes_max: Count64 = field(name="maxBytes")


class TableFound(Fields, gc=False):
    """Ext fields of a response with code 0."""

    rows: Count64
    record_bytes: Count64
    next_half: Count64
    position: Count64
    table_first: Count64
    table_end: Count64
    log_start: Count64
