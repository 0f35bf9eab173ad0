"""Hashes of many texts at once: Java's, of tags and sharding keys; and unique ids (UNIQ_KEY) of messages with the hashes of queue entries.

Java's ``String.hashCode`` is a polynomial of the characters modulo 2**32, and unsigned NumPy arithmetic wraps at the same place. That holds
for ASCII, where a byte is a character; other texts are hashed one by one, each distinct one once.

An id has 32 upper-case hex digits, like those of RocketMQ's clients: 24 that identify the attempt (a hash of query, batch, run and
attempt), and 8 that number its messages. Those of ``repeatable_ids`` are the same in every attempt of a task.

Queue entries contain ``model.ids.hash64`` of the id, which consists of two CRC-32. A CRC is linear over GF(2) for texts of one
length, so the CRC of an id is that of number 0, XORed with one table value for each pair of digits; and the effect of the initial
value of the second CRC is one table value for each of its bytes.
"""

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halfmq.model.checksum import crc32
from halfmq.model.ids import java_string_hash
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.rows.byte_slices import Bytes, as_bytes

Hashes = npt.NDArray[np.int32]

#: Characters; longer texts are hashed one by one, so that the table of powers stays small.
_VECTOR_CHARS_MAX: Final = 1_024
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(_VECTOR_CHARS_MAX)], dtype=np.uint32)


def java_hashes(texts: pa.BinaryArray) -> Hashes:
    """The signed hash of each text, UTF-8; 0 for null, as for an empty text."""
    rows = len(texts)
    if texts.null_count:
        texts = texts.fill_null(b"")
    _, offsets_buffer, data_buffer = texts.buffers()
    if not rows or data_buffer is None:
        return np.zeros(rows, np.int32)
    ends = np.frombuffer(offsets_buffer, np.int32, rows + 1, texts.offset * 4)
    data = as_bytes(data_buffer)[ends[0] : ends[-1]]
    offsets = (ends - ends[0]).astype(np.int64)
    lengths = np.diff(offsets)
    if len(data) == 0:
        return np.zeros(rows, np.int32)
    if data.max() >= 0x80 or lengths.max() > _VECTOR_CHARS_MAX:
        return _one_by_one(texts)
    after = np.repeat(offsets[1:], lengths) - np.arange(len(data)) - 1  # characters after each one
    sums = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * _POWERS[after], dtype=np.uint32, out=sums[1:])
    found: Hashes = (sums[offsets[1:]] - sums[offsets[:-1]]).view(np.int32)
    return found


def _one_by_one(texts: pa.BinaryArray) -> Hashes:
    distinct = texts.dictionary_encode()
    hashes = [java_string_hash(text.decode("utf-8", "replace")) for text in distinct.dictionary.to_pylist()]
    found: Hashes = np.array(hashes, np.int32)[distinct.indices.to_numpy()]
    return found


ID_CHARS: Final = 32
_ID_NAME: Final = np.frombuffer(b"UNIQ_KEY\x01", np.uint8)
#: UNIQ_KEY as a property.
ID_PROPERTY_BYTES: Final = len(_ID_NAME) + ID_CHARS + 1
_NUMBER_CHARS: Final = 8
#: Largest number of messages of an attempt.
NUMBER_MAX: Final = 2**32 - 1
_HEX: Final = [f"{value:02X}".encode() for value in range(256)]
#: Two digits for each byte.
_DIGITS: Final = np.frombuffer(b"".join(_HEX), np.uint8).reshape(256, 2)
_SALT: Final = 0xA5A5A5A5
Words = npt.NDArray[np.uint32]


def _changes_by_digits() -> list[Words]:
    """For each pair of digits of the number: what each value changes in the CRC, compared with ``00``."""
    tables = []
    for place in range(0, _NUMBER_CHARS, 2):
        texts = [b"0" * place + pair + b"0" * (_NUMBER_CHARS - 2 - place) for pair in _HEX]
        zero = crc32(texts[0])
        tables.append(np.array([crc32(text) ^ zero for text in texts], np.uint32))
    return tables


def _changes_by_start() -> list[Words]:
    """For each byte of the initial value: what each value changes in the CRC of an id, compared with 0."""
    text = bytes(ID_CHARS)
    zero = crc32(text)
    return [
        np.array([crc32(text, value << shift) ^ zero for value in range(256)], np.uint32) for shift in (24, 16, 8, 0)
    ]


_BY_DIGITS: Final = _changes_by_digits()
_BY_START: Final = _changes_by_start()


def id_prefix(tx_id: str, attempt: str) -> bytes:
    """The first 24 digits of the ids of an attempt of the batch with this transaction id."""
    name = f"{tx_id}:{attempt}".encode()
    return blake2b(name, digest_size=12).hexdigest().upper().encode()


def message_ids(prefix: bytes, first: int, count: int) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """(ids as an array of shape (count, 32), their ``hash64``) of the messages ``first`` to ``first + count - 1``.

    Raises:
        OverflowError: a number does not fit in 8 digits.
    """
    _check_number(first + count - 1)
    numbers = _number_bytes(first, count)
    ids = np.empty((count, ID_CHARS), np.uint8)
    ids[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    ids[:, len(prefix) :] = _DIGITS[numbers].reshape(count, _NUMBER_CHARS)
    zero = prefix + b"0" * _NUMBER_CHARS
    low = _sum(_BY_DIGITS, numbers) ^ np.uint32(crc32(zero))
    # Of the same text with initial value 0, which is ``low``; the initial value adds its own part.
    starts = (low ^ np.uint32(_SALT)).astype(">u4").view(np.uint8).reshape(count, 4)
    high = low ^ _sum(_BY_START, starts)
    return ids, ((high.astype(np.uint64) << np.uint64(32)) | low).view(np.int64)


def repeatable_ids(batch: QueryBatch, partition: int, first: int, digests: Bytes) -> Bytes:
    """Ids of the messages ``first`` and following of a task, as an array of shape (count, 32). ``digests``: 8 bytes
    for the content of each message, as an array of shape (count, 8).

    What makes an id the same, and why the content is in it: docs/decisions/0047-at-least-once.md. One that writes to another topic has
    others.

    As 16 bytes: 10 that identify task and content, 2 zeros, and the number of the message. RocketMQ's tools take bytes 10 to 13 for the
    milliseconds between the start of a month and the sending (``MessageClientIDSetter.getNearlyTimeFromID``), and find only later messages
    by their id; small numbers there mean the start of the month.

    Raises:
        OverflowError: a number does not fit.
    """
    count = len(digests)
    _check_number(first + count - 1)
    topic = f":{batch.topic}" if batch.topic else ""
    name = f"{batch.query}:{batch.batch}:{partition}{topic}".encode()
    raw = np.zeros((count, ID_CHARS // 2), np.uint8)
    raw[:, :10] = np.frombuffer(blake2b(name, digest_size=10).digest(), np.uint8)
    raw[:, 2:10] ^= digests
    raw[:, 12:] = _number_bytes(first, count)
    return _DIGITS[raw].reshape(count, ID_CHARS)


def put_id_properties(rows: Bytes, ids: Bytes) -> None:
    """Write each id as a property (UNIQ_KEY) into its row of ``ID_PROPERTY_BYTES``."""
    rows[:, : len(_ID_NAME)] = _ID_NAME
    rows[:, len(_ID_NAME) : -1] = ids
    rows[:, -1] = 2


def _check_number(number: int) -> None:
    if number > NUMBER_MAX:
        raise OverflowError(f"an attempt has at most {NUMBER_MAX + 1} messages")


def _number_bytes(first: int, count: int) -> Bytes:
    return np.arange(first, first + count, dtype=np.int64).astype(">u4").view(np.uint8).reshape(count, 4)


def _sum(tables: list[Words], values: Bytes) -> Words:
    found = tables[0][values[:, 0]]
    for place in range(1, 4):
        found ^= tables[place][values[:, place]]
    return found
